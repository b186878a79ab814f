"""HTTP/1.1 client for one remote engine: kept connections, streamed bodies, no redirects.

A general client costs ten times the CPU per event of a stream; this one passes what httptools parses to a callback.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import cast

import httptools
import msgspec

from antiphon.engine.remote.transport.endpoint import Endpoint

CONNECT_TIMEOUT_S = 5.0
MAX_IDLE_S = 4.0
"""Time after which an idle connection is not used again: vLLM closes idle connections after 5 s."""
MAX_IDLE_CONNECTIONS = 64
MAX_BODY_BYTES = 16 << 20
"""Maximum size of a body that is not streamed."""

OnBody = Callable[[bytes], bool]
"""Receives each part of a streamed body. Returns true if the rest is not needed: then the client hangs up."""


class RemoteConnectionError(Exception):
    """The server could not be reached, or the connection was lost. ``answered``: part of the answer had come."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class SilenceTimeoutError(RemoteConnectionError):
    """The server sent nothing for too long."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response. ``body`` is empty if it was streamed."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests to one server. Idle connections are kept, and the latest one is used first."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str], *, silence_timeout_s: float) -> None:
        self.endpoint = endpoint
        self._silence_timeout_s = silence_timeout_s
        self._tls = ssl.create_default_context() if endpoint.is_tls else None
        fixed = {"Host": endpoint.host_header, "Accept": "*/*", "User-Agent": "antiphon", **headers}
        self._fixed_headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[HttpConnection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        on_body: OnBody | None = None,
    ) -> HttpResponse:
        """Sends a request and waits for the end of the response.

        The body of a 200 goes to ``on_body`` if there is one. An exception from ``on_body`` is raised here. Raises
        `RemoteConnectionError`.
        """
        head = self._encode_head(method, path, body, headers or {})
        while True:
            connection = self._take_idle()
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                return await connection.exchange(head + body, on_body, self._silence_timeout_s)
            except RemoteConnectionError as error:
                # The server may close an idle connection at any time: the request did not reach it.
                if not is_reused or error.answered or isinstance(error, SilenceTimeoutError):
                    raise
            finally:
                self._keep_idle(connection)

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _encode_head(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if body:
            extra += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{method} {self.endpoint.base_path}{path} HTTP/1.1\r\n{self._fixed_headers}{extra}\r\n".encode(
            "latin-1"
        )

    def _take_idle(self) -> "HttpConnection | None":
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.last_data_at >= oldest:
                return connection
            connection.close()
        return None

    def _keep_idle(self, connection: "HttpConnection") -> None:
        if connection.is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> "HttpConnection":
        loop, endpoint = asyncio.get_running_loop(), self.endpoint
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if endpoint.socket_path is not None:
                    _, connection = await loop.create_unix_connection(HttpConnection, endpoint.socket_path)
                else:
                    _, connection = await loop.create_connection(
                        HttpConnection, endpoint.host, endpoint.port, ssl=self._tls
                    )
        except TimeoutError:
            raise RemoteConnectionError(f"no connection to {endpoint.name} within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            raise RemoteConnectionError(f"{endpoint.name}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise RemoteConnectionError(f"{endpoint.name} cannot be reached: {reason}") from None
        return connection


class HttpConnection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self) -> None:
        self.is_reusable = True
        """False once the connection has ended or cannot carry another request."""
        self._loop = asyncio.get_running_loop()
        self.last_data_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._reset(None)

    def _reset(self, on_body: OnBody | None) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._on_body, self._body, self._status = on_body, bytearray(), 0
        self._has_length = False
        self._done: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, on_body: OnBody | None, silence_timeout_s: float) -> HttpResponse:
        """Sends a request and waits for the response. Ends the connection if the wait is cancelled."""
        if self._transport is None or self._transport.is_closing():
            self.is_reusable = False
            raise RemoteConnectionError("the connection was closed")
        self._reset(on_body)
        done = self._done = self._loop.create_future()
        self.last_data_at = self._loop.time()
        self._transport.write(request)
        silence = self._loop.call_later(silence_timeout_s, self._check_silence, silence_timeout_s)
        self._silence = silence
        try:
            await done
        except BaseException:
            self.close()
            raise
        finally:
            self._silence.cancel()
            self._on_body = None
            if done.done() and not done.cancelled():
                done.exception()  # marks it as retrieved: a cancellation may have come at the same time
        return HttpResponse(self._status, bytes(self._body))

    def close(self) -> None:
        """Hangs up at once. Servers take that as the end of the request and free its slot."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _check_silence(self, timeout_s: float) -> None:
        left = self.last_data_at + timeout_s - self._loop.time()
        if left > 0:
            self._silence = self._loop.call_later(left, self._check_silence, timeout_s)
        else:
            error = SilenceTimeoutError(f"no data for {timeout_s:g} s", answered=self._status > 0)
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
        """Parses a part of the response."""
        self.last_data_at = self._loop.time()
        if self._done is None or self._done.done():
            self.close()  # data that belongs to no request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._finish(_unwrap_callback_error(error))
        except httptools.HttpParserError as error:
            self._finish(RemoteConnectionError(f"not HTTP: {error}", answered=True))

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the response: regularly if its end is the end of the connection, otherwise with an error."""
        self.is_reusable = False
        if error is None and self._status >= 200 and not self._has_length:
            self._finish()
            return
        reason = f"the connection was lost: {error}" if error else "the connection was closed"
        self._finish(RemoteConnectionError(reason, answered=self._status > 0))

    # Callbacks of httptools

    def on_header(self, name: bytes, _: bytes) -> None:
        """Notes whether the response says where it ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Reads the status. A 1xx response precedes the real one."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Passes on or collects a part of the body."""
        if self._status == 200 and self._on_body is not None:
            if self._on_body(data):
                self.is_reusable = False
                self._on_body = _ignore_body
                self._finish()
            return
        self._body += data
        if len(self._body) > MAX_BODY_BYTES:
            raise RemoteConnectionError(f"the response has more than {MAX_BODY_BYTES} bytes", answered=True)

    def on_message_complete(self) -> None:
        """Ends the response."""
        if self._status < 200:
            self._status = 0
            return
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self._finish()


def _ignore_body(_: bytes) -> bool:
    return False


def _unwrap_callback_error(error: httptools.HttpParserCallbackError) -> Exception:
    """Returns the exception that a callback raised."""
    cause = error.__context__ or error.__cause__
    return cause if isinstance(cause, Exception) else error
