"""One connection: slices of work, limits at their value and one after, silence. The bytes come without a socket."""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.engine.remote.transport.connection import (
    MAX_BYTES_WITHOUT_BODY,
    MAX_ERROR_BODY_BYTES,
    SLICE_BYTES,
    HttpConnection,
    HttpResponse,
    RemoteConnectionError,
    SilenceTimeoutError,
)
from tests.engine.remote.transport.raw_server import CHUNKED, END_CHUNK, chunk, ok
from tests.engine.remote.transport.recording_sink import RecordingSink
from tests.progress import HANG_TIMEOUT_S

LIMIT = 1000
"""Maximum size of the bodies of these tests."""


@pytest.fixture(autouse=True)
async def loop_errors() -> AsyncIterator[list[dict[str, Any]]]:
    """The errors that no code handles. A test fails if there is one."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    yield errors
    gc.collect()
    assert errors == []


class FakeTransport:
    """Notes what the connection does. Like uvloop's, it refuses to pause once it is closing."""

    def __init__(self, sock: object = None) -> None:
        self.is_paused = self.is_aborted = False
        self.num_pauses = 0
        self._socket = sock

    def get_extra_info(self, _: str) -> object:
        return self._socket

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, _: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        assert not self.is_aborted
        self.is_paused = True
        self.num_pauses += 1

    def resume_reading(self) -> None:
        assert not self.is_aborted
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True


