"""Turns over a WebSocket, with the openai SDK's connection and frame by frame. Covers row 42 of the hard inputs."""

import json
import logging
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.clients import sdk_helpers
from tests.clients.websocket_turns import KEYS, open_websocket, receive_events, run_turn, send_create
from tests.conftest import StartServer
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
SCRIPT: list[dict[str, Any]] = [
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "on", "when": ["Where was that"], "output": ["In Oslo."]},
    {"name": "answer", "when": ["Sunny"], "output": ["It is sunny."]},
    {
        "name": "call",
        "when": ["weather in Oslo"],
        "output": ["<think>\nAsk.\n</think>\n\n", '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'],
    },
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "slow", "when": ["Slowly"], "output": ["One", {"pause": 0.3}, " two."], "tokens_per_chunk": 1},
    {"name": "long", "when": ["At length"], "output": ["word " * 20_000]},
    {"name": "any", "output": ["Yes."]},
]
USER: Any = {"role": "user", "content": "What is the weather in Oslo?"}


SERVER = partial(serve, SCRIPT, api_keys=KEYS, max_body_bytes=200_000)


def read_error(events: list[dict[str, Any]]) -> tuple[int, str | None, str | None]:
    (event,) = events
    return event["status"], event["error"]["code"], event["error"]["param"]


