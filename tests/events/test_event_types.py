"""The event types against those of the openai SDK: every event, item and tool of the SDK decodes and encodes here."""

import json
import typing
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseInputItem, ResponseOutputItem, ResponseStreamEvent, Tool
from pydantic import BaseModel, TypeAdapter

from antiphon.events.inputs import HOSTED_ITEM_TYPES, AnyInput
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import StreamEvent, decode_event
from antiphon.events.tools import COMPUTER_TOOL_TYPES, HOSTED_TOOL_TYPES
from tests.events.sdk_models import find_type_tag, list_union_models

SDK_EVENTS = TypeAdapter(ResponseStreamEvent)
SDK_ITEMS = TypeAdapter(ResponseOutputItem)


SENT_BY_OPENAI_ONLY = {f"response.apply_patch_call_operation_diff.{step}" for step in ("delta", "done")}
"""Events that OpenAI's API sends, and that no type of its SDKs knows."""
SAMPLE_VALUES: dict[str, Any] = {"array": [], "string": "x", "integer": 1, "number": 1, "boolean": True, "null": None}


def build_sample(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Returns the smallest value of a JSON schema, with required keys only."""
    if "$ref" in schema:
        return build_sample(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return build_sample(schema[key][0], root)
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {
            key: build_sample(value, root) for key, value in schema.get("properties", {}).items() if key in required
        }
    return SAMPLE_VALUES.get(schema.get("type", ""), {})


def build_minimal_object(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    value = build_sample(schema, schema)
    value["type"] = find_type_tag(model)
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


def contains(value: Any, expected: Any) -> bool:
    """Tells whether `value` equals `expected` apart from additional keys."""
    if isinstance(expected, dict):
        return all(key in value and contains(value[key], expected[key]) for key in expected)
    return bool(value == json.loads(json.dumps(expected)))


@pytest.mark.parametrize("model", list_union_models(ResponseStreamEvent), ids=lambda model: model.__name__)
def test_every_sdk_event_survives_a_round_trip(model: type[BaseModel]) -> None:
    value = build_minimal_object(model)
    SDK_EVENTS.validate_python(value)
    event = decode_event(json.dumps(value))
    encoded = json.loads(msgspec.json.encode(event))
    assert contains(encoded, value), "a key or value was lost"
    assert SDK_EVENTS.validate_python(encoded).type == value["type"]


def test_event_types_equal_those_of_the_sdk() -> None:
    event_types = {member.__struct_config__.tag for member in typing.get_args(StreamEvent)}
    assert event_types - SENT_BY_OPENAI_ONLY == {
        find_type_tag(model) for model in list_union_models(ResponseStreamEvent)
    }


@pytest.mark.parametrize("model", list_union_models(ResponseOutputItem), ids=lambda model: model.__name__)
def test_every_sdk_output_item_survives_a_round_trip(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    value = build_sample(schema, schema) | {"type": find_type_tag(model), "id": "x_1"}
    item = msgspec.convert(value, OutputItem)
    encoded = json.loads(msgspec.json.encode(item))
    assert SDK_ITEMS.validate_python(encoded).type == value["type"]
    assert contains(encoded, value), "a key or value was lost"


def test_every_sdk_input_item_type_is_accepted() -> None:
    accepted = {member.__struct_config__.tag for member in typing.get_args(AnyInput)} - {"hosted"}
    sdk_types = {find_type_tag(model) for model in list_union_models(ResponseInputItem)}
    assert sdk_types - accepted - HOSTED_ITEM_TYPES <= {"compaction_trigger"}, (
        "a request for compaction, not a stored item"
    )


def test_every_sdk_tool_type_is_offered_or_accepted() -> None:
    sdk_types = {find_type_tag(model) for model in list_union_models(Tool)}
    assert sdk_types <= HOSTED_TOOL_TYPES | {
        *COMPUTER_TOOL_TYPES,
        "function",
        "custom",
        "namespace",
        "shell",
        "apply_patch",
        "local_shell",
        "tool_search",
    }


def test_unknown_keys_of_an_event_are_ignored() -> None:
    event = decode_event(
        '{"type":"response.output_text.delta","sequence_number":3,"item_id":"a","output_index":0,"content_index":0,"delta":"x","obfuscation":"zz"}'
    )
    assert event.delta == "x"  # type: ignore[union-attr]


def test_unknown_event_type_is_rejected_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"response\.keepalive"):
        decode_event('{"type":"response.keepalive","sequence_number":0}')