class Exchange:
    """A request in flight on a connection without a socket."""

    def __init__(self, sink: RecordingSink | None = None, silence_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self.connection, self.transport = HttpConnection(), FakeTransport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        exchange = self.connection.exchange(b"request", sink, silence_timeout_s=silence_timeout_s, max_body_bytes=LIMIT)
        self.task = asyncio.ensure_future(exchange)

    async def repeat(self, *data: bytes, sink: RecordingSink | None = None) -> HttpResponse:
        """Sends another request on the connection. Returns the response that these bytes complete."""
        options: dict[str, Any] = {"silence_timeout_s": HANG_TIMEOUT_S, "max_body_bytes": LIMIT}
        self.task = asyncio.ensure_future(self.connection.exchange(b"request", sink, **options))
        await asyncio.sleep(0)
        for each in data:
            self.connection.data_received(each)
        return await self.finish()

    def age(self, seconds: float) -> None:
        """Sets the time of the last output back."""
        self.connection._progress_at -= seconds

    def check_silence(self) -> None:
        """Runs the check of a timeout of 10 s."""
        self.connection._check_silence(10)

    async def finish(self) -> HttpResponse:
        """Returns the response that the bytes so far complete."""
        async with asyncio.timeout(HANG_TIMEOUT_S):
            return await self.task


async def start_exchange(*data: bytes, sink: RecordingSink | None = None, **options: Any) -> Exchange:
    """Returns an exchange that has received these bytes."""
    exchange = Exchange(sink, **options)
    await asyncio.sleep(0)
    for each in data:
        exchange.connection.data_received(each)
    return exchange


def head_of(size: int) -> bytes:
    """Returns the head of a response with one long header, of this size."""
    start, end = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


class TestLimits:
    """A limit holds at its value and is exceeded one after."""

    async def test_header_without_an_end_is_an_error(self) -> None:
        for extra, is_error in ((0, False), (1, True)):
            exchange = await start_exchange()
            data = b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_BYTES_WITHOUT_BODY
            data = data[: MAX_BYTES_WITHOUT_BODY + extra]
            for start in range(0, len(data), SLICE_BYTES):
                exchange.connection.data_received(data[start : start + SLICE_BYTES])
            await asyncio.sleep(0)
            assert exchange.task.done() is is_error
            exchange.task.cancel()
            with pytest.raises(RemoteConnectionError if is_error else asyncio.CancelledError):
                await exchange.task

    @pytest.mark.parametrize(
        "part",
        [b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"],
        ids=["hints", "continue"],
    )
    async def test_endless_interim_responses_are_an_error(self, part: bytes) -> None:
        exchange = await start_exchange(*[part] * (MAX_BYTES_WITHOUT_BODY // len(part) + 1))
        with pytest.raises(RemoteConnectionError, match=f"more than {MAX_BYTES_WITHOUT_BODY} bytes of headers"):
            await exchange.finish()

    async def test_endless_extension_of_a_chunk_is_an_error(self) -> None:
        extension = [b"x" * SLICE_BYTES] * (MAX_BYTES_WITHOUT_BODY // SLICE_BYTES)
        exchange = await start_exchange(CHUNKED, chunk(b"body"), b"5;ext=", *extension, sink=RecordingSink())
        with pytest.raises(RemoteConnectionError):
            await exchange.finish()

    async def test_head_that_ends_just_beyond_the_limit_is_complete(self) -> None:
        head = head_of(MAX_BYTES_WITHOUT_BODY + 1)
        exchange = await start_exchange(*(head[n : n + SLICE_BYTES] for n in range(0, len(head), SLICE_BYTES)))
        assert (await exchange.finish()).status == 200
        assert exchange.connection.is_reusable

    async def test_body_resets_the_count_of_bytes_without_body(self) -> None:
        head = head_of(MAX_BYTES_WITHOUT_BODY - 10).replace(b"Content-Length: 0", b"Content-Length: 2")
        pieces = [head[n : n + SLICE_BYTES] for n in range(0, len(head), SLICE_BYTES)]
        exchange = await start_exchange(*pieces, b"a", b"b")
        assert (await exchange.finish()).body == b"ab"

    @pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
    async def test_body_of_the_maximum_size(self, size: int) -> None:
        exchange = await start_exchange(ok(b"x" * size))
        if size == LIMIT:
            assert len((await exchange.finish()).body) == LIMIT
            return
        with pytest.raises(RemoteConnectionError, match=f"more than {LIMIT} bytes") as caught:
            await exchange.finish()
        assert caught.value.answered and not exchange.connection.is_reusable

    @pytest.mark.parametrize("extra", [0, 1])
    async def test_body_of_an_error_is_cut_off(self, extra: int) -> None:
        exchange = await start_exchange(ok(b"x" * (MAX_ERROR_BODY_BYTES + extra), status=b"500 Error"))
        response = await exchange.finish()
        assert (response.status, len(response.body)) == (500, MAX_ERROR_BODY_BYTES)
        assert exchange.connection.is_reusable == (extra == 0)

    @pytest.mark.parametrize("extra", [0, 1])
    async def test_data_of_a_slice_is_parsed_at_once(self, extra: int) -> None:
        body = b"x" * (SLICE_BYTES - len(CHUNKED) - len(chunk(b"x" * 10_000)) + 10_000 + extra)
        data = CHUNKED + chunk(body)
        assert len(data) == SLICE_BYTES + extra
        sink = RecordingSink()
        exchange = await start_exchange(data, sink=sink)
        assert bool(sink.parts) == (extra == 0) and exchange.transport.is_paused == (extra == 1)
        exchange.task.cancel()


class TestSlices:
    """Work beyond one slice waits for the next passes of the event loop, and the server with it."""

    async def test_large_data_is_parsed_in_slices(self) -> None:
        sink, passes = RecordingSink(), 0
        exchange = await start_exchange(CHUNKED + chunk(b"x" * (10 * SLICE_BYTES)) + END_CHUNK, sink=sink)
        assert exchange.transport.is_paused
        while not exchange.task.done():
            await asyncio.sleep(0)
            passes += 1
        assert passes >= 10 and all(len(part) <= SLICE_BYTES for part in sink.parts)
        assert sum(map(len, sink.parts)) == 10 * SLICE_BYTES
        assert exchange.connection.is_reusable and not exchange.transport.is_paused
        assert (await exchange.repeat(ok(b"next"))).body == b"next", "no pass of the last response is left"

    async def test_response_that_fills_a_slice_and_data_behind_it(self) -> None:
        start = CHUNKED + chunk(b"x" * 10_000) + END_CHUNK
        body = b"x" * (10_000 + SLICE_BYTES - len(start))
        data = CHUNKED + chunk(body) + END_CHUNK
        assert len(data) == SLICE_BYTES
        exchange = await start_exchange(data + b"HTTP", sink=RecordingSink())
        assert (await exchange.finish()).status == 200
        assert not exchange.connection.is_reusable

    async def test_data_behind_the_end_of_the_response_ends_the_connection(self) -> None:
        data = CHUNKED + chunk(b"x") + END_CHUNK + b"y" * 2 * SLICE_BYTES
        exchange = await start_exchange(data, sink=RecordingSink())
        assert (await exchange.finish()).status == 200
        assert not exchange.connection.is_reusable

    async def test_backlog_of_the_sink_comes_before_more_data(self) -> None:
        sink = RecordingSink(backlog_per_part=3)  # which refuses data during its backlog
        exchange = await start_exchange(CHUNKED, chunk(b"one"), chunk(b"two") + END_CHUNK, sink=sink)
        assert sink.parts == [b"one"] and exchange.transport.is_paused
        assert (await exchange.finish()).status == 200
        assert sink.parts == [b"one", b"two"] and sink.num_passes == 6
        assert exchange.connection.is_reusable and exchange.transport.num_pauses == 1

    @pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
    async def test_lost_connection_waits_for_what_has_arrived(self, error: Exception | None) -> None:
        sink = RecordingSink(backlog_per_part=2)
        exchange = await start_exchange(CHUNKED, chunk(b"one"), chunk(b"two"), sink=sink)
        exchange.transport.is_aborted = True
        exchange.connection.connection_lost(error)
        with pytest.raises(RemoteConnectionError, match="reset" if error else "closed") as caught:
            await exchange.finish()
        assert sink.parts == [b"one", b"two"] and caught.value.answered

    async def test_end_that_has_arrived_counts_before_the_lost_connection(self) -> None:
        sink = RecordingSink(backlog_per_part=2)
        exchange = await start_exchange(CHUNKED, chunk(b"one") + END_CHUNK, sink=sink)
        exchange.connection.connection_lost(ConnectionResetError())
        assert (await exchange.finish()).status == 200 and sink.num_passes == 2
        assert not exchange.connection.is_reusable

    async def test_sink_may_have_enough_during_its_backlog(self) -> None:
        exchange = await start_exchange(CHUNKED, chunk(b"one"), sink=RecordingSink(backlog_per_part=2, enough_after=1))
        assert (await exchange.finish()).status == 200
        assert not exchange.connection.is_reusable

    async def test_error_of_the_backlog_is_raised(self) -> None:
        sink = RecordingSink(backlog_per_part=1)
        sink.backlog_error = RuntimeError("broken sink")
        exchange = await start_exchange(CHUNKED, chunk(b"one"), sink=sink)
        with pytest.raises(RuntimeError, match="broken sink"):
            await exchange.finish()

    async def test_cancelled_exchange_does_no_more_work(self) -> None:
        sink = RecordingSink(backlog_per_part=100)
        exchange = await start_exchange(CHUNKED, chunk(b"one"), sink=sink)
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task
        done = sink.num_passes
        await asyncio.sleep(0)
        assert sink.num_passes == done and exchange.transport.is_aborted

    async def test_closing_ends_a_response_with_a_backlog(self) -> None:
        exchange = await start_exchange(CHUNKED, chunk(b"one"), sink=RecordingSink(backlog_per_part=100))
        exchange.connection.close()
        exchange.connection.connection_lost(None)
        with pytest.raises(RemoteConnectionError, match="closed"):
            await exchange.finish()

    async def test_no_pass_runs_after_a_timeout(self) -> None:
        sink = RecordingSink(backlog_per_part=100)
        exchange = await start_exchange(CHUNKED, chunk(b"one"), sink=sink)
        exchange.age(20)
        exchange.check_silence()
        exchange.connection._run_pass()
        assert sink.num_passes == 0
        with pytest.raises(SilenceTimeoutError):
            await exchange.finish()


class TestRequestsAndData:
    """What a connection does between requests."""

    async def test_connection_that_is_lost_between_requests_is_not_used_again(self) -> None:
        unused = HttpConnection()
        unused.connection_lost(None)
        exchange = await start_exchange(ok())
        await exchange.finish()
        exchange.connection.connection_lost(ConnectionResetError())
        assert not unused.is_reusable and not exchange.connection.is_reusable

    async def test_second_response_to_a_request_ends_the_connection(self) -> None:
        exchange = await start_exchange(ok(b"one") + ok(b"two"))
        assert (await exchange.finish()).body == b"one"
        assert not exchange.connection.is_reusable

    async def test_begin_of_a_second_response_ends_the_connection(self) -> None:
        exchange = await start_exchange(ok(b"one") + b"HTTP/1.1 2")
        assert (await exchange.finish()).body == b"one"
        assert not exchange.connection.is_reusable

    async def test_kept_connection_holds_no_sink(self) -> None:
        sink = RecordingSink()
        released = weakref.ref(sink)
        exchange = await start_exchange(CHUNKED + END_CHUNK, sink=sink)
        await exchange.finish()
        del sink
        gc.collect()
        assert released() is None and exchange.connection.is_reusable

    async def test_error_at_the_moment_of_a_cancellation_is_not_logged(self, loop_errors: list[dict[str, Any]]) -> None:
        exchange = await start_exchange()
        exchange.connection.connection_lost(ConnectionResetError())
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task
        del exchange
        gc.collect()
        assert loop_errors == []

    @pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
    async def test_vanished_servers_are_found_by_keep_alive_probes(self, family: socket.AddressFamily) -> None:
        calls: list[tuple[int, ...]] = []
        sock = SimpleNamespace(family=family, setsockopt=lambda *options: calls.append(options))
        HttpConnection().connection_made(FakeTransport(sock))  # type: ignore[arg-type]
        is_network = family is not socket.AF_UNIX
        assert calls == [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] * is_network

    async def test_time_of_the_last_data_is_kept(self) -> None:
        exchange = await start_exchange()
        before = exchange.connection.last_data_at = exchange.connection.last_data_at - 50
        exchange.connection.data_received(ok())
        assert exchange.connection.last_data_at >= before + 50
        await exchange.finish()

    async def test_data_before_any_request_ends_the_connection(self) -> None:
        connection, transport = HttpConnection(), FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(b"HTTP/1.1 408 idle\r\n\r\n")
        assert transport.is_aborted and not connection.is_reusable

    async def test_data_after_a_response_ends_the_connection(self) -> None:
        exchange = await start_exchange(ok())
        await exchange.finish()
        exchange.connection.data_received(b"x")
        assert exchange.transport.is_aborted and not exchange.connection.is_reusable

    async def test_closed_connection_takes_no_request(self) -> None:
        for transport in (None, FakeTransport()):
            connection = HttpConnection()
            if transport is not None:
                connection.connection_made(transport)  # type: ignore[arg-type]
                transport.abort()
            with pytest.raises(RemoteConnectionError, match="was closed") as caught:
                await connection.exchange(b"", None, silence_timeout_s=1, max_body_bytes=LIMIT)
            assert not caught.value.answered and not connection.is_reusable


class TestSilence:
    """A server that sends no output for too long is given up, whatever else it sends."""

    async def test_output_postpones_the_timeout(self) -> None:
        sink = RecordingSink()
        exchange = await start_exchange(CHUNKED, sink=sink)
        exchange.age(20)
        exchange.connection.data_received(chunk(b"x"))
        exchange.check_silence()
        exchange.connection.data_received(END_CHUNK)
        assert (await exchange.finish()).status == 200

    async def test_begin_of_the_response_postpones_the_timeout(self) -> None:
        exchange = await start_exchange()
        exchange.age(20)
        exchange.connection.data_received(CHUNKED)
        exchange.check_silence()
        exchange.connection.data_received(END_CHUNK)
        assert (await exchange.finish()).status == 200

    async def test_silence_after_output_is_noticed(self) -> None:
        sink = RecordingSink()
        exchange = await start_exchange(CHUNKED, sink=sink, silence_timeout_s=0.1)
        await asyncio.sleep(0.02)
        exchange.connection.data_received(chunk(b"x"))
        with pytest.raises(SilenceTimeoutError, match=r"no output for 0\.1 s"):
            await exchange.finish()

    async def test_timeout_of_a_response_does_not_end_the_next_one(self) -> None:
        exchange = await start_exchange(ok(), silence_timeout_s=0.05)
        await exchange.finish()
        exchange.age(20)
        task = asyncio.ensure_future(exchange.repeat())
        await asyncio.sleep(0.1)
        assert not task.done()
        exchange.connection.data_received(ok(b"next"))
        assert (await task).body == b"next"

    async def test_output_of_the_backlog_postpones_the_timeout(self) -> None:
        sink = RecordingSink(backlog_per_part=1)
        sink.counts_outputs = False
        exchange = await start_exchange(CHUNKED, chunk(b"x"), sink=sink)
        exchange.age(20)
        sink.num_outputs += 1
        exchange.connection._run_pass()
        exchange.check_silence()
        exchange.connection.data_received(END_CHUNK)
        assert (await exchange.finish()).status == 200

    async def test_data_without_output_does_not(self) -> None:
        sink = RecordingSink()
        sink.counts_outputs = False
        exchange = await start_exchange(CHUNKED, sink=sink, silence_timeout_s=0.1)
        with pytest.raises(SilenceTimeoutError, match=r"no output for 0\.1 s") as caught:
            await feed_until_done(exchange, chunk(b": ping\n\n"))
        assert caught.value.answered

    async def test_interim_responses_do_not(self) -> None:
        exchange = await start_exchange(silence_timeout_s=0.1)
        with pytest.raises(SilenceTimeoutError):
            await feed_until_done(exchange, b"HTTP/1.1 102 Processing\r\n\r\n")


async def feed_until_done(exchange: Exchange, data: bytes) -> None:
    """Receives the same bytes again and again until the exchange ends."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not exchange.task.done():
            exchange.connection.data_received(data)
            await asyncio.wait({exchange.task}, timeout=0.01)
        await exchange.task
