"""The catalogue against the openai SDK's types: every event, item and tool that it knows decodes here and comes back."""

import json
import typing
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseInputItem, ResponseOutputItem, ResponseStreamEvent, Tool
from pydantic import BaseModel, TypeAdapter

from antiphon.events.inputs import HOSTED_ITEM_TYPES, HOSTED_TOOL_TYPES, AnyInput
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import StreamEvent, decode_event

EVENTS = TypeAdapter(ResponseStreamEvent)
ITEMS = TypeAdapter(ResponseOutputItem)


def members(union: Any) -> list[type[BaseModel]]:
    """The models of a union, however deep it is nested."""
    found: list[type[BaseModel]] = []
    for arg in typing.get_args(getattr(union, "__value__", union)):
        found += [arg] if isinstance(arg, type) and issubclass(arg, BaseModel) else members(arg)
    return found


def tag(model: type[BaseModel]) -> str:
    annotation = model.model_fields["type"].annotation
    literals = [annotation, *typing.get_args(annotation)]
    return next(value for one in literals for value in [one, *typing.get_args(one)] if isinstance(value, str))


PLAIN: dict[str, Any] = {"array": [], "string": "x", "integer": 1, "number": 1, "boolean": True, "null": None}


def sample(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """The smallest value of a JSON schema: required keys only."""
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return sample(schema[key][0], root)
    if schema.get("type") == "object":
        needed = schema.get("required", ())
        return {key: sample(value, root) for key, value in schema.get("properties", {}).items() if key in needed}
    return PLAIN.get(schema.get("type", ""), {})


def smallest(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    value = sample(schema, schema)
    value["type"] = tag(model)
    if "item" in value:
        value["item"] = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    if "response" in value:
        value["response"] = msgspec.to_builtins(Response(id="resp_1", created_at=1, model="m", metadata={}))
    if "part" in value:
        kind = "summary_text" if "summary" in value["type"] else "output_text"
        value["part"] = {"type": kind, "text": "x"} | ({"annotations": []} if kind == "output_text" else {})
    if value["type"] == "response.output_text.annotation.added":
        value["annotation"] = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    return typing.cast("dict[str, Any]", value)


def holds(whole: Any, part: Any) -> bool:
    """Whether `whole` is `part`, but for keys that `part` does not have."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    return bool(whole == json.loads(json.dumps(part)))


@pytest.mark.parametrize("model", members(ResponseStreamEvent), ids=lambda model: model.__name__)
def test_every_event_that_the_sdk_knows_decodes_and_comes_back(model: type[BaseModel]) -> None:
    value = smallest(model)
    EVENTS.validate_python(value)
    event = decode_event(json.dumps(value))
    back = json.loads(msgspec.json.encode(event))
    assert holds(back, value), "nothing of it is lost"
    assert EVENTS.validate_python(back).type == value["type"]


def test_there_are_events_of_exactly_the_types_that_the_sdk_knows() -> None:
    ours = {member.__struct_config__.tag for member in typing.get_args(StreamEvent)}
    assert ours == {tag(model) for model in members(ResponseStreamEvent)}


@pytest.mark.parametrize("model", members(ResponseOutputItem), ids=lambda model: model.__name__)
def test_every_output_item_that_the_sdk_knows_decodes_and_comes_back(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    value = sample(schema, schema) | {"type": tag(model), "id": "x_1"}
    item = msgspec.convert(value, OutputItem)
    back = json.loads(msgspec.json.encode(item))
    assert ITEMS.validate_python(back).type == value["type"]
    assert holds(back, value), "nothing of it is lost"


def test_there_is_an_input_for_every_item_that_the_sdk_knows() -> None:
    own = {member.__struct_config__.tag for member in typing.get_args(AnyInput)} - {"hosted"}
    theirs = {tag(model) for model in members(ResponseInputItem)}
    assert theirs - own - HOSTED_ITEM_TYPES <= {"compaction_trigger"}, "a request for compaction, not an item to keep"


def test_every_tool_that_the_sdk_knows_is_offered_or_accepted() -> None:
    theirs = {tag(model) for model in members(Tool)}
    assert theirs <= HOSTED_TOOL_TYPES | {"function", "custom", "namespace"}


def test_keys_nobody_has_heard_of_are_no_reason_to_refuse_an_event() -> None:
    event = decode_event(
        '{"type":"response.output_text.delta","sequence_number":3,"item_id":"a","output_index":0,"content_index":0,"delta":"x","obfuscation":"zz"}'
    )
    assert event.delta == "x"  # type: ignore[union-attr]


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"response\.keepalive"):
        decode_event('{"type":"response.keepalive","sequence_number":0}')
