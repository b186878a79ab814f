"""Validation over a socket: each rule, on every API that has the field, is a 400 in the API's shape before any event.

The rules are those of the Responses API's contract, in its order, and the ranges of numbers. The rules of single input
items, messages and blocks are in `tests/app/requests`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.openapi.schemas import describe_fields, is_required
from antiphon.app.requests.fields import RequestBody, RequestField, list_fields
from antiphon.app.requests.fields.checks import build_check
from tests.conftest import StartServer
from tests.endpoint_bodies import BODIES
from tests.serving import RunningServer, serve

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
Row = tuple[str, dict[str, Any], str | None, str]
"""Path, fields of the body, code and param of the error."""

RESPONSES, CHAT, TEXT, MESSAGES = "/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/messages"
COUNT, INPUT_TOKENS = "/v1/messages/count_tokens", "/v1/responses/input_tokens"
USER_MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
BASE_BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "scripted", "input": "hi", "stream": True},
    INPUT_TOKENS: {"model": "scripted", "input": "hi"},
    "/v1/responses/compact": {"model": "scripted", "input": "hi"},
    "/v1/conversations": {},
    CHAT: {"model": "scripted", **USER_MESSAGES, "stream": True},
    TEXT: {"model": "scripted", "prompt": "hi", "stream": True},
    MESSAGES: {"model": "scripted", **USER_MESSAGES, "max_tokens": 64, "stream": True},
    COUNT: {"model": "scripted", **USER_MESSAGES},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
"""A body that each endpoint accepts; those of embeddings and reranking need a model that this server does not have."""
TURNS = (RESPONSES, CHAT, TEXT, MESSAGES)
ANTHROPIC = (MESSAGES, COUNT)

BELOW, ABOVE = "decimal_below_min_value", "decimal_above_max_value"
LOW, HIGH = "integer_below_min_value", "integer_above_max_value"
HUGE = 2**31
RANGES: dict[str, list[tuple[Any, str]]] = {
    "bytes": [(0, LOW)],
    "temperature": [(-0.01, BELOW), (2.01, ABOVE)],
    "top_p": [(-0.01, BELOW), (1.01, ABOVE)],
    "presence_penalty": [(-2.01, BELOW), (2.01, ABOVE)],
    "frequency_penalty": [(-2.01, BELOW), (2.01, ABOVE)],
    "repetition_penalty": [(0, BELOW), (10.1, ABOVE)],
    "min_p": [(-0.01, BELOW), (1.01, ABOVE)],
    "top_k": [(-2, LOW), (1_000_001, HIGH)],
    "seed": [(-(2**63) - 1, LOW), (2**63, HIGH)],
    "n": [(0, LOW), (129, HIGH)],
    "best_of": [(0, LOW), (129, HIGH)],
    "logprobs": [(-1, LOW), (6, HIGH)],
    "top_logprobs": [(-1, LOW), (21, HIGH)],
    "prompt_logprobs": [(-1, LOW), (21, HIGH)],
    "max_tokens": [(0, LOW), (HUGE, HIGH)],
    "max_completion_tokens": [(0, LOW), (HUGE, HIGH)],
    "max_output_tokens": [(0, LOW), (HUGE, HIGH)],
    "max_tool_calls": [(0, LOW), (HUGE, HIGH)],
    "min_tokens": [(-1, LOW), (HUGE, HIGH)],
    "priority": [(-1, LOW), (HUGE, HIGH)],
    "truncate_prompt_tokens": [(-2, LOW), (0, LOW), (HUGE, HIGH)],
    "dimensions": [(0, LOW), (HUGE, HIGH)],
    "top_n": [(-1, LOW), (HUGE, HIGH)],
    "lora_int_id": [(-1, LOW), (HUGE, HIGH)],
}
"""Values below and above the range of each number, with the code of the error."""
OTHER_RANGES: dict[tuple[str, str], list[tuple[Any, str]]] = {
    (MESSAGES, "temperature"): [(-0.01, BELOW), (1.01, ABOVE)],
    (MESSAGES, "top_k"): [(-1, LOW), (1_000_001, HIGH)],
    (CHAT, "logprobs"): [(1, "invalid_type")],
    (CHAT, "top_p"): [(0, BELOW), (1.01, ABOVE)],
    (TEXT, "top_p"): [(0, BELOW), (1.01, ABOVE)],
    (TEXT, "max_tokens"): [(-1, LOW), (HUGE, HIGH)],
}
"""Where an API's own range differs. `top_p` 0, which OpenAI accepts, is greedy decoding in Responses and Messages. A
completion of no tokens shows its prompt.
"""

TOOL = {"name": "f", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": TOOL}
NO_NAME = {"type": "json_schema", "schema": {}}
RULES: list[tuple[tuple[str, ...], dict[str, Any], str | None, str]] = [
    # model
    ((RESPONSES, CHAT, TEXT, MESSAGES, COUNT), {"model": None}, "missing_required_parameter", "model"),
    (tuple(path for path in BASE_BODIES if path != "/v1/conversations"), {"model": 5}, "invalid_type", "model"),
    # what the model reads
    ((RESPONSES,), {"input": None}, "missing_required_parameter", "input"),
    ((RESPONSES,), {"input": "x" * 10_485_761}, "string_above_max_length", "input"),
    ((RESPONSES,), {"input": [{"type": "telepathy"}]}, "invalid_value", "input[0].type"),
    ((RESPONSES,), {"input": [{"role": "boss", "content": "x"}]}, "invalid_value", "input[0].role"),
    ((RESPONSES,), {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]}, "invalid_value", "input[0].content[0].type"),
    ((RESPONSES,), {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, None, "input"),
    ((RESPONSES,), {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, None, "input"),
    ((RESPONSES,), {"previous_response_id": "abc"}, "invalid_value", "previous_response_id"),
    ((RESPONSES,), {"previous_response_id": "resp_none"}, "previous_response_not_found", "previous_response_id"),
    ((RESPONSES,), {"previous_response_id": "resp_1", "conversation": "conv_1"}, "mutually_exclusive_parameters", "previous_response_id"),
    ((CHAT, MESSAGES, COUNT), {"messages": None}, "missing_required_parameter", "messages"),
    ((CHAT, MESSAGES, COUNT), {"messages": []}, "empty_array", "messages"),
    ((CHAT, MESSAGES, COUNT), {"messages": [{"role": "boss", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ((CHAT,), {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, None, "messages"),
    ((TEXT,), {"prompt": None}, "missing_required_parameter", "prompt"),
    ((MESSAGES,), {"max_tokens": None}, "missing_required_parameter", "max_tokens"),
    (("/v1/embeddings",), {"input": []}, "empty_array", "input"),
    (("/v1/embeddings",), {"input": ""}, "empty_string", "input"),
    (("/v1/embeddings",), {"input": ["a", 1]}, "invalid_type", "input[1]"),
    (("/v1/rerank",), {"documents": []}, "empty_array", "documents"),
    (("/v1/score",), {"text_2": []}, "empty_array", "text_2"),
    (("/tokenize",), {"prompt": None}, "missing_required_parameter", "prompt"),
    (("/detokenize",), {"tokens": None}, "missing_required_parameter", "tokens"),
    (("/detokenize",), {"tokens": [-1]}, "integer_below_min_value", "tokens[0]"),
    # numbers that depend on each other
    ((CHAT, TEXT), {"n": 3, "best_of": 2, "stream": False}, "invalid_value", "best_of"),
    ((CHAT,), {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ((CHAT,), {"max_tokens": 5, "max_completion_tokens": 5}, "invalid_value", "max_tokens"),
    ((MESSAGES,), {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 4096}, "integer_below_min_value", "thinking.budget_tokens"),
    ((MESSAGES,), {"thinking": {"type": "enabled", "budget_tokens": 4096}, "max_tokens": 4096}, "invalid_value", "thinking.budget_tokens"),
    ((RESPONSES, CHAT, TEXT), {"logit_bias": {"5": 100.5}}, ABOVE, "logit_bias.5"),
    ((RESPONSES, CHAT, TEXT), {"logit_bias": {"x": 1}}, "invalid_value", "logit_bias.x"),
    # labels
    ((RESPONSES, CHAT, "/v1/conversations"), {"metadata": {str(i): "x" for i in range(17)}}, "object_above_max_properties", "metadata"),
    ((RESPONSES, CHAT, "/v1/conversations"), {"metadata": {"k" * 65: "x"}}, "string_above_max_length", f"metadata.{'k' * 65}"),
    ((RESPONSES, CHAT, "/v1/conversations"), {"metadata": {"k": "x" * 513}}, "string_above_max_length", "metadata.k"),
    ((MESSAGES,), {"metadata": {"user_id": "x" * 513}}, "string_above_max_length", "metadata.user_id"),
    ((RESPONSES, CHAT), {"safety_identifier": "x" * 129}, "string_above_max_length", "safety_identifier"),
    ((RESPONSES, CHAT), {"prompt_cache_key": "x" * 65}, "string_above_max_length", "prompt_cache_key"),
    ((RESPONSES,), {"truncation": "some"}, "invalid_value", "truncation"),
    ((RESPONSES, CHAT, MESSAGES), {"service_tier": "gold"}, "invalid_value", "service_tier"),
    ((RESPONSES,), {"include": ["all"]}, "invalid_value", "include[0]"),
    # reasoning and the form of the text
    ((RESPONSES,), {"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
    ((RESPONSES,), {"reasoning": {"summary": "long"}}, "invalid_value", "reasoning.summary"),
    ((CHAT,), {"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
    ((MESSAGES, COUNT), {"output_config": {"effort": "huge"}}, "invalid_value", "output_config.effort"),
    ((RESPONSES,), {"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
    ((RESPONSES,), {"text": {"format": NO_NAME}}, "missing_required_parameter", "text.format.name"),
    ((RESPONSES,), {"text": {"format": {**NO_NAME, "name": "a b"}}}, "invalid_value", "text.format.name"),
    ((RESPONSES,), {"text": {"format": {**NO_NAME, "name": "a", "schema": {"$ref": "#/none"}}}}, "invalid_json_schema", "text.format.schema"),
    ((CHAT, TEXT), {"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ((CHAT, TEXT), {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "missing_required_parameter", "response_format.json_schema.name"),
    ((MESSAGES,), {"output_config": {"format": {"type": "xml"}}}, "invalid_value", "output_config.format.type"),
    ((RESPONSES,), {"text": {"verbosity": "loud"}}, "invalid_value", "text.verbosity"),
    ((CHAT,), {"verbosity": "loud"}, "invalid_value", "verbosity"),
    # tools
    ((RESPONSES,), {"tools": [{"type": "function", **TOOL, "name": "a b"}]}, "invalid_value", "tools[0].name"),
    ((CHAT,), {"tools": [{"type": "function", "function": {**TOOL, "name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
    ((MESSAGES, COUNT), {"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "invalid_value", "tools[0].name"),
    ((RESPONSES,), {"tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}]}, "invalid_function_parameters", "tools[0].parameters"),
    ((CHAT,), {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "invalid_function_parameters", "tools[0].function.parameters"),
    ((MESSAGES, COUNT), {"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "invalid_function_parameters", "tools[0].input_schema"),
    ((RESPONSES, CHAT), {"tools": [{"type": "magic"}]}, "invalid_value", "tools[0].type"),
    ((RESPONSES, CHAT, MESSAGES, COUNT), {"tools": [{}] * 129}, "array_above_max_length", "tools"),
    ((RESPONSES, CHAT), {"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ((RESPONSES,), {"tool_choice": {"type": "function", "name": "g"}, "tools": [{"type": "function", **TOOL}]}, "invalid_value", "tool_choice"),
    ((CHAT,), {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [CHAT_TOOL]}, "invalid_value", "tool_choice"),
    ((MESSAGES, COUNT), {"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
    # streams and stored turns
    ((RESPONSES,), {"stream": False, "stream_options": {"include_obfuscation": True}}, "invalid_value", "stream_options"),
    ((CHAT, TEXT), {"stream": False, "stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ((RESPONSES,), {"background": True, "store": False}, "invalid_value", "background"),
]  # fmt: skip
"""Endpoints, fields of the body that are null or replace those of the base body, code and param."""


def has_range(field: RequestField) -> bool:
    """Tells whether a field is a number with bounds."""
    for value in (-(10**30), 10**30):
        try:
            build_check(field.annotation)(value, field.name)
        except ApiError as error:
            if (error.code or "").endswith(("_min_value", "_max_value")):
                return True
    return False


KINDS: dict[str, type[RequestBody]] = {
    path: kind for endpoint, kind in BODIES.items() if (path := endpoint.removeprefix("POST ")) in BASE_BODIES
}


def list_range_rows() -> Iterator[Row]:
    """Yields a row for each value out of range, on every API that has the field."""
    for path, kind in KINDS.items():
        for field in list_fields(kind):
            if field.rule.handling != "refused" and field.name in RANGES:
                for value, code in OTHER_RANGES.get((path, field.name), RANGES[field.name]):
                    yield path, {field.name: value}, code, field.name


ROWS: list[Row] = [
    *list_range_rows(),
    *((path, fields, code, param) for paths, fields, code, param in RULES for path in paths),
    *((path, {"temprature": 1}, "unknown_parameter", "temprature") for path in BASE_BODIES),
]
ROW_IDS = [f"{path}-{str(fields)[:60]}" for path, fields, _, _ in ROWS]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.root) as opened:
        yield opened


def check_error(path: str, reply: httpx.Response, status: int, code: str | None, param: str | None) -> None:
    """Checks that a reply is an error in the shape of the path's API that names the parameter."""
    assert reply.headers["content-type"] == "application/json", "no stream has begun"
    body = reply.json()
    error = body["error"]
    if path in ANTHROPIC:
        assert (reply.status_code, body["type"], body.keys()) == (status, "error", {"type", "error", "request_id"})
        assert error.keys() == {"type", "message"}
        assert param is None or f"'{param}'" in error["message"] or error["message"].startswith(f"{param}: "), error
    else:
        assert body.keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
        assert (reply.status_code, error["code"], error["param"]) == (status, code, param), error
    if status < 500 and status not in (401, 404):
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "fields", "code", "param"), ROWS, ids=ROW_IDS)
def test_invalid_field_is_named_before_any_event(
    client: httpx.Client, path: str, fields: dict[str, Any], code: str | None, param: str
) -> None:
    check_error(path, client.post(path, json=BASE_BODIES[path] | fields), 400, code, param)


