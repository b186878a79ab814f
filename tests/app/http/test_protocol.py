"""Streams on a bare socket: chunks that are written past h11, and h11 that goes on as if it had written them."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from antiphon.app.event_log import EventLog
from antiphon.app.http.protocol import ChunkedResponse
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.responses import ResponsesStream
from antiphon.app.routes.event_stream import EventStreamResponse
from antiphon.events.base import Event
from tests.conftest import Serve
from tests.serving import RunningServer, serve
from tests.state.machine_helpers import HEAD, machine

BODY = json.dumps({"model": "scripted", "input": "hi", "stream": True}).encode()
LONG = "word " * 24_000
"""In steps of 16 letters nearly 2 MB of events, and within the context."""


def request(version: str = "1.1", *headers: str) -> bytes:
    lines = (f"POST /v1/responses HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, f"Content-Length: {len(BODY)}", "", "")).encode() + BODY


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with serve([{"name": "hello", "output": ["Hello, ", "you."], "tokens_per_chunk": 1}]) as running:
        yield running


@contextmanager
def connected(served: RunningServer, *, buffer: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as line:
        if buffer:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        line.settimeout(20)
        line.connect(("127.0.0.1", served.port))
        yield line


class Reader:
    """Reads answers with h11, which refuses whatever is no HTTP."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.conn = line, h11.Connection(h11.CLIENT)

    def ask(self, target: str, *headers: tuple[str, str], body: bytes = b"") -> None:
        pairs = [("host", "localhost"), *headers]
        if body:
            pairs += [("content-type", "application/json"), ("content-length", str(len(body)))]
        said = self.conn.send(h11.Request(method="POST" if body else "GET", target=target, headers=pairs))
        assert said is not None
        self.line.sendall(
            said + (self.conn.send(h11.Data(data=body)) or b"") + (self.conn.send(h11.EndOfMessage()) or b"")
        )

    def answer(self) -> tuple[int, bytes]:
        status, body = 0, b""
        while not isinstance(event := self.conn.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self.conn.receive_data(self.line.recv(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
            self.conn.start_next_cycle()
        return status, body


def whole(line: socket.socket) -> bytes:
    got = b""
    while piece := line.recv(65536):
        got += piece
    return got


def test_a_connection_lives_on_after_a_stream(served: RunningServer) -> None:
    with connected(served) as line:
        reader = Reader(line)
        for _ in range(3):
            reader.ask("/v1/responses", body=BODY)
            status, body = reader.answer()
            assert status == 200 and body.endswith(b"data: [DONE]\n\n")
            reader.ask("/health")
            assert reader.answer() == (200, b'{"status":"ok"}')


def test_requests_sent_at_once_are_answered_one_after_the_other(served: RunningServer) -> None:
    with connected(served) as line:
        line.sendall(request() + request() + request("1.1", "Connection: close"))
        got = whole(line)
    assert got.count(b"HTTP/1.1 200") == got.count(b"data: [DONE]\n\n\r\n0\r\n\r\n") == 3


def test_no_chunk_is_empty_but_the_last(served: RunningServer) -> None:
    with connected(served) as line:
        line.sendall(request("1.1", "Connection: close"))
        head, _, rest = whole(line).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower() and b"connection: close" in head.lower()
    sizes = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        assert rest[sizes[-1] :].startswith(b"\r\n")
        rest = rest[sizes[-1] + 2 :]
    assert sizes[-1] == 0 and 0 not in sizes[:-1]


def test_an_old_client_gets_the_stream_bare_and_its_end_is_the_end(served: RunningServer) -> None:
    with connected(served) as line:
        line.sendall(request("1.0"))
        head, _, rest = whole(line).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b"event: response.created\n") and rest.endswith(b"data: [DONE]\n\n")


def wait_for(fact: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not fact() and time.monotonic() < end:
        time.sleep(0.02)
    return fact()


def test_a_slow_reader_holds_nobody_up_and_gets_everything(server: Serve) -> None:
    served = server([{"name": "long", "output": [LONG], "tokens_per_chunk": 16}])
    with connected(served, buffer=4096) as line:
        line.sendall(request("1.1", "Connection: close"))
        assert wait_for(lambda: served.engine.stats().finished_jobs == 1), "the turn ends though nobody reads"
        log = next(iter(served.context.store._logs.values()))  # type: ignore[attr-defined]
        got = whole(line)
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert got.count(b"event: response.output_text.delta") == sum(b"text.delta" in f.data for f in log.entries)


def test_a_reader_that_leaves_with_the_answer_stuck_takes_the_turn_along(server: Serve) -> None:
    served = server([{"name": "endless", "output": [LONG, {"stall": True}], "tokens_per_chunk": 16}])
    with connected(served, buffer=4096) as line:
        line.sendall(request())
        assert wait_for(lambda: served.engine.stats().generated_tokens == len(LONG))
        assert served.engine.stats().running == served.context.turn_manager.num_running == 1
    assert wait_for(lambda: served.engine.stats().running == 0 and served.context.turn_manager.num_running == 0)


# Without a socket


class Wire:
    """What an answer is written on, and whether the client reads."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.passed: list[Any] = []
        self.disconnected = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.transport = SimpleNamespace(write=self.said.append)

    @property
    def flow(self) -> Any:
        return SimpleNamespace(write_paused=not self.reads.is_set(), drain=self.reads.wait)

    async def send(self, message: Any) -> None:
        self.passed.append(message)

    def answer(self, **scope: str) -> ChunkedResponse:
        asked = {"http_version": "1.1", "method": "POST", **scope}
        return ChunkedResponse(asked, self, self.send)  # type: ignore[arg-type]


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


END = {"type": "http.response.body", "body": b"", "more_body": False}


async def test_pieces_are_chunks_and_the_head_and_the_end_are_left_to_h11() -> None:
    wire = Wire()
    answer = wire.answer()
    await answer.send(start())
    for piece in (b"a" * 300, b"", b"b"):
        answer.write_chunk(piece)
    await answer.send(END)
    assert wire.said == [b"12c\r\n" + b"a" * 300 + b"\r\n", b"1\r\nb\r\n"]
    assert wire.passed == [start(), END]


@pytest.mark.parametrize(
    ("begun", "scope"),
    [
        (start((b"content-length", b"3")), {}),
        (start((b"Content-Length", b"3")), {}),
        (start(status=204), {}),
        (start(), {"http_version": "1.0"}),
        (start(), {"method": "HEAD"}),
    ],
)
async def test_what_is_not_in_chunks_is_left_to_h11(begun: Any, scope: Any) -> None:
    answer = Wire().answer(**scope)
    assert not answer.can_write, "before the head it is never"
    await answer.send(begun)
    assert not answer.can_write


async def test_an_answer_is_stuck_while_the_client_does_not_read() -> None:
    wire = Wire()
    answer = wire.answer()
    await answer.send(start())
    assert answer.can_write and not answer.write_paused
    wire.reads.clear()
    waiting = asyncio.create_task(answer.drain())
    await asyncio.sleep(0.01)
    assert answer.write_paused and not waiting.done()
    wire.reads.set()
    await waiting
    assert not answer.write_paused


async def test_a_client_that_has_left_is_neither_written_to_nor_waited_for() -> None:
    wire = Wire()
    answer = wire.answer()
    await answer.send(start())
    wire.reads.clear()
    wire.disconnected = True
    answer.write_chunk(b"a")
    await answer.drain()
    assert wire.said == [] and not answer.write_paused


class Story:
    """A stream of one short turn, and what became of its reader."""

    def __init__(self, telling: StreamEncoder) -> None:
        self.events: list[str] = []
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self._telling = telling

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.events.append("came")
        try:
            yield
        finally:
            self.events.append("left")

    async def run(self) -> None:
        async def receive() -> Any:
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        answer: Any = EventStreamResponse(self._telling, self.reading()).to_asgi_response()
        await answer({}, receive, send)


def log_of(*steps: list[Event], ended: bool) -> EventLog:
    log = EventLog(HEAD, "")
    for step in steps:
        log.append_step(step)
    if ended:
        log.end_log()
    return log


async def test_a_stream_is_its_head_its_pieces_and_an_end() -> None:
    story = Story(ResponsesStream(log_of(machine().begin(), ended=True)))
    await story.run()
    assert [message.get("more_body") for message in story.sent] == [None, True, True, False]
    assert [message["body"][:21] for message in story.sent[1:]] == [b"event: response.creat", b"data: [DONE]\n\n", b""]
    assert (b"cache-control", b"no-cache") in story.sent[0]["headers"]
    assert story.events == ["came", "left"]


async def test_a_client_that_leaves_ends_the_reading() -> None:
    log = log_of(machine().begin(), ended=False)
    story = Story(ResponsesStream(log))
    running = asyncio.create_task(story.run())
    await asyncio.sleep(0.01)
    assert log._readings
    story.gone.set()
    await asyncio.wait_for(running, 5)
    assert story.events == ["came", "left"] and len(story.sent) == 2 and not log._readings


async def test_a_client_that_had_left_before_has_come_all_the_same() -> None:
    """Leaving is what cancels its turn."""
    story = Story(ResponsesStream(log_of(ended=False)))
    story.gone.set()
    await asyncio.wait_for(story.run(), 5)
    assert story.events == ["came", "left"]


async def test_a_fault_in_a_stream_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(ResponsesStream, "encode", breaks)
    story = Story(ResponsesStream(log_of(machine().begin(), ended=True)))
    with pytest.raises(ZeroDivisionError):
        await story.run()
    assert END not in story.sent, "the answer stays unfinished: whoever reads it knows"
