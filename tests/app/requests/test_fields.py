"""One list of fields: the decoder obeys it, the SDK's types are in it, the page is printed from it."""

from typing import Any

import pytest
from msgspec import structs
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from antiphon.app.errors import ApiError
from antiphon.app.requests.fields import CHAT_FIELDS, RESPONSES_FIELDS, RequestField
from antiphon.app.requests.fields.__main__ import render_page
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.harmony.tools import ToolTable
from tests.app.requests.request_builders import ask, blame, chat_ask
from tests.syntax import ROOT

TABLES = [(RESPONSES_FIELDS, ask), (CHAT_FIELDS, chat_ask)]
EVERY = [
    pytest.param(field, reader, id=f"{reader.__name__}-{field.name}") for table, reader in TABLES for field in table
]
NOTHING = ToolTable()
NEEDED = {"model", "input", "messages"}


def test_no_field_is_listed_twice() -> None:
    for table, _ in TABLES:
        names = [field.name for field in table]
        assert len(names) == len(set(names))


def test_every_field_of_the_sdk_is_listed() -> None:
    sent = response_create_params.ResponseCreateParamsBase.__annotations__
    assert set(sent) - {field.name for field in RESPONSES_FIELDS} == set()
    sent = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert set(sent) - {field.name for field in CHAT_FIELDS} == set()


def test_the_page_is_what_the_list_prints() -> None:
    said = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert said == render_page(), "run: python -m antiphon.app.requests.fields > docs/fields.md"


@pytest.mark.parametrize(("field", "reader"), EVERY)
def test_null_is_the_same_as_nothing(field: RequestField, reader: Any) -> None:
    if field.name not in NEEDED:
        assert told(reader(**{field.name: None})) == told(reader())


@pytest.mark.parametrize(("field", "reader"), EVERY)
def test_a_wrong_type_is_named(field: RequestField, reader: Any) -> None:
    """Some list or some object fits nowhere, but for fields that take any object, or that are refused unseen."""
    faults = [fault for wrong in ([{}], {"a": [1]}) if (fault := fault_of(field, wrong))]
    assert faults or field.handling == "refused" or field.name in {"tools", "messages", "prediction", "input"}
    for fault in faults:
        assert fault.status == 400
        assert (fault.param or "").startswith(field.name)
        assert fault.code in {"invalid_type", "unknown_parameter", "missing_required_parameter", "invalid_value"}


@pytest.mark.parametrize(("field", "reader"), EVERY)
def test_what_is_refused_is_refused_by_name(field: RequestField, reader: Any) -> None:
    if field.handling == "refused":
        with pytest.raises(ApiError) as caught:
            reader(**{field.name: {"id": "x"}})
        assert blame(caught.value) == (400, "unsupported_parameter", field.name)


@pytest.mark.parametrize("reader", [ask, chat_ask])
def test_an_unknown_key_is_refused(reader: Any) -> None:
    with pytest.raises(ApiError) as caught:
        reader(temprature=1)
    assert blame(caught.value) == (400, "unknown_parameter", "temprature")


def fault_of(field: RequestField, value: Any) -> ApiError | None:
    try:
        field.check(value, field.name)
    except ApiError as error:
        return error
    return None


def told(spec: TurnSpec) -> TurnSpec:
    """The spec without its table of tools, which knows no equality."""
    assert len(spec.prompt_input.tools) == 0
    bare = structs.replace(spec.prompt_input, tools=NOTHING)
    return structs.replace(spec, prompt_input=bare)