def test_every_number_with_a_range_is_in_the_table() -> None:
    found = {field.name for kind in BODIES.values() for field in list_fields(kind) if has_range(field)}
    assert found - RANGES.keys() == set(), "add the field to RANGES"
    assert RANGES.keys() - {field.name for kind in BODIES.values() for field in list_fields(kind)} == set()


@pytest.mark.parametrize("path", BASE_BODIES)
def test_wrong_type_of_any_field_names_it(client: httpx.Client, path: str) -> None:
    """No field takes both a list of empty lists and an object that holds one."""
    is_encoder = path in ("/v1/embeddings", "/v1/rerank", "/v1/score")  # an unknown model comes before a refused field
    for field in list_fields(KINDS[path]):
        if is_encoder and field.rule.handling == "refused":
            continue
        replies = [client.post(path, json=BASE_BODIES[path] | {field.name: value}) for value in ([[[]]], {"\n": [[]]})]
        refusals = [reply for reply in replies if reply.status_code == 400 and field.name in reply.text]
        assert refusals, (field.name, [reply.text for reply in replies])
        assert all("text/event-stream" not in reply.headers["content-type"] for reply in refusals)


@pytest.mark.parametrize("path", BASE_BODIES)
def test_required_field_is_missed_by_name(client: httpx.Client, path: str) -> None:
    """The fields whose description says so are required, and no others of a minimal body."""
    required = {name for name, description in describe_fields(KINDS[path]).items() if is_required(description)}
    for name in required:
        reply = client.post(path, json={**BASE_BODIES[path], name: None})
        if path in ("/v1/embeddings", "/v1/rerank", "/v1/score"):
            assert reply.status_code == 404, "that there is no such model is reported first"
        else:
            check_error(path, reply, 400, "missing_required_parameter", name)
    if path in TURNS:
        conditional = {RESPONSES: {"input"}}.get(path, set())
        assert BASE_BODIES[path].keys() - {"stream"} == required | conditional


