"""The list of request fields against the decoder, the SDK's types, and `docs/reference/fields.md`, which is generated from it."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import message_create_params
from msgspec import structs
from openai.types import completion_create_params as text_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.fields import RequestField, list_fields
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.messages.body import MessagesBody
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
    page = (ROOT / "docs/reference/fields.md").read_text(encoding="utf-8")
    assert page == render_page(), "run: python -m tests.app.requests.fields_page > docs/reference/fields.md"


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
        build_check(field.annotation)(value, field.name)
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


CONST_NULL = {"type": "object", "properties": {"a": {"const": None}}}
NULL_KEYS: list[dict[str, Any]] = [
    {"x": None},
    {"reasoning": {"effort": "low", "x": None}},
    {"text": {"x": None, "format": {"type": "text", "x": None}}},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": CONST_NULL, "x": None}}, "x": None},
    {"stream": True, "stream_options": {"x": None}, "conversation": None},
]


@pytest.mark.parametrize("fields", NULL_KEYS)
def test_unknown_key_with_null_counts_as_left_out(fields: dict[str, Any]) -> None:
    """The schema of the text keeps its null."""
    constraint = read_responses_spec(**fields).prompt_input.output_constraint
    schema = None if constraint is None else constraint.schema
    assert schema == (CONST_NULL if "json_schema" in str(fields) else None)


def test_null_stays_in_a_schema_beside_an_unknown_key() -> None:
    constraint = read_chat_spec(guided_json={"const": None}, x=None).prompt_input.output_constraint
    assert constraint is not None and constraint.schema == {"const": None}


def list_choices(annotation: Any) -> list[str]:
    """Returns the strings that a type of the SDK names: those of the field itself, not of objects in it."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [value for argument in get_args(annotation) for value in list_choices(argument)]


SDK_PARAMS: list[tuple[Any, Any]] = [
    (response_create_params.ResponseCreateParamsBase, ResponsesBody),
    (completion_create_params.CompletionCreateParamsBase, ChatBody),
    (text_create_params.CompletionCreateParamsBase, TextCompletionBody),
    (message_create_params.MessageCreateParamsBase, MessagesBody),
]


@pytest.mark.parametrize(("params", "kind"), SDK_PARAMS)
def test_every_choice_of_the_sdk_is_accepted(params: Any, kind: Any) -> None:
    hints, fields = get_type_hints(params), {field.name: field for field in list_fields(kind)}
    refusals = []
    for name in sorted(hints.keys() & fields.keys() - {"model"}):
        field, is_list = fields[name], "List[" in str(hints[name]) or "list[" in str(hints[name])
        for choice in list_choices(hints[name]) if field.rule.handling != "refused" else ():
            errors = [check_field(field, value) for value in ([[choice], choice] if is_list else [choice])]
            if all(errors):
                refusals.append((name, choice))
    assert refusals == []
