"""One HTTP/1.1 connection to a remote engine. It parses in small slices, so that no server holds the event loop.

Each pass of the event loop parses at most `SLICE_BYTES` of a connection. What has arrived beyond them waits, and so
does the server, because the connection stops reading.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

import httptools
import msgspec

SLICE_BYTES = 16 << 10
"""Bytes of one connection that one pass of the event loop parses. An event of a stream has about 250."""
MAX_BYTES_WITHOUT_BODY = 64 << 10
"""Bytes in a row that carry no part of a body: heads of responses, trailers, extensions of chunks. The parser's time
for one long header is quadratic."""
MAX_ERROR_BODY_BYTES = 64 << 10
"""Bytes of an error's body that are read. The rest is cut off."""


class RemoteConnectionError(Exception):
    """The server could not be reached, or the connection was lost. `answered`: a byte of the answer had come."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class ConnectError(RemoteConnectionError):
    """There was no connection, so that the server has not seen the request."""


class SilenceTimeoutError(RemoteConnectionError):
    """The server sent no output for too long."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response. `body` is empty if it was streamed."""

    status: int
    body: bytes


class BodySink(Protocol):
    """Receives a streamed body. It may leave a part of its work for the next passes of the event loop."""

    def on_body(self, data: bytes) -> bool:
        """Receives a part of the body. Returns true if the rest is not needed: then the client hangs up."""

    def process_backlog(self) -> bool:
        """Does a part of the work that was left. Returns like `on_body`."""

    @property
    def has_backlog(self) -> bool:
        """True if work was left."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs so far. While it stays the same, the server counts as silent."""


