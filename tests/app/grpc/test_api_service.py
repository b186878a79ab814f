"""The calls of `antiphon.proto` against a server: the same events, replies and errors as over HTTP."""

import threading
from functools import partial
from typing import Any

import grpc
import httpx
import pytest

from antiphon.app.grpc import http_call
from antiphon.app.grpc.json_wire import JsonMismatchError
from antiphon.app.projections.chat import ChatStream
from antiphon.engine.protocol import Job
from tests.app.grpc.grpc_helpers import API, ENGINE, Json, as_json, connect, read_status
from tests.clients.sdk_helpers import parse_events, wait_until
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["weather"], "output": ["<think>\nLook it up.\n</think>\n\n", "Let me see.\n", CALL]},
    {"name": "stall", "when": ["stall"], "output": ["Hello ", {"stall": True}]},
    {"name": "silent", "when": ["silent"], "output": [{"stall": True}]},
    {"name": "broken", "when": ["broken"], "output": ["Half", {"fault": "the accelerator is on fire"}]},
    {"name": "full", "when": ["full"], "output": [{"refuse": "no room", "code": "server_is_overloaded"}]},
    {"name": "down", "when": ["down"], "output": [{"refuse": "it is gone", "code": "engine_unavailable"}]},
    {"name": "late", "when": ["late"], "output": [{"refuse": "too late", "code": "deadline_exceeded"}]},
    {"name": "hello", "output": ["Hello, ", "you."]},
]
SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=4), grpc_port=0)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WEATHER = {"model": "scripted", "input": "How is the weather?", "tools": [TOOL]}
RESPONSES, CHAT, COMPLETIONS = f"{API}.Responses", f"{API}.ChatCompletions", f"{API}.Completions"
PER_RUN = ("id", "item_id", "call_id", "created", "created_at", "completed_at")
PATHS = {RESPONSES: "/responses", CHAT: "/chat/completions", COMPLETIONS: "/completions"}


def ask(text: str, **fields: Any) -> Json:
    return {"model": "scripted", "input": text, **fields}


def is_idle(server: RunningServer) -> bool:
    stats = server.engine.stats()
    return (stats.running, stats.waiting) == (0, 0) and not server.context.turn_manager.num_running


def drop_ids(value: Any) -> Any:
    """Returns JSON without what differs between two runs of a request."""
    if isinstance(value, dict):
        return {key: drop_ids(child) for key, child in value.items() if key not in PER_RUN}
    return [drop_ids(child) for child in value] if isinstance(value, list) else value


def choice_number(chunk: Json) -> int:
    return int(chunk["choices"][0]["index"]) if chunk["choices"] else len(SCRIPT)