def test_websocket_events_equal_those_of_a_stream(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        events = run_turn(websocket, [USER], tools=[TOOL])
        again = run_turn(websocket, "Hi")
    check_stream(events)
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    body = {"model": "scripted", "input": [USER], "tools": [TOOL], "stream": True}
    streamed = sdk_helpers.post(f"{server.url}/responses", json=body, headers=headers).text
    assert [event["type"] for event in events] == [
        row[7:] for row in streamed.splitlines() if row.startswith("event: ")
    ]
    assert again[-1]["response"]["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
def test_openai_sdk_runs_two_turns_over_one_connection(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key=KEYS[0]) as client, client.responses.connect() as connection:
        connection.send({"type": "response.create", "model": "scripted", "input": [USER], "tools": [TOOL]})
        first = _receive_response(connection)
        assert first.output[-1].type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
        second_request: Any = {
            "type": "response.create",
            "model": "scripted",
            "input": [output],
            "previous_response_id": first.id,
        }
        connection.send(second_request)
        assert _receive_response(connection).output_text == "It is sunny."


def _receive_response(connection: Any) -> Any:
    for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event.response
    raise AssertionError("the connection ended without a terminal event")


def test_unstored_response_can_be_continued_on_its_connection_only(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        first = run_turn(websocket, [USER], tools=[TOOL], store=False)[-1]["response"]
        call = first["output"][-1]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny"}
        second = run_turn(websocket, [output], previous_response_id=first["id"], store=False)[-1]["response"]
        assert second["output"][0]["content"][0]["text"] == "It is sunny."
        third = run_turn(websocket, "Where was that?", previous_response_id=second["id"], store=False)[-1]["response"]
        assert third["output"][0]["content"][0]["text"] == "In Oslo."
        history = [USER, *first["output"], output, *second["output"], {"role": "user", "content": "Where was that?"}]
        resent = run_turn(websocket, history, store=False)[-1]["response"]
        assert resent["usage"]["input_tokens"] == third["usage"]["input_tokens"], "both give the same prompt"
        assert read_error(run_turn(websocket, "On", previous_response_id=second["id"])) == (400, "previous_response_not_found", "previous_response_id")  # fmt: skip
    with open_websocket(server) as other_websocket:
        _, code, _ = read_error(run_turn(other_websocket, "On", previous_response_id=third["id"]))
        assert code == "previous_response_not_found"


def test_stored_response_can_be_continued_on_another_connection(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        first = run_turn(websocket, [USER])[-1]["response"]
    with open_websocket(server) as websocket:
        events = run_turn(websocket, "Where was that?", previous_response_id=first["id"])
        assert events[-1]["type"] == "response.completed"
    with open_websocket(server, KEYS[1]) as other_websocket:
        _, code, _ = read_error(run_turn(other_websocket, "Hi", previous_response_id=first["id"]))
        assert code == "previous_response_not_found"


def test_generate_false_returns_an_empty_response_that_can_be_continued(server: RunningServer) -> None:
    system = {"role": "developer", "content": "Be brief."}
    with open_websocket(server) as websocket:
        events = run_turn(websocket, [system], tools=[TOOL], store=False, generate=False)
        check_stream(events)
        assert [event["type"].removeprefix("response.") for event in events] == ["created", "in_progress", "completed"]
        warm_up = events[-1]["response"]
        assert warm_up["output"] == [] and warm_up["usage"]["output_tokens"] == 0
        first_events = run_turn(websocket, [USER], tools=[TOOL], store=False, previous_response_id=warm_up["id"])
        first = first_events[-1]["response"]
        full_response = run_turn(websocket, [system, USER], tools=[TOOL], store=False)[-1]["response"]
        assert first["usage"]["input_tokens"] == full_response["usage"]["input_tokens"]
        assert first["output"][-1]["type"] == "function_call"


def test_failed_turn_keeps_the_previous_response(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        first = run_turn(websocket, [USER], tools=[TOOL], store=False)[-1]["response"]
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "Fail"}
        failed = run_turn(websocket, [output], previous_response_id=first["id"], store=False)
        assert [event["type"] for event in failed[-2:]] == ["error", "response.failed"]
        again = run_turn(websocket, [{**output, "output": "Sunny"}], previous_response_id=first["id"], store=False)
        assert again[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("frame", "status", "code", "param"),
    [
        ("{", 400, "invalid_json", None),
        ("[]", 400, "invalid_json", None),
        ({}, 400, "missing_required_parameter", "type"),
        ({"type": "response.inject"}, 400, "invalid_value", "type"),
        ({"type": 5}, 400, "invalid_value", "type"),
        ({"generate": "no"}, 400, "invalid_type", "generate"),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"stream": False}, 400, "unsupported_parameter", "stream"),
        ({"nonsense": 1}, 400, "unknown_parameter", "nonsense"),
        ({"input": 5}, 400, "invalid_type", "input"),
        ({"model": "nobody"}, 404, "model_not_found", "model"),
        ({"temperature": 9}, 400, "decimal_above_max_value", "temperature"),
    ],
    ids=str,
)
def test_invalid_request_returns_an_error_and_keeps_the_connection(
    server: RunningServer, frame: Any, status: int, code: str, param: str | None
) -> None:
    base = {"type": "response.create", "model": "scripted", "input": "Hi"} if frame else {}
    with open_websocket(server) as websocket:
        websocket.send(frame if isinstance(frame, str) else json.dumps({**base, **frame}))
        assert read_error(receive_events(websocket)) == (status, code, param)
        assert run_turn(websocket)[-1]["type"] == "response.completed"


def test_stream_and_client_metadata_of_codex_are_accepted(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        assert run_turn(websocket, stream=True, client_metadata={"session_id": "x"})[-1]["type"] == "response.completed"


def test_second_request_waits_for_the_first(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        send_create(websocket, "Slowly")
        send_create(websocket, "Hi")
        first, second = receive_events(websocket), receive_events(websocket)
        check_stream(first)
        check_stream(second)
        texts = [events[-1]["response"]["output"][0]["content"][0]["text"] for events in (first, second)]
        assert texts == ["One two.", "Yes."]


def _wait_until_idle(server: RunningServer) -> None:
    for _ in range(200):
        if not server.engine.stats().running and not server.context.turn_manager.num_running:
            return
        time.sleep(0.01)
    raise AssertionError("a turn is still running")


def test_disconnect_cancels_the_turn(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        send_create(websocket, "Forever", store=False)
        while json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))["type"] != "response.output_text.delta":
            pass
        assert server.engine.stats().running == 1
        websocket.socket.shutdown(socket.SHUT_RDWR)
        _wait_until_idle(server)


def test_binary_frame_is_rejected(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        websocket.send(b'{"type": "response.create"}')
        assert read_error(receive_events(websocket)) == (400, "invalid_frame", None)
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=HANG_TIMEOUT_S)
        assert closed.value.rcvd and closed.value.rcvd.code == 1003


def test_oversized_frame_is_rejected(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        send_create(websocket, "x" * 300_000)
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=HANG_TIMEOUT_S)
        assert closed.value.rcvd and closed.value.rcvd.code == 1009
    with open_websocket(server) as websocket:
        assert run_turn(websocket)[-1]["type"] == "response.completed"


@pytest.mark.parametrize("parts", [[b"\xff\xfe{"], [b'{"a": "\xc3', b"\xff"]], ids=["one frame", "two frames"])
def test_text_frame_with_invalid_utf8_is_rejected(
    server: RunningServer, parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with open_websocket(server) as websocket:
        websocket.send(iter(parts) if len(parts) > 1 else parts[0], text=True)
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=HANG_TIMEOUT_S)
        assert closed.value.rcvd and (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            1007,
            "the frame is not UTF-8",
        )
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it is the client's fault"


def test_character_may_be_split_over_two_frames(server: RunningServer) -> None:
    data = json.dumps({"type": "response.create", "model": "scripted", "input": "ß"}, ensure_ascii=False).encode()
    cut = data.index("ß".encode()) + 1
    with open_websocket(server) as websocket:
        websocket.send(iter([data[:cut], data[cut:]]), text=True)
        assert receive_events(websocket)[-1]["type"] == "response.completed"


def test_connection_without_pong_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.app.http.websocket_protocol import WebSocketProtocol

    start_keepalive = WebSocketProtocol.start_keepalive

    def start_keepalive_early(self: WebSocketProtocol) -> None:
        self.ping_interval, self.ping_timeout = 0.1, 0.2
        start_keepalive(self)

    monkeypatch.setattr(WebSocketProtocol, "start_keepalive", start_keepalive_early)
    with (
        serve(scripted_registry(SCRIPT)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as connection,
    ):
        connection.sendall(_make_handshake())
        received = b""
        while data := connection.recv(4096):
            received += data
    assert received.startswith(b"HTTP/1.1 101")
    assert received.endswith(b"\x88\x09\x03\xf0no pong"), "close 1008"


def _make_handshake(*headers: str) -> bytes:
    lines = ("GET /v1/responses HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket", *headers)
    return "\r\n".join(
        (*lines, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", "")
    ).encode()


def test_client_that_stops_reading_is_disconnected_and_its_turn_ends() -> None:
    flood = [{"name": "flood", "output": ["x" * 4_000_000, {"stall": True}], "tokens_per_chunk": 4000}]
    with serve(scripted_registry(flood), stall_timeout=0.3) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        frame = json.dumps({"type": "response.create", "model": "scripted", "input": "At length"}).encode()
        mask = bytes(4)
        connection.sendall(_make_handshake())
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")  # bytes that are sent before it would be lost
        connection.sendall(bytes([0x81, 0x80 | len(frame)]) + mask + frame)
        # On a busy machine the connection may have ended before the first look.
        assert sdk_helpers.wait_until(
            30, lambda: server.context.turn_manager.num_running == 1 or bool(server.access_records)
        )
        assert sdk_helpers.wait_until(60, lambda: not server.context.turn_manager.num_running)


def test_request_timeouts_do_not_apply_to_an_open_connection() -> None:
    with (
        serve(scripted_registry(SCRIPT), header_timeout=0.2, body_timeout=0.2, idle_timeout=1) as server,
        open_websocket(server) as websocket,
    ):
        time.sleep(0.6)
        assert run_turn(websocket)[-1]["type"] == "response.completed"


def test_connection_lifetime_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.main.application.CONNECTION_LIFETIME_S", 0.3)
    with (
        serve(scripted_registry(SCRIPT)) as server,
        open_websocket(server) as idle_websocket,
        open_websocket(server) as busy_websocket,
    ):
        send_create(busy_websocket, "Slowly")
        assert read_error(receive_events(idle_websocket))[1] == "websocket_connection_limit_reached"
        assert receive_events(busy_websocket)[-1]["type"] == "response.completed", "a running turn completes"
        assert read_error(receive_events(busy_websocket))[1] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            busy_websocket.recv(timeout=HANG_TIMEOUT_S)


def test_invalid_handshake_returns_an_openai_error(server: RunningServer) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    reply = sdk_helpers.get(f"{server.url}/responses", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_handshake")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_public_endpoints_accept_no_websocket(path: str) -> None:
    with serve(scripted_registry(SCRIPT), api_keys=KEYS) as server:
        with pytest.raises(InvalidStatus) as raised, connect(server.root.replace("http", "ws") + path):
            pass
        assert raised.value.response.status_code == 404
        assert sdk_helpers.get(server.root + path).status_code == 200


def test_foreign_origin_is_rejected_on_a_wildcard_host() -> None:
    with serve(scripted_registry(SCRIPT), host="0.0.0.0") as server:
        url = f"ws://127.0.0.1:{server.port}/v1/responses"
        with pytest.raises(InvalidStatus) as raised, connect(url, origin="https://evil.example"):  # type: ignore[arg-type]
            pass
        assert raised.value.response.status_code == 403
        with connect(url, origin=f"http://127.0.0.1:{server.port}") as websocket:  # type: ignore[arg-type]
            assert run_turn(websocket)[-1]["type"] == "response.completed"


def test_stored_response_cannot_continue_an_unstored_one(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        first = run_turn(websocket, store=False)[-1]["response"]
        error = read_error(run_turn(websocket, "On", previous_response_id=first["id"]))
        assert error == (400, "invalid_value", "store")
        events = run_turn(websocket, "On", previous_response_id=first["id"], store=False)
        assert events[-1]["type"] == "response.completed"


def test_empty_input_is_accepted_after_a_previous_response(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        warm_up = run_turn(websocket, [USER], tools=[TOOL], store=False, generate=False)[-1]["response"]
        events = run_turn(websocket, [], tools=[TOOL], store=False, previous_response_id=warm_up["id"])
        assert events[-1]["response"]["output"][-1]["type"] == "function_call"


@pytest.mark.parametrize(
    ("settings", "path", "headers", "status", "code"),
    [
        ({}, "/responses", {"authorization": "Bearer sk-wrong"}, 401, "invalid_api_key"),
        ({}, "/responses", {}, 401, "invalid_api_key"),
        ({}, "/responses", {"origin": "https://evil.example"}, 403, "origin_not_allowed"),
        ({}, "/chat/completions", {"authorization": f"Bearer {KEYS[0]}"}, 404, "unknown_url"),
        (
            {"enable_websocket": False},
            "/responses",
            {"authorization": f"Bearer {KEYS[0]}"},
            426,
            "upgrade_not_supported",
        ),
    ],
    ids=str,
)
def test_rejected_handshake_returns_the_reason(settings: Any, path: str, headers: Any, status: int, code: str) -> None:
    with serve(scripted_registry(SCRIPT), api_keys=KEYS, **settings) as server:
        with (
            pytest.raises(InvalidStatus) as raised,
            connect(server.url.replace("http", "ws") + path, additional_headers=headers),
        ):
            pass
        reply = raised.value.response
        assert reply.status_code == status and json.loads(reply.body)["error"]["code"] == code
        assert reply.headers["x-request-id"]
        assert server.access_records[-1].status == status


@pytest.mark.parametrize("file", [None, "responses.db"], ids=["memory", "file"])
def test_server_shutdown_fails_the_turn_and_closes_the_connection(file: str | None, tmp_path: Path) -> None:
    settings = {} if file is None else {"store_file": tmp_path / file}
    with (
        serve(scripted_registry(SCRIPT), shutdown_timeout=0.1, **settings) as server,
        open_websocket(server) as websocket,
    ):
        send_create(websocket, "Forever")
        while json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))["type"] != "response.output_text.delta":
            pass
        server.stop()
        assert receive_events(websocket)[-1]["type"] == "response.failed"
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=HANG_TIMEOUT_S)
        assert closed.value.rcvd and closed.value.rcvd.code == 1012


def test_prefill_uses_up_no_reply_of_the_script(start_server: StartServer) -> None:
    script = [{"name": "first", "output": ["First."]}, {"name": "second", "output": ["Second."]}]
    with open_websocket(start_server(script, api_keys=KEYS)) as websocket:
        texts = []
        for options in ({"generate": False}, {}, {"generate": False}, {}):
            response = run_turn(websocket, [USER], **options)[-1]["response"]
            texts += [part["text"] for item in response["output"] for part in item["content"]]
    assert texts == ["First.", "Second."]
