"""Chunked streams, which are written past h11, while h11's connection state continues as if it had written them."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon.app.http.protocol import ChunkedResponse
from antiphon.app.http.request_state import SCOPE_KEY, RequestState
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.responses import ResponsesStream
from antiphon.app.route_helpers.event_stream import EventStreamResponse
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.base import Event
from tests.app.http.socket_client import SocketClient, connect, read_to_end
from tests.app.server_helpers import wait_until
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.state.machine_helpers import INITIAL_RESPONSE, create_machine

REQUEST_BODY = json.dumps({"model": "scripted", "input": "hi", "stream": True}).encode()
LONG_OUTPUT = "word " * 24_000
"""Output that is nearly 2 MB of events at 16 tokens a chunk, and fits into the context."""


def build_stream_request(version: str = "1.1", *headers: str) -> bytes:
    lines = (f"POST /v1/responses HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, f"Content-Length: {len(REQUEST_BODY)}", "", "")).encode() + REQUEST_BODY


SERVER = partial(serve, [{"name": "hello", "output": ["Hello, ", "you."], "tokens_per_chunk": 1}])


def test_connection_is_reused_after_a_stream(server: RunningServer) -> None:
    with connect(server) as client:
        http_client = SocketClient(client)
        for _ in range(3):
            http_client.send_request("/v1/responses", body=REQUEST_BODY)
            status, body = http_client.read_reply()
            assert status == 200 and body.endswith(b"data: [DONE]\n\n")
            http_client.send_request("/health")
            assert http_client.read_reply() == (200, b'{"status":"ok"}')


@pytest.mark.parametrize("error", [TimeoutError("late"), ValueError("odd")], ids=["an OSError", "another"])
def test_fault_while_bytes_are_parsed_is_answered_and_logged(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """uvloop closes the connection for any exception, and logs none that is an `OSError`."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(H11Protocol, "data_received", fail)
    with capture_logs() as logs, connect(server) as client:
        client.sendall(build_stream_request())
        reply = read_to_end(client)
    assert reply.startswith(b"HTTP/1.1 500 ") and b'"code":"server_error"' in reply
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("unhandled exception while a request was received", "error")
    ]


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(
            build_stream_request() + build_stream_request() + build_stream_request("1.1", "Connection: close")
        )
        replies = read_to_end(client)
    assert replies.count(b"HTTP/1.1 200") == replies.count(b"data: [DONE]\n\n\r\n0\r\n\r\n") == 3


