"""Faults that a script asks for, as clients see them on a real socket."""

import json
import socket
import time
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from websockets.sync.client import connect

from antiphon.app.context import create_context
from antiphon.app.main.application import build_app
from antiphon.app.options.settings import Settings
from antiphon.app.route_helpers.faulty_replies import FaultyReplies
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.engine.scripted.engine import ScriptError
from antiphon.kit.checker.stream import check_sse
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}


def faulty(name: str, output: list[Any] | None = None, **fault: Any) -> dict[str, Any]:
    return {"name": name, "when": [f"[{name}]"], "output": output or ["Hello", " you", "."], "fault": fault}


SCRIPT = [
    faulty("cut", kind="cut", at="response.output_text.delta", number=2),
    faulty("cut_any", kind="cut", number=2),
    faulty("cut_early", ["Hello", {"stall": True}], kind="cut", number=2),
    faulty("failed_early", ["Hello", {"stall": True}], kind="failed", number=2),
    faulty("reset", kind="reset"),
    faulty("reset_once", kind="reset", times=1),
    faulty("stall", kind="stall"),
    faulty("pause", kind="stall", seconds=0.3),
    faulty("failed", kind="failed", code="rate_limit_exceeded", message="Slow down."),
    faulty("status_once", kind="status", status=429, code="rate_limit_exceeded", retry_after=1, times=1),
    faulty("status", kind="status", message="Gone fishing."),
    faulty("arguments", [CALL], kind="broken_arguments"),
    faulty("ids", ["Look.\n\n", CALL], kind="duplicate_id"),
    faulty("final_id", kind="id_changed"),
    faulty("order", kind="wrong_order"),
    faulty("twice", kind="duplicate_event"),
    faulty("drop", kind="drop_event"),
    faulty("split", kind="split_frame", seconds=0.3),
    faulty("absent", kind="cut", at="response.refusal.delta"),
    {"name": "plain", "output": ["Hello", " you", "."]},
]
SERVER = partial(serve, SCRIPT)

PATHS = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "messages": "/messages",
    "completions": "/completions",
}


def request_body(api: str, name: str, *, stream: bool = True) -> dict[str, Any]:
    text = f"Play [{name}]."
    body: dict[str, Any] = {"model": "scripted", "stream": stream}
    if api == "responses":
        return body | {"input": text, "tools": [RUN]}
    if api == "completions":
        return body | {"prompt": text}
    if api == "messages":
        return body | {"messages": [{"role": "user", "content": text}], "max_tokens": 99}
    tool = {"type": "function", "function": {"name": "run", "parameters": RUN["parameters"]}}
    return body | {"messages": [{"role": "user", "content": text}], "tools": [tool]}


def post(server: RunningServer, name: str, api: str = "responses", *, stream: bool = True) -> httpx.Response:
    return httpx.post(server.url + PATHS[api], json=request_body(api, name, stream=stream), timeout=HANG_TIMEOUT_S)


def find_codes(server: RunningServer, name: str) -> set[str]:
    reply = post(server, name)
    assert reply.status_code == 200
    return {finding.code for finding in check_sse(reply.content) if finding.level == "error"}


def open_socket(server: RunningServer, body: dict[str, Any], path: str = "/v1/responses") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    connection.sendall(head.encode() + b"\r\n" + data)
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("cut", {"terminal-missing", "item-never-done"}),
        ("failed", set()),
        ("arguments", {"arguments-not-json"}),
        ("ids", {"item-id-repeated"}),
        ("final_id", {"output-id-changed"}),
        ("order", {"sequence-gap", "sequence-repeated"}),
        ("twice", {"sequence-repeated", "done-differs-from-deltas"}),
        ("drop", {"sequence-gap", "done-differs-from-deltas"}),
        ("split", set()),
        ("pause", set()),
        ("absent", set()),
        ("plain", set()),
    ],
)
def test_checker_finds_the_fault_of_the_script(server: RunningServer, name: str, codes: set[str]) -> None:
    found = find_codes(server, name)
    assert codes <= found and bool(codes) == bool(found)


