"""The list of request fields against the decoder, the SDK's types, and `docs/fields.md`, which is generated from it."""

from typing import Any

import pytest
from msgspec import structs
from openai.types import completion_create_params as text_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from antiphon.app.base.errors import ApiError
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.fields import RequestField, list_fields
from antiphon.app.requests.responses.body import ResponsesBody
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.harmony.tools import ToolTable
from tests.app.requests.fields_page import render_page
from tests.app.requests.request_builders import read_chat_spec, read_completion, read_responses_spec, summarize_error
from tests.syntax import ROOT

TABLES = [
    (list_fields(ResponsesBody), read_responses_spec),
    (list_fields(ChatBody), read_chat_spec),
    (list_fields(TextCompletionBody), read_completion),
]
ALL_FIELDS = [
    pytest.param(field, reader, id=f"{reader.__name__}-{field.name}") for table, reader in TABLES for field in table
]
EMPTY_TOOLS = ToolTable()
REQUIRED_FIELDS = {"model", "input", "messages", "prompt"}


def test_field_names_are_unique() -> None:
    for table, _ in TABLES:
        names = [field.name for field in table]
        assert len(names) == len(set(names))


def test_every_field_of_the_sdk_is_listed() -> None:
    sdk_fields = response_create_params.ResponseCreateParamsBase.__annotations__
    assert set(sdk_fields) - {field.name for field in list_fields(ResponsesBody)} == set()
    sdk_fields = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert set(sdk_fields) - {field.name for field in list_fields(ChatBody)} == set()
    sdk_fields = text_create_params.CompletionCreateParamsBase.__annotations__
    assert set(sdk_fields) - {field.name for field in list_fields(TextCompletionBody)} == set()


def test_fields_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert page == render_page(), "run: python -m tests.app.requests.fields_page > docs/fields.md"


@pytest.mark.parametrize(("field", "reader"), ALL_FIELDS)
def test_null_equals_an_absent_field(field: RequestField, reader: Any) -> None:
    if field.name not in REQUIRED_FIELDS:
        assert without_tools(reader(**{field.name: None})) == without_tools(reader())


@pytest.mark.parametrize(("field", "reader"), ALL_FIELDS)
def test_wrong_type_names_its_field(field: RequestField, reader: Any) -> None:
    """A list of an object, or an object with a list, is invalid for every field. A refused field rejects any value."""
    errors = [error for value in ([{}], {"a": [1]}) if (error := check_field(field, value))]
    if not errors:
        assert field.rule.handling == "refused"
        for value in ([{}], {"a": [1]}, "x", 1):
            with pytest.raises(ApiError) as caught:
                reader(**{field.name: value})
            assert summarize_error(caught.value) == (400, "unsupported_parameter", field.name)
    for error in errors:
        assert error.status == 400
        assert (error.param or "").startswith(field.name)
        assert error.code in {"invalid_type", "unknown_parameter", "missing_required_parameter", "invalid_value"}


@pytest.mark.parametrize(("field", "reader"), ALL_FIELDS)
def test_unsupported_field_is_rejected_by_name(field: RequestField, reader: Any) -> None:
    if field.rule.handling == "refused":
        with pytest.raises(ApiError) as caught:
            reader(**{field.name: {"id": "x"}})
        assert summarize_error(caught.value) == (400, "unsupported_parameter", field.name)


@pytest.mark.parametrize("reader", [read_responses_spec, read_chat_spec, read_completion])
def test_unknown_key_is_rejected(reader: Any) -> None:
    with pytest.raises(ApiError) as caught:
        reader(temprature=1)
    assert summarize_error(caught.value) == (400, "unknown_parameter", "temprature")


def check_field(field: RequestField, value: Any) -> ApiError | None:
    try:
        field.check(value, field.name)
    except ApiError as error:
        return error
    return None


def without_tools(spec: Any) -> Any:
    """Returns the spec without its tool table, which has no equality. Text completions have none."""
    if not isinstance(spec, TurnSpec):
        return spec
    assert len(spec.prompt_input.tools) == 0
    prompt_input = structs.replace(spec.prompt_input, tools=EMPTY_TOOLS)
    return structs.replace(spec, prompt_input=prompt_input)