def test_reflection_lists_the_services(server: RunningServer) -> None:
    with connect(server) as client:
        services = client.database.get_services()
    own = [RESPONSES, CHAT, COMPLETIONS, f"{ENGINE}.VllmEngine"]
    assert set(services) == {*own, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_stream_is_the_stream_of_http(server: RunningServer) -> None:
    with connect(server) as client:
        events = client.stream_json(f"{RESPONSES}/CreateStream", WEATHER)
        response_id = events[-1]["response"]["id"]
        url = f"{server.url}/responses/{response_id}"
        sse = parse_events(httpx.get(url, params={"stream": "true"}).content)
        assert events == sse and events[-1]["response"]["output"][-1]["name"] == "get_weather"
        check_stream(sse)  # equal to the events, but for 1.0 in place of 1
        resumed = client.stream_json(f"{RESPONSES}/RetrieveStream", {"response_id": response_id, "starting_after": 4})
        assert resumed == sse[5:]
        retrieved = as_json(client.call(f"{RESPONSES}/Retrieve", {"response_id": response_id}))
        assert retrieved == httpx.get(url).json() == events[-1]["response"]


@pytest.mark.parametrize(
    ("service", "body"),
    [
        (RESPONSES, WEATHER),
        (CHAT, {"model": "scripted", "messages": [{"role": "user", "content": "weather"}], "logprobs": True, "n": 2}),
        (CHAT, {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "tools": []}),
        (COMPLETIONS, {"model": "scripted", "prompt": ["hi", "ho"], "max_tokens": 5, "logprobs": 1, "echo": True}),
    ],
)
def test_messages_are_the_json_of_http(server: RunningServer, service: str, body: Json) -> None:
    url = server.url + PATHS[service]
    with connect(server) as client:
        reply = as_json(client.call(f"{service}/Create", body))
        assert drop_ids(reply) == drop_ids(httpx.post(url, json=body).json())
        streamed = body if service == RESPONSES else body | {"stream_options": {"include_usage": True}}
        events = client.stream_json(f"{service}/CreateStream", streamed)
        sse = parse_events(httpx.post(url, json=streamed | {"stream": True}).content)
    if body.get("n") == 2 or service == COMPLETIONS:  # choices run at the same time
        events, sse = sorted(events, key=choice_number), sorted(sse, key=choice_number)
    assert drop_ids(events) == drop_ids(sse)


ERRORS: list[tuple[str, Json, grpc.StatusCode]] = [
    (RESPONSES, {"model": "scripted"}, grpc.StatusCode.INVALID_ARGUMENT),
    (RESPONSES, ask("hi", temperature=2.5), grpc.StatusCode.INVALID_ARGUMENT),
    (RESPONSES, {"model": "nope", "input": "hi"}, grpc.StatusCode.NOT_FOUND),
    (RESPONSES, ask("hi", previous_response_id="resp_1"), grpc.StatusCode.INVALID_ARGUMENT),
    (RESPONSES, ask("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RESPONSES, ask("down"), grpc.StatusCode.UNAVAILABLE),
    (RESPONSES, ask("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (CHAT, {"model": "scripted", "messages": []}, grpc.StatusCode.INVALID_ARGUMENT),
    (COMPLETIONS, {"model": "scripted", "prompt": "hi", "best_of": 1, "n": 2}, grpc.StatusCode.INVALID_ARGUMENT),
]


@pytest.mark.parametrize("method", ["Create", "CreateStream"])
@pytest.mark.parametrize(("service", "body", "status"), ERRORS)
def test_error_has_the_body_of_http(
    server: RunningServer, service: str, body: Json, status: grpc.StatusCode, method: str
) -> None:
    expected = httpx.post(server.url + PATHS[service], json=body | {"stream": method == "CreateStream"}).json()["error"]
    with connect(server) as client:
        assert client.read_error(f"{service}/{method}", body) == (status, expected)


@pytest.mark.parametrize("service", [CHAT, COMPLETIONS])
def test_failure_of_a_chunk_stream_is_its_status(server: RunningServer, service: str) -> None:
    prompt: Json = {"messages": [{"role": "user", "content": "broken"}]} if service == CHAT else {"prompt": "broken"}
    received: list[Any] = []
    with connect(server) as client, pytest.raises(grpc.RpcError) as caught:
        received.extend(client.call(f"{service}/CreateStream", {"model": "scripted"} | prompt))
    status, error = read_status(caught.value)
    assert status is grpc.StatusCode.INTERNAL and error["message"] == "the accelerator is on fire"
    assert received and all(message.HasField("choices") for message in received)


def test_failure_of_a_response_is_an_event(server: RunningServer) -> None:
    with connect(server) as client:
        events = client.stream_json(f"{RESPONSES}/CreateStream", ask("broken"))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]


def test_flag_that_contradicts_the_method_is_refused(server: RunningServer) -> None:
    with connect(server) as client:
        status, error = client.read_error(f"{RESPONSES}/Create", ask("hi", stream=True))
        assert (status, error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "stream")
        assert as_json(client.call(f"{RESPONSES}/Create", ask("hi", stream=False)))["status"] == "completed"


@pytest.mark.parametrize(
    ("data", "code"), [(b"\xff\xff", "invalid_message"), (b"\xba\xfa\x01\x01a", "unknown_parameter")]
)
def test_message_that_is_not_understood_is_refused(server: RunningServer, data: bytes, code: str) -> None:
    with connect(server) as client, pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary(f"/{RESPONSES}/Create")(data)
    status, error = read_status(caught.value)
    assert (status, error["code"]) == (grpc.StatusCode.INVALID_ARGUMENT, code)


@pytest.mark.parametrize("response_id", ["", "resp_", "../chat", "resp_1/cancel", "resp_1?stream=true", "resp_1"])
@pytest.mark.parametrize("method", ["Retrieve", "RetrieveStream", "Cancel", "Delete"])
def test_unknown_response_is_not_found(server: RunningServer, response_id: str, method: str) -> None:
    with connect(server) as client:
        status, error = client.read_error(f"{RESPONSES}/{method}", {"response_id": response_id})
    assert status is grpc.StatusCode.NOT_FOUND and response_id[:100] in error["message"]


def test_cancelled_call_frees_the_slot(server: RunningServer) -> None:
    with connect(server) as client:
        for service, body in ((RESPONSES, ask("stall")), (CHAT, {"messages": [{"role": "user", "content": "stall"}]})):
            call = client.call(f"{service}/CreateStream", {"model": "scripted"} | body)
            next(call)
            assert server.engine.stats().running == 1
            call.cancel()
            assert wait_until(5, lambda: is_idle(server))


def test_cancelled_unary_call_frees_the_slot(server: RunningServer) -> None:
    with connect(server) as client:
        caller = threading.Thread(target=client.read_error, args=(f"{RESPONSES}/Create", ask("stall")), daemon=True)
        caller.start()
        assert wait_until(5, lambda: server.engine.stats().running == 1)
        client.channel.close()
        assert wait_until(5, lambda: is_idle(server))
        caller.join(5)


def test_deadline_reaches_the_job(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    generate = server.engine.generate
    monkeypatch.setattr(server.engine, "generate", lambda job, on_chunk: jobs.append(job) or generate(job, on_chunk))
    with connect(server) as client:
        for service in (RESPONSES, COMPLETIONS):
            body = ask("stall") if service == RESPONSES else {"model": "scripted", "prompt": "stall"}
            status, _ = client.read_error(f"{service}/Create", body, timeout=0.5)
            assert status is grpc.StatusCode.DEADLINE_EXCEEDED
            assert wait_until(5, lambda: is_idle(server))
        client.call(f"{RESPONSES}/Create", ask("hi", background=True), timeout=HANG_TIMEOUT_S)
        assert wait_until(5, lambda: is_idle(server))
    assert all(job.deadline is not None and 0 < job.deadline < 1 for job in jobs[:2])
    assert jobs[2].deadline is None, "a background response does not end with its call"


def test_background_response_outlives_its_call(server: RunningServer) -> None:
    with connect(server) as client:
        call = client.call(f"{RESPONSES}/CreateStream", ask("stall", background=True))
        first = as_json(next(call))
        call.cancel()
        name = {"response_id": first["response"]["id"]}
        resumed = client.call(f"{RESPONSES}/RetrieveStream", name | {"starting_after": 0})
        assert as_json(next(resumed))["sequence_number"] == 1
        assert as_json(client.call(f"{RESPONSES}/Cancel", name))["status"] == "cancelled"
        assert as_json(list(resumed)[-1])["response"]["status"] == "cancelled"
        assert as_json(client.call(f"{RESPONSES}/Delete", name))["deleted"] is True
        assert client.read_error(f"{RESPONSES}/Retrieve", name)[0] is grpc.StatusCode.NOT_FOUND
        assert is_idle(server)


def test_conversation_continues_over_both_faces(server: RunningServer) -> None:
    with connect(server) as client:
        first = as_json(client.call(f"{RESPONSES}/Create", ask("hi")))
        body = ask("And now?", previous_response_id=first["id"])
        second = httpx.post(f"{server.url}/responses", json=body).json()
        third = as_json(client.call(f"{RESPONSES}/Create", ask("Yes?", previous_response_id=second["id"])))
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_request_id_is_in_the_metadata_and_in_the_access_log(server: RunningServer) -> None:
    with connect(server) as client:
        call = client.call(f"{RESPONSES}/CreateStream", ask("hi"))
        request_id = dict(call.initial_metadata())["x-request-id"]
        list(call)
    assert wait_until(5, lambda: request_id in {record.request_id for record in server.access_records})


@pytest.mark.parametrize("method", ["Create", "CreateStream"])
def test_bug_of_the_server_is_an_internal_error(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: Any) -> bytes:
        raise JsonMismatchError("a secret of the server")

    monkeypatch.setattr(http_call, "encode_json", fail)
    with connect(server) as client:
        status, error = client.read_error(f"{RESPONSES}/{method}", ask("hi"))
    assert status is grpc.StatusCode.INTERNAL and "secret" not in error["message"]


def test_reply_that_breaks_off_is_an_internal_error(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatStream, "final", lambda _: 1 / 0)
    with connect(server) as client:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        assert client.read_error(f"{CHAT}/CreateStream", body)[0] is grpc.StatusCode.INTERNAL