def test_cut_ends_the_body_and_closes_the_connection(server: RunningServer) -> None:
    with open_socket(server, request_body("responses", "cut")) as connection:
        data = read_to_end(connection)
    assert data.endswith(b"0\r\n\r\n") and data.count(b"event: response.output_text.delta") == 2


@pytest.mark.parametrize("name", ["cut_early", "failed_early"])
def test_stream_ends_before_the_engine_does(server: RunningServer, name: str) -> None:
    reply = httpx.post(f"{server.url}/responses", json=request_body("responses", name), timeout=8)
    assert reply.text.count("event: response.output_text.delta") == 2
    assert (b"response.failed" in reply.content) == (name == "failed_early")
    wait_idle(server)


def test_reset_is_a_reset_of_the_connection(server: RunningServer) -> None:
    with open_socket(server, request_body("responses", "reset")) as connection:
        data = read_until(connection, b"event: response.output_text.delta")
        with pytest.raises(ConnectionResetError):
            read_to_end(connection)
    assert data.count(b"event: response.output_text.delta") == 1


@pytest.mark.parametrize("api", PATHS)
def test_reset_of_a_reply_in_one_piece_comes_before_it(server: RunningServer, api: str) -> None:
    path = f"/v1{PATHS[api]}"
    connection = open_socket(server, request_body(api, "reset", stream=False), path)
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(65536)


def test_split_frame_arrives_in_two_reads(server: RunningServer) -> None:
    pieces: list[bytes] = []
    times: list[float] = []
    with open_socket(server, request_body("responses", "split")) as connection:
        while not pieces or b"[DONE]" not in pieces[-1]:
            pieces.append(connection.recv(65536))
            times.append(time.monotonic())
    place = next(index for index in range(1, len(times)) if times[index] - times[index - 1] > 0.2)
    before, after = b"".join(pieces[:place]), b"".join(pieces[place:])
    assert before.count(b"event: response.output_text.delta") == 1
    assert b"\n\n" not in before.partition(b"output_text.delta")[2] and b"\n\n" in after


def test_stall_is_silence(server: RunningServer) -> None:
    with open_socket(server, request_body("responses", "stall")) as connection:
        data = read_until(connection, b"event: response.output_text.delta")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            data += read_to_end(connection)
    assert data.count(b"event: response.output_text.delta") == 1
    wait_idle(server)


def wait_idle(server: RunningServer) -> None:
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while server.context.turn_manager.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.context.turn_manager.num_running


@pytest.mark.parametrize("api", PATHS)
def test_stall_of_a_reply_in_one_piece_delays_it(server: RunningServer, api: str) -> None:
    started = time.monotonic()
    assert post(server, "pause", api, stream=False).status_code == 200
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("api", PATHS)
def test_stream_of_every_api_is_cut(server: RunningServer, api: str) -> None:
    whole, cut = post(server, "plain", api).text, post(server, "cut_any", api).text
    assert 0 < cut.count("data: ") < whole.count("data: ")
    assert not cut.endswith("[DONE]\n\n") and "message_stop" not in cut
    wait_idle(server)


def test_status_is_retried_by_the_sdk_after_the_time_asked_for(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=1) as client:
        started = time.monotonic()
        reply = client.responses.create(model="scripted", input="Play [status_once].")
        assert reply.output_text == "Hello you." and 1.0 <= time.monotonic() - started < 5
        statuses = [record.status for record in server.access_records][-2:]
        assert statuses == [429, 200]


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("stream", [True, False])
def test_status_comes_before_any_event(server: RunningServer, api: str, stream: bool) -> None:
    reply = post(server, "status", api, stream=stream)
    assert reply.status_code == 503 and "retry-after" not in reply.headers
    assert reply.json()["error"]["message"] == "Gone fishing."
    assert server.context.turn_manager.num_running == 0