class HttpConnection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self) -> None:
        self.is_reusable = True
        """False once the connection has ended or cannot carry another request."""
        self._loop = asyncio.get_running_loop()
        self.last_data_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._next_pass: asyncio.Handle | None = None
        self._reset(None, 0)

    def _reset(self, sink: BodySink | None, max_body_bytes: int) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._max_body_bytes = sink, max_body_bytes
        self._body, self._status = bytearray(), 0
        self._unparsed = b""
        self._bytes_without_body = self._seen_outputs = 0
        self._has_data = self._has_length = self._is_complete = False
        self._progress_at = self._loop.time()
        self._end: Callable[[], None] | None = None
        self._done: asyncio.Future[None] | None = None

    async def exchange(
        self, request: bytes, sink: BodySink | None, *, silence_timeout_s: float, max_body_bytes: int
    ) -> HttpResponse:
        """Sends a request and waits for the response. Ends the connection if the wait is cancelled."""
        if self._transport is None or self._transport.is_closing():
            self.is_reusable = False
            raise RemoteConnectionError("the connection was closed")
        self._reset(sink, max_body_bytes)
        done = self._done = self._loop.create_future()
        self._transport.write(request)
        self._silence = self._loop.call_later(silence_timeout_s, self._check_silence, silence_timeout_s)
        try:
            await done
        except BaseException:  # a cancelled request closes its connection, and the error is raised again
            self.close()
            raise
        finally:
            self._silence.cancel()
            self._sink = None
        return HttpResponse(self._status, bytes(self._body))

    def close(self) -> None:
        """Hangs up at once. Servers take that as the end of the request and free its slot."""
        self.is_reusable = False
        if self._next_pass is not None:
            self._next_pass.cancel()
            self._next_pass = None
        if self._transport is not None:
            self._transport.abort()

    def _check_silence(self, timeout_s: float) -> None:
        left = self._progress_at + timeout_s - self._loop.time()
        if left > 0:
            self._silence = self._loop.call_later(left, self._check_silence, timeout_s)
        else:
            error = SilenceTimeoutError(f"no output for {timeout_s:g} s", answered=self._has_data)
            self._finish(error)

    def _finish(self, error: Exception | None = None) -> None:
        if error is not None:
            self.is_reusable = False
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport. Keep-alive probes find a server that vanished during a long prompt."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Parses a part of the response, or keeps it for the next passes of the event loop."""
        self.last_data_at = self._loop.time()
        if self._done is None or self._done.done():
            self.close()  # data that belongs to no request
            return
        self._has_data = True
        if self._next_pass is None and len(data) <= SLICE_BYTES:
            self._parse(data)
        else:
            self._unparsed += data
        if self._next_pass is None and self._has_work() and not self._done.done():
            self._set_paused(True)
            self._next_pass = self._loop.call_soon(self._run_pass)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the response, once everything that has arrived was parsed."""
        self.is_reusable = False
        if self._next_pass is None:
            self._end_lost(error)
        elif self._end is None:
            self._end = lambda: self._end_lost(error)

    # Slices

    def _has_work(self) -> bool:
        return bool(self._unparsed) or (self._sink is not None and self._sink.has_backlog)

    def _run_pass(self) -> None:
        """Does one slice of the work that waits. After the last one, ends the response if its end has come."""
        self._next_pass = None
        if self._done is None or self._done.done():
            return
        if self._sink is not None and self._sink.has_backlog:
            self._call_sink(self._sink.process_backlog)
        else:
            data, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
            self._parse(data)
        if not self._done.done():
            if self._has_work():
                self._next_pass = self._loop.call_soon(self._run_pass)
                return
            if self._end is not None:
                self._end()
        if self._unparsed:
            self.is_reusable = False  # data behind the end of the response
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if is_paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._finish(_unwrap_callback_error(error))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._finish(RemoteConnectionError(f"not HTTP: {error}", answered=True))
        if self._bytes_without_body > MAX_BYTES_WITHOUT_BODY and not self._is_complete:
            message = f"the response has more than {MAX_BYTES_WITHOUT_BODY} bytes of headers"
            self._finish(RemoteConnectionError(message, answered=True))

    def _call_sink(self, process: Callable[[], bool]) -> None:
        try:
            is_enough = process()
        except Exception as error:  # noqa: BLE001  # raised by `exchange`
            self._finish(error)
            return
        self._note_outputs()
        if is_enough:
            self._cut_off()

    def _note_outputs(self) -> None:
        if self._sink is not None and self._sink.num_outputs != self._seen_outputs:
            self._seen_outputs = self._sink.num_outputs
            self._progress_at = self._loop.time()

    def _cut_off(self) -> None:
        """Ends the response before its end: the rest is not needed."""
        self.is_reusable = False
        self._is_complete = True
        self._sink = None
        self._finish()

    def _end_lost(self, error: Exception | None) -> None:
        """Ends the response: regularly if its end is the end of the connection, otherwise with an error."""
        if error is None and self._status >= 200 and not self._has_length:
            self._finish()
            return
        reason = f"the connection was lost: {error}" if error else "the connection was closed"
        self._finish(RemoteConnectionError(reason, answered=self._has_data))

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """Notes the begin of a second response to one request: its rest may come during the next one."""
        if self._is_complete:
            self.is_reusable = False

    def on_header(self, name: bytes, _: bytes) -> None:
        """Notes whether the response says where it ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Reads the status. A 1xx response precedes the real one."""
        if self._is_complete:
            return
        self._status = self._parser.get_status_code()
        if self._status >= 200:
            self._progress_at = self._loop.time()

    def on_body(self, data: bytes) -> None:
        """Passes on or collects a part of the body."""
        if self._is_complete:
            return
        self._bytes_without_body = 0
        if self._status == 200 and self._sink is not None:
            is_enough = self._sink.on_body(data)
            self._note_outputs()
            if is_enough:
                self._cut_off()
            return
        self._body += data
        if self._status != 200:
            if len(self._body) > MAX_ERROR_BODY_BYTES:
                del self._body[MAX_ERROR_BODY_BYTES:]
                self._cut_off()
        elif len(self._body) > self._max_body_bytes:
            raise RemoteConnectionError(f"the response has more than {self._max_body_bytes} bytes", answered=True)

    def on_message_complete(self) -> None:
        """Ends the response, after the sink has done its work."""
        if self._is_complete:
            return
        if self._status < 200:
            self._status, self._has_length = 0, False
            return
        self._is_complete = True
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        if self._sink is not None and self._sink.has_backlog:
            self._end = self._finish
        else:
            self._finish()


def _unwrap_callback_error(error: httptools.HttpParserCallbackError) -> Exception:
    """Returns the exception that a callback raised."""
    cause = error.__context__ or error.__cause__
    return cause if isinstance(cause, Exception) else error
