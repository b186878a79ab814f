"""Turns over a WebSocket: through the openai SDK's own connection, and frame by frame. Hard inputs, row 42."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.clients import sdk_helpers
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

KEYS = ("sk-one", "sk-two")
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
SCRIPT: list[dict[str, Any]] = [
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "on", "when": ["Where was that"], "output": ["In Oslo."]},
    {"name": "told", "when": ["Sunny"], "output": ["It is sunny."]},
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


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry(SCRIPT), api_keys=KEYS, max_body_bytes=200_000) as running:
        yield running


@contextmanager
def line(served: RunningServer, key: str = KEYS[0], **more: Any) -> Iterator[ClientConnection]:
    headers = {"authorization": f"Bearer {key}", "openai-beta": "responses_websockets=2026-02-06"}
    address = served.url.replace("http", "ws") + "/responses"
    with connect(address, additional_headers=headers, max_size=None, **more) as opened:
        yield opened


def say(line: ClientConnection, text: Any = "Hi", **more: Any) -> None:
    line.send(json.dumps({"type": "response.create", "model": "scripted", "input": text, **more}))


def hear(line: ClientConnection) -> list[dict[str, Any]]:
    """The events up to a terminal one, or to an error that comes alone."""
    events: list[dict[str, Any]] = []
    while True:
        events.append(json.loads(line.recv(timeout=10)))
        kind = events[-1]["type"]
        if kind in ("response.completed", "response.incomplete", "response.failed") or (
            kind == "error" and "status" in events[-1]
        ):
            return events


def ask(line: ClientConnection, text: Any = "Hi", **more: Any) -> list[dict[str, Any]]:
    say(line, text, **more)
    return hear(line)


def refused(events: list[dict[str, Any]]) -> tuple[int, str | None, str | None]:
    (event,) = events
    return event["status"], event["error"]["code"], event["error"]["param"]


def test_the_events_are_those_of_a_stream_without_an_end_mark(served: RunningServer) -> None:
    with line(served) as opened:
        events = ask(opened, [USER], tools=[TOOL])
        again = ask(opened, "Hi")
    check(events)
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    body = {"model": "scripted", "input": [USER], "tools": [TOOL], "stream": True}
    streamed = sdk_helpers.post(f"{served.url}/responses", json=body, headers=headers).text
    assert [event["type"] for event in events] == [
        row[7:] for row in streamed.splitlines() if row.startswith("event: ")
    ]
    assert again[-1]["response"]["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
def test_the_openai_sdk_talks_over_one_connection(served: RunningServer) -> None:
    with openai.OpenAI(base_url=served.url, api_key=KEYS[0]) as client, client.responses.connect() as connection:
        connection.send({"type": "response.create", "model": "scripted", "input": [USER], "tools": [TOOL]})
        first = _last(connection)
        assert first.output[-1].type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
        told: Any = {
            "type": "response.create",
            "model": "scripted",
            "input": [output],
            "previous_response_id": first.id,
        }
        connection.send(told)
        assert _last(connection).output_text == "It is sunny."


def _last(connection: Any) -> Any:
    for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event.response
    raise AssertionError("it ended without a word")


def test_what_is_not_stored_lives_on_the_connection(served: RunningServer) -> None:
    with line(served) as opened:
        first = ask(opened, [USER], tools=[TOOL], store=False)[-1]["response"]
        call = first["output"][-1]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny"}
        second = ask(opened, [output], previous_response_id=first["id"], store=False)[-1]["response"]
        assert second["output"][0]["content"][0]["text"] == "It is sunny."
        third = ask(opened, "Where was that?", previous_response_id=second["id"], store=False)[-1]["response"]
        assert third["output"][0]["content"][0]["text"] == "In Oslo."
        whole = [USER, *first["output"], output, *second["output"], {"role": "user", "content": "Where was that?"}]
        resent = ask(opened, whole, store=False)[-1]["response"]
        assert resent["usage"]["input_tokens"] == third["usage"]["input_tokens"], "the same prompt, however it came"
        assert refused(ask(opened, "On", previous_response_id=second["id"])) == (400, "previous_response_not_found", "previous_response_id")  # fmt: skip
    with line(served) as another:
        assert refused(ask(another, "On", previous_response_id=third["id"]))[1] == "previous_response_not_found"


def test_what_is_stored_outlives_the_connection(served: RunningServer) -> None:
    with line(served) as opened:
        first = ask(opened, [USER])[-1]["response"]
    with line(served) as opened:
        assert ask(opened, "Where was that?", previous_response_id=first["id"])[-1]["type"] == "response.completed"
    with line(served, KEYS[1]) as others:
        assert refused(ask(others, "Hi", previous_response_id=first["id"]))[1] == "previous_response_not_found"


def test_warming_up_says_nothing_and_can_be_gone_on_from(served: RunningServer) -> None:
    system = {"role": "developer", "content": "Be brief."}
    with line(served) as opened:
        events = ask(opened, [system], tools=[TOOL], store=False, generate=False)
        check(events)
        assert [event["type"].removeprefix("response.") for event in events] == ["created", "in_progress", "completed"]
        warm = events[-1]["response"]
        assert warm["output"] == [] and warm["usage"]["output_tokens"] == 0
        first = ask(opened, [USER], tools=[TOOL], store=False, previous_response_id=warm["id"])[-1]["response"]
        whole = ask(opened, [system, USER], tools=[TOOL], store=False)[-1]["response"]
        assert first["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert first["output"][-1]["type"] == "function_call"


def test_a_turn_that_failed_leaves_the_one_before_it(served: RunningServer) -> None:
    with line(served) as opened:
        first = ask(opened, [USER], tools=[TOOL], store=False)[-1]["response"]
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "Fail"}
        failed = ask(opened, [output], previous_response_id=first["id"], store=False)
        assert [event["type"] for event in failed[-2:]] == ["error", "response.failed"]
        again = ask(opened, [{**output, "output": "Sunny"}], previous_response_id=first["id"], store=False)
        assert again[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("frame", "status", "code", "param"),
    [
        ("{", 400, "invalid_json", None),
        ("[]", 400, "invalid_type", "body"),
        ({}, 400, "missing_required_parameter", "type"),
        ({"type": "response.steer"}, 400, "invalid_value", "type"),
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
def test_a_bad_request_is_an_error_and_the_connection_stays(
    served: RunningServer, frame: Any, status: int, code: str, param: str | None
) -> None:
    base = {"type": "response.create", "model": "scripted", "input": "Hi"} if frame else {}
    with line(served) as opened:
        opened.send(frame if isinstance(frame, str) else json.dumps({**base, **frame}))
        assert refused(hear(opened)) == (status, code, param)
        assert ask(opened)[-1]["type"] == "response.completed"


def test_codex_sends_stream_and_is_understood(served: RunningServer) -> None:
    with line(served) as opened:
        assert ask(opened, stream=True, client_metadata={"session_id": "x"})[-1]["type"] == "response.completed"


def test_one_response_at_a_time(served: RunningServer) -> None:
    with line(served) as opened:
        say(opened, "Slowly")
        say(opened, "Hi")
        events = []
        while not events or events[-1]["type"] != "response.completed":
            events.append(json.loads(opened.recv(timeout=10)))
        (error,) = [event for event in events if event["type"] == "error"]
        assert (error["status"], error["error"]["code"]) == (409, "response_in_progress")
        check([event for event in events if event is not error])
        assert ask(opened)[-1]["type"] == "response.completed"


def test_a_hundred_at_once_end_the_connection_and_the_turn(served: RunningServer) -> None:
    with line(served) as opened:
        for _ in range(100):
            try:
                say(opened, "Forever")
            except ConnectionClosed:
                break
        codes: list[str] = []
        with pytest.raises(ConnectionClosed):
            _errors(opened, codes)
    assert opened.close_code == 1008
    assert set(codes) == {"response_in_progress"} and len(codes) == 16
    _idle(served)


def _errors(line: ClientConnection, codes: list[str]) -> None:
    while True:
        event = json.loads(line.recv(timeout=10))
        codes += [event["error"]["code"]] if event["type"] == "error" else []


def _idle(served: RunningServer) -> None:
    for _ in range(200):
        if not served.engine.stats().running and not served.context.turn_manager.num_running:
            return
        time.sleep(0.01)
    raise AssertionError("a turn goes on for nobody")


def test_whoever_leaves_takes_the_turn_along(served: RunningServer) -> None:
    with line(served) as opened:
        say(opened, "Forever")
        while json.loads(opened.recv(timeout=10))["type"] != "response.output_text.delta":
            pass
        assert served.engine.stats().running == 1
        opened.socket.shutdown(socket.SHUT_RDWR)
        _idle(served)


def test_a_binary_frame_is_refused(served: RunningServer) -> None:
    with line(served) as opened:
        opened.send(b'{"type": "response.create"}')
        assert refused(hear(opened)) == (400, "invalid_frame", None)
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=10)
        assert closed.value.rcvd and closed.value.rcvd.code == 1003


def test_a_giant_frame_is_refused(served: RunningServer) -> None:
    with line(served) as opened:
        say(opened, "x" * 300_000)
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=10)
        assert closed.value.rcvd and closed.value.rcvd.code == 1009
    with line(served) as opened:
        assert ask(opened)[-1]["type"] == "response.completed"


def test_text_that_is_no_text_is_refused(served: RunningServer) -> None:
    with line(served) as opened:
        opened.send(b"\xff\xfe{", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=10)
        assert closed.value.rcvd and closed.value.rcvd.code == 1007


def test_who_answers_no_ping_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.app.http.websocket_protocol import WebSocketProtocol

    begin = WebSocketProtocol.start_keepalive

    def soon(self: WebSocketProtocol) -> None:
        self.ping_interval, self.ping_timeout = 0.1, 0.2
        begin(self)

    monkeypatch.setattr(WebSocketProtocol, "start_keepalive", soon)
    with (
        serve(scripted_registry(SCRIPT)) as quick,
        socket.create_connection(("127.0.0.1", quick.port), timeout=10) as bare,
    ):
        bare.sendall(_handshake())
        answer = b""
        while piece := bare.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 101")
    assert answer.endswith(b"\x88\x09\x03\xf0no pong"), "close 1008"


def _handshake(*more: str) -> bytes:
    lines = ("GET /v1/responses HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket", *more)
    return "\r\n".join(
        (*lines, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", "")
    ).encode()


def test_who_does_not_read_is_cut_off_and_the_turn_ends() -> None:
    with serve(scripted_registry(SCRIPT), stall_timeout=0.3) as strict, socket.socket() as bare:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.connect(("127.0.0.1", strict.port))
        text = json.dumps({"type": "response.create", "model": "scripted", "input": "At length"}).encode()
        mask = bytes(4)
        bare.sendall(_handshake() + bytes([0x81, 0x80 | len(text)]) + mask + text)
        time.sleep(0.5)
        _idle(strict)


def test_a_connection_outlives_the_deadlines_of_requests() -> None:
    with (
        serve(scripted_registry(SCRIPT), header_timeout=0.2, body_timeout=0.2, idle_timeout=1) as strict,
        line(strict) as opened,
    ):
        time.sleep(0.6)
        assert ask(opened)[-1]["type"] == "response.completed"


def test_a_connection_has_a_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.server.CONNECTION_LIFETIME_S", 0.3)
    with serve(scripted_registry(SCRIPT)) as brief, line(brief) as idle, line(brief) as busy:
        say(busy, "Slowly")
        assert refused(hear(idle))[1] == "websocket_connection_limit_reached"
        assert hear(busy)[-1]["type"] == "response.completed", "what runs is not cut"
        assert refused(hear(busy))[1] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            busy.recv(timeout=5)


def test_a_handshake_that_is_none_is_answered_like_everything_else(served: RunningServer) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    reply = sdk_helpers.get(f"{served.url}/responses", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_handshake")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_what_is_open_to_all_opens_no_socket(path: str) -> None:
    with serve(scripted_registry(SCRIPT), api_keys=KEYS) as locked:
        with pytest.raises(InvalidStatus) as raised, connect(locked.root.replace("http", "ws") + path):
            pass
        assert raised.value.response.status_code == 404
        assert sdk_helpers.get(locked.root + path).status_code == 200


def test_a_page_of_another_site_opens_no_socket_even_where_any_name_will_do() -> None:
    with serve(scripted_registry(SCRIPT), host="0.0.0.0") as wide:
        address = f"ws://127.0.0.1:{wide.port}/v1/responses"
        with pytest.raises(InvalidStatus) as raised, connect(address, origin="https://evil.example"):  # type: ignore[arg-type]
            pass
        assert raised.value.response.status_code == 403
        with connect(address, origin=f"http://127.0.0.1:{wide.port}") as opened:  # type: ignore[arg-type]
            assert ask(opened)[-1]["type"] == "response.completed"


def test_what_is_stored_does_not_lean_on_what_is_not(served: RunningServer) -> None:
    with line(served) as opened:
        first = ask(opened, store=False)[-1]["response"]
        assert refused(ask(opened, "On", previous_response_id=first["id"])) == (400, "invalid_value", "store")
        assert ask(opened, "On", previous_response_id=first["id"], store=False)[-1]["type"] == "response.completed"


def test_nothing_new_is_something_where_something_was_said(served: RunningServer) -> None:
    with line(served) as opened:
        warm = ask(opened, [USER], tools=[TOOL], store=False, generate=False)[-1]["response"]
        said = ask(opened, [], tools=[TOOL], store=False, previous_response_id=warm["id"])[-1]["response"]
        assert said["output"][-1]["type"] == "function_call"


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
def test_who_is_not_let_in_hears_why(settings: Any, path: str, headers: Any, status: int, code: str) -> None:
    with serve(scripted_registry(SCRIPT), api_keys=KEYS, **settings) as strict:
        with (
            pytest.raises(InvalidStatus) as raised,
            connect(strict.url.replace("http", "ws") + path, additional_headers=headers),
        ):
            pass
        reply = raised.value.response
        assert reply.status_code == status and json.loads(reply.body)["error"]["code"] == code
        assert reply.headers["x-request-id"]
        assert strict.access_records[-1].status == status


def test_a_server_that_goes_ends_the_turn_properly() -> None:
    with serve(scripted_registry(SCRIPT), shutdown_timeout=0.1) as going, line(going) as opened:
        say(opened, "Forever")
        while json.loads(opened.recv(timeout=10))["type"] != "response.output_text.delta":
            pass
        going.stop()
        assert hear(opened)[-1]["type"] == "response.failed"
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=10)
        assert closed.value.rcvd and closed.value.rcvd.code == 1012