@pytest.mark.parametrize("path", BASE_BODIES)
def test_decoder_knows_the_listed_fields_only(client: httpx.Client, path: str) -> None:
    """A field that only other endpoints have is unknown here."""
    own = {field.name for field in list_fields(KINDS[path])}
    others = {field.name for kind in BODIES.values() for field in list_fields(kind)} - own
    for name in sorted(others):
        check_error(path, client.post(path, json=BASE_BODIES[path] | {name: {}}), 400, "unknown_parameter", name)


@pytest.mark.parametrize("path", BASE_BODIES)
def test_body_must_be_a_json_object(client: httpx.Client, path: str) -> None:
    for content in (b"[]", b"{", b'"x"', b"\xff"):
        reply = client.post(path, content=content, headers={"content-type": "application/json"})
        check_error(path, reply, 400, "invalid_json", None)


@pytest.mark.parametrize("path", [path for path in BASE_BODIES if path != "/v1/conversations"])
def test_unknown_model_is_404(client: httpx.Client, path: str) -> None:
    check_error(path, client.post(path, json=BASE_BODIES[path] | {"model": "gpt-9"}), 404, "model_not_found", "model")


@pytest.mark.parametrize("path", TURNS)
def test_prompt_that_is_too_long_is_rejected(client: httpx.Client, path: str) -> None:
    text = "x" * 140_000
    fields = {RESPONSES: {"input": text}, TEXT: {"prompt": text}}
    named = {RESPONSES: "input", TEXT: "prompt"}.get(path, "messages")
    long_body = fields.get(path, {"messages": [{"role": "user", "content": text}]})
    reply = client.post(path, json=BASE_BODIES[path] | long_body)
    if path in ANTHROPIC:  # Anthropic's clients look for these words
        assert reply.status_code == 400 and reply.json()["error"]["message"].startswith("prompt is too long: ")
    else:
        check_error(path, reply, 400, "context_length_exceeded", named)


def test_api_key_is_required_on_every_endpoint(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello."]}], api_keys=("sk-test",))
    for path, body in BASE_BODIES.items():
        reply = httpx.post(server.root + path, json=body)
        check_error(path, reply, 401, "invalid_api_key", None)
