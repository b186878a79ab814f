"""The messages have a place for everything that this server sends: their JSON form is the JSON of the HTTP API."""

import json
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.json_format import MessageToDict, ParseDict

from antiphon.app.base.errors import ApiError
from antiphon.app.grpc.__main__ import render_proto
from antiphon.app.grpc.descriptors import API_FILE, ENGINE_FILE, load_file, message_class
from antiphon.app.grpc.json_wire import JsonMismatchError, encode_json
from antiphon.app.grpc.message_types import MessageField, MessageType
from antiphon.app.grpc.proto_parser import ProtoSyntaxError, parse_proto
from antiphon.app.grpc.proto_writer import write_proto
from antiphon.app.grpc.request_bodies import message_as_json
from antiphon.app.projections.obfuscation import add_obfuscation
from tests.snapshots.cases import CASES, Case
from tests.snapshots.completion_checks import ALL_DETAILS
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, read_chat, read_completion, read_responses

RUN_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused and not case.waits]


def read_as_message(name: str, data: bytes) -> Any:
    """Returns the JSON form of the message for a JSON object."""
    kind = message_class(API_FILE, name)
    return MessageToDict(kind.FromString(encode_json(kind.DESCRIPTOR, data)))


def check_result(result: CaseResult, event: str, reply: str) -> None:
    for data in result.data:
        if set(data) != {"error"}:
            assert read_as_message(event, msgspec.json.encode(data)) == data
    if isinstance(result.reply, bytes):
        assert read_as_message(reply, result.reply) == json.loads(result.reply)


@pytest.mark.parametrize("case", RUN_CASES, ids=lambda case: case.name)
async def test_messages_of_a_case_are_its_json(case: Case) -> None:
    if "responses" in case.faces:
        check_result(await read_responses(case), "ResponseEvent", "Response")
    if "chat" in case.faces:
        check_result(await read_chat(case), "ChatChunk", "ChatCompletion")
    if not case.cancel:
        check_result(await read_completion(case, **ALL_DETAILS), "TextCompletion", "TextCompletion")


def test_padded_event_keeps_its_padding() -> None:
    data = add_obfuscation(b'{"type":"response.output_text.delta","sequence_number":1,"delta":"a","logprobs":[]}')
    assert read_as_message("ResponseEvent", data) == json.loads(data) and b"obfuscation" in data


@pytest.mark.parametrize(
    "data",
    [
        {"sequence_number": 2**32 - 1, "output_index": 0, "delta": "", "logprobs": []},
        {"delta": "ä\u2028\U0001f600\x00", "item": {"type": "message", "content": [], "status": None}},
        {"response": {"metadata": {"": "x"}, "top_p": 0.1, "tool_choice": {"a": [None, True, False, -1.5e300, {}]}}},
        {"response": {"created_at": 0, "store": False, "background": True, "conversation": None, "tools": [[], {}]}},
    ],
)
def test_every_kind_of_value_is_kept(data: Any) -> None:
    assert read_as_message("ResponseEvent", msgspec.json.encode(data)) == data


def test_null_is_a_value() -> None:
    kind: Any = message_class(API_FILE, "ResponseEvent")
    event = kind.FromString(encode_json(kind.DESCRIPTOR, b'{"code":null}'))
    assert event.code.WhichOneof("kind") == "null_value", (
        "Python reads a value without a kind as null, others refuse it"
    )


@pytest.mark.parametrize(
    "data", [b'{"new_key":1}', b'{"delta":null}', b'{"delta":1}', b'{"output_index":-1}', b'{"item":"a"}', b"[]"]
)
def test_json_without_a_place_is_an_error(data: bytes) -> None:
    with pytest.raises(JsonMismatchError):
        read_as_message("ResponseEvent", data)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "CreateResponseRequest",
            {
                "model": "m",
                "input": [{"role": "user", "content": "Hi", "x": None}],
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "minimum": 0}}],
                "metadata": {},
                "temperature": 0.1,
                "seed": -(2**63),
                "store": False,
                "max_output_tokens": 5,
                "stop": ["a"],
            },
        ),
        ("CreateChatCompletionRequest", {"model": "m", "messages": [], "seed": 2**63 - 1, "n": 2, "stop": "x"}),
        ("CreateCompletionRequest", {"model": "m", "prompt": [1, 2, 3], "logit_bias": {"5": -1.5}, "stream": True}),
    ],
)
def test_message_of_a_body_is_the_body(name: str, body: dict[str, Any]) -> None:
    message = ParseDict(body, message_class(API_FILE, name)())
    decoded = message_class(API_FILE, name).FromString(message.SerializeToString())
    assert message_as_json(decoded) == body
    assert isinstance(message_as_json(decoded).get("seed", 0), int)


def test_number_that_is_not_finite_is_refused() -> None:
    message: Any = message_class(API_FILE, "CreateResponseRequest")()
    message.input.number_value = float("nan")
    with pytest.raises(ApiError, match="no JSON form"):
        message_as_json(message)


def test_proto_is_up_to_date() -> None:
    assert API_FILE.read_text(encoding="utf-8") == render_proto(), "run python -m antiphon.app.grpc"


def test_field_numbers_never_change() -> None:
    first = {"M": MessageType("A message.", {name: MessageField("string") for name in ("a", "b", "c")})}
    present = parse_proto("first.proto", write_proto(first, None))
    assert {field.name: field.number for field in present.message_type[0].field} == {"a": 1, "b": 2, "c": 3}
    second = {"M": MessageType("A message.", {name: MessageField("string") for name in ("new", "a", "c")})}
    changed = parse_proto("second.proto", write_proto(second, present))
    assert {field.name: field.number for field in changed.message_type[0].field} == {"new": 4, "a": 1, "c": 3}
    assert [span.start for span in changed.message_type[0].reserved_range] == [2]
    third = {"M": MessageType("A message.", {name: MessageField("string") for name in ("a", "c", "b")})}
    again = parse_proto("third.proto", write_proto(third, changed))
    assert {field.name: field.number for field in again.message_type[0].field} == {"a": 1, "c": 3, "b": 5}


def test_json_names_are_those_of_http() -> None:
    for message in load_file(API_FILE).message_types_by_name.values():
        assert all(field.json_name == field.name for field in message.fields)


def test_parser_agrees_with_the_descriptors() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    load_file(ENGINE_FILE).CopyToProto(file)
    sampling = next(message for message in file.message_type if message.name == "SamplingParams")
    fields = {field.name: field for field in sampling.field}
    assert fields["temperature"].proto3_optional and not fields["top_p"].proto3_optional
    assert fields["json_object"].oneof_index == 0 and sampling.oneof_decl[0].name == "constraint"
    assert fields["logit_bias"].type_name == ".vllm.grpc.engine.SamplingParams.LogitBiasEntry"
    assert fields["stop"].label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


@pytest.mark.parametrize(
    "text",
    [
        "message",
        "message A {",
        "extend A {}",
        "message A { string a 1; }",
        "message A { string a = 1 ?; }",
        'import "a"',
    ],
)
def test_parser_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises((ProtoSyntaxError, ValueError)):
        parse_proto("bad.proto", text)