def test_sdk_retries_after_a_reset_and_gives_up_on_a_second_one(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=1) as client:
        assert client.responses.create(model="scripted", input="Play [reset_once].").output_text == "Hello you."
        with pytest.raises(openai.APIConnectionError):
            client.responses.create(model="scripted", input="Play [reset].")


def test_sdk_times_out_in_a_stall(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            client.responses.create(model="scripted", input="Play [stall].")
        wait_idle(server)


def test_sdk_raises_the_failure(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="Slow down"):
            for _ in client.responses.create(model="scripted", input="Play [failed].", stream=True):
                pass
        with pytest.raises(openai.APIError, match="Slow down"):
            for _ in client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "Play [failed]."}], stream=True
            ):
                pass


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_arguments_of_a_reply_in_one_piece_are_broken(server: RunningServer, api: str) -> None:
    reply = post(server, "arguments", api, stream=False).json()
    call = reply["output"][0] if api == "responses" else reply["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["arguments"] == '{"cmd": "ls"'


@pytest.mark.parametrize(
    ("name", "api", "stream", "message"),
    [
        ("cut", "responses", False, "the fault cut applies to streams only"),
        ("ids", "chat", True, "the fault duplicate_id applies to responses only, not to chat"),
        ("arguments", "completions", False, "the fault broken_arguments applies to chat, messages, responses only"),
        ("arguments", "messages", False, "the fault broken_arguments applies to streams of messages only"),
    ],
)
def test_fault_that_does_not_apply_is_a_clear_error(
    server: RunningServer, name: str, api: str, stream: bool, message: str
) -> None:
    reply = post(server, name, api, stream=stream)
    assert reply.status_code == 500 and message in reply.json()["error"]["message"]
    wait_idle(server)


def test_fault_ends_after_its_times(start_server: StartServer) -> None:
    server = start_server([faulty("twice", kind="cut", times=2)])
    ends = [post(server, "twice").content.endswith(b"data: [DONE]\n\n") for _ in range(4)]
    assert ends == [False, False, True, True]


async def test_unknown_kind_is_refused_at_the_start(memory_store: MemoryStore) -> None:
    registry = scripted_registry([{"name": "a", "output": [], "fault": {"kind": "steam"}}])
    with pytest.raises(ScriptError, match="reply 'a': fault: Invalid enum value 'steam'"):
        build_app(create_context(Settings(), registry, store=memory_store))


async def test_only_a_script_with_faults_wraps_the_application(memory_store: MemoryStore) -> None:
    registries = [scripted_registry(script) for script in (SCRIPT, SCRIPT[-1:])]
    apps = [build_app(create_context(Settings(), registry, store=memory_store))._app for registry in registries]
    assert [isinstance(app, FaultyReplies) for app in apps] == [True, False]


def test_websocket_has_no_faults(server: RunningServer) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/v1/responses") as websocket:
        body = {"type": "response.create", "model": "scripted", "input": "Play [cut]."}
        websocket.send(json.dumps(body))
        error = json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))
    assert error["type"] == "error" and "applies to HTTP replies, not to WebSockets" in error["error"]["message"]
    wait_idle(server)


def test_fault_of_a_chat_with_choices_applies_to_its_stream(server: RunningServer) -> None:
    reply = httpx.post(
        f"{server.url}/chat/completions", json=request_body("chat", "cut_any") | {"n": 2}, timeout=HANG_TIMEOUT_S
    )
    assert reply.status_code == 200 and "[DONE]" not in reply.text
    wait_idle(server)


def test_stored_response_shows_the_turn_as_the_engine_ended_it(server: RunningServer) -> None:
    streamed = [
        json.loads(line.removeprefix("data: "))
        for line in post(server, "final_id").text.split("\n")
        if line.startswith("data: {")
    ][-1]["response"]
    stored = httpx.get(f"{server.url}/responses/{streamed['id']}").json()
    assert streamed["output"][0]["id"] == stored["output"][0]["id"] + "_changed"
    replayed = httpx.get(f"{server.url}/responses/{streamed['id']}?stream=true").content
    assert not [finding for finding in check_sse(replayed) if finding.level == "error"]