def test_only_the_last_chunk_is_empty(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(build_stream_request("1.1", "Connection: close"))
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower() and b"connection: close" in head.lower()
    sizes = []
    while body:
        size, _, body = body.partition(b"\r\n")
        sizes.append(int(size, 16))
        assert body[sizes[-1] :].startswith(b"\r\n")
        body = body[sizes[-1] + 2 :]
    assert sizes[-1] == 0 and 0 not in sizes[:-1]


def test_http_1_0_client_gets_the_stream_without_chunks(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(build_stream_request("1.0"))
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(b"event: response.created\n") and body.endswith(b"data: [DONE]\n\n")


def test_slow_reader_does_not_delay_the_turn_and_gets_every_event(start_server: StartServer) -> None:
    server = start_server([{"name": "long", "output": [LONG_OUTPUT], "tokens_per_chunk": 16}])
    with connect(server, receive_buffer=4096) as client:
        client.sendall(build_stream_request("1.1", "Connection: close"))
        assert wait_until(60, lambda: server.engine.stats().finished_jobs == 1), "the turn ends without a reader"
        recent = server.context.store.debug.logs.recent
        assert wait_until(60, lambda: list(recent)), "its last step is stored"
        log = next(iter(recent))
        reply = read_to_end(client)
    assert reply.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    num_deltas = sum(b"text.delta" in entry.data for entry in log.entries)
    assert reply.count(b"event: response.output_text.delta") == num_deltas


def test_disconnect_of_a_slow_reader_cancels_the_turn(start_server: StartServer) -> None:
    server = start_server([{"name": "endless", "output": [LONG_OUTPUT, {"stall": True}], "tokens_per_chunk": 16}])
    with connect(server, receive_buffer=4096) as client:
        client.sendall(build_stream_request())
        assert wait_until(60, lambda: server.engine.stats().generated_tokens == len(LONG_OUTPUT))
        assert server.engine.stats().running == server.context.turn_manager.num_running == 1
    assert wait_until(60, lambda: server.engine.stats().running == server.context.turn_manager.num_running == 0)


# Without a socket


class FakeProtocol:
    """Records the chunks that a response writes and the messages that it passes on to h11. `reads` pauses writing."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.messages: list[Any] = []
        self.disconnected = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.transport = SimpleNamespace(write=self.chunks.append)

    @property
    def flow(self) -> Any:
        return SimpleNamespace(write_paused=not self.reads.is_set(), drain=self.reads.wait)

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    def create_response(self, **scope: str) -> ChunkedResponse:
        scope = {"http_version": "1.1", "method": "POST", **scope}
        return ChunkedResponse(scope, self, self.send)  # type: ignore[arg-type]


def make_start_message(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


END_MESSAGE = {"type": "http.response.body", "body": b"", "more_body": False}


async def test_chunks_are_written_directly_and_head_and_end_by_h11() -> None:
    protocol = FakeProtocol()
    response = protocol.create_response()
    await response.send(make_start_message())
    for piece in (b"a" * 300, b"", b"b"):
        response.write_chunk(piece)
    await response.send(END_MESSAGE)
    assert protocol.chunks == [b"12c\r\n" + b"a" * 300 + b"\r\n", b"1\r\nb\r\n"]
    assert protocol.messages == [make_start_message(), END_MESSAGE]


@pytest.mark.parametrize(
    ("start", "scope"),
    [
        (make_start_message((b"content-length", b"3")), {}),
        (make_start_message((b"Content-Length", b"3")), {}),
        (make_start_message(status=204), {}),
        (make_start_message(), {"http_version": "1.0"}),
        (make_start_message(), {"method": "HEAD"}),
    ],
)
async def test_response_without_chunks_is_written_by_h11(start: Any, scope: Any) -> None:
    response = FakeProtocol().create_response(**scope)
    assert not response.can_write, "False before the head, whatever it is"
    await response.send(start)
    assert not response.can_write


async def test_drain_waits_while_the_client_does_not_read() -> None:
    protocol = FakeProtocol()
    response = protocol.create_response()
    await response.send(make_start_message())
    assert response.can_write and not response.write_paused
    protocol.reads.clear()
    draining = asyncio.create_task(response.drain())
    await asyncio.sleep(0.01)
    assert response.write_paused and not draining.done()
    protocol.reads.set()
    await draining
    assert not response.write_paused


async def test_disconnected_client_is_neither_written_to_nor_waited_for() -> None:
    protocol = FakeProtocol()
    response = protocol.create_response()
    await response.send(make_start_message())
    protocol.reads.clear()
    protocol.disconnected = True
    response.write_chunk(b"a")
    await response.drain()
    assert protocol.chunks == [] and not response.write_paused


class RecordedStream:
    """An event stream response: the ASGI messages it sends, and whether its reader was entered and left."""

    def __init__(self, encoder: StreamEncoder) -> None:
        self.reader_events: list[str] = []
        self.messages: list[Any] = []
        self.disconnect = asyncio.Event()
        self._encoder = encoder

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.reader_events.append("entered")
        try:
            yield
        finally:
            self.reader_events.append("left")

    async def run(self) -> None:
        async def receive() -> Any:
            await self.disconnect.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.messages.append(message)

        response: Any = EventStreamResponse(self._encoder, self.reading()).to_asgi_response()
        scope = {"type": "http", "method": "POST", "path": "/v1/responses", SCOPE_KEY: RequestState()}
        await response(scope, receive, send)


def make_log(*steps: list[Event], ended: bool) -> EventLog:
    log = EventLog(INITIAL_RESPONSE, "")
    for step in steps:
        log.append_step(step)
    if ended:
        log.end_log()
    return log


async def test_stream_is_a_head_chunks_and_an_end() -> None:
    stream = RecordedStream(ResponsesStream(make_log(create_machine().begin(), ended=True)))
    await stream.run()
    start, *bodies = stream.messages
    assert [message.get("more_body") for message in stream.messages] == [None, True, True, False]
    assert [message["body"][:21] for message in bodies] == [b"event: response.creat", b"data: [DONE]\n\n", b""]
    assert (b"cache-control", b"no-cache") in start["headers"]
    assert stream.reader_events == ["entered", "left"]


async def test_client_disconnect_ends_the_reader() -> None:
    log = make_log(create_machine().begin(), ended=False)
    stream = RecordedStream(ResponsesStream(log))
    running = asyncio.create_task(stream.run())
    await asyncio.sleep(0.01)
    assert log.open_readers
    stream.disconnect.set()
    await asyncio.wait_for(running, HANG_TIMEOUT_S)
    assert stream.reader_events == ["entered", "left"] and len(stream.messages) == 2 and not log.open_readers


async def test_disconnect_before_the_stream_still_enters_the_reader() -> None:
    """The exit of the reader cancels the turn, so the reader is entered in any case."""
    stream = RecordedStream(ResponsesStream(make_log(ended=False)))
    stream.disconnect.set()
    await asyncio.wait_for(stream.run(), HANG_TIMEOUT_S)
    assert stream.reader_events == ["entered", "left"]


async def test_error_in_a_stream_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(ResponsesStream, "encode", raise_error)
    stream = RecordedStream(ResponsesStream(make_log(create_machine().begin(), ended=True)))
    with pytest.raises(ZeroDivisionError):
        await stream.run()
    assert END_MESSAGE not in stream.messages, "the reply stays incomplete, which its reader notices"
