"""HTTP/1.1 connections: uvicorn's h11 protocol, with deadlines for headers, bodies and readers, and admission control.

h11 rather than httptools: it limits the size of headers, requires Host, and rejects conflicting lengths.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import h11
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from antiphon.app.errors import ApiError, internal_error
from antiphon.app.http.admission import AdmissionController, AdmissionPermit
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope, AsgiSend, HeaderPairs
from antiphon.app.http.chunked_response import ChunkedResponse
from antiphon.app.http.cors import CorsPolicy
from antiphon.app.http.endpoints.endpoint import Endpoint, Form
from antiphon.app.http.endpoints.table import EndpointTable
from antiphon.app.http.headers import new_request_id
from antiphon.app.http.request_body import body_too_large, find_max_bytes
from antiphon.app.http.request_state import open_request
from antiphon.app.http.stall_timeout import StallTimeoutMixin
from antiphon.app.options.settings import Settings

_log = structlog.get_logger(__name__)

MAX_CHUNK_BYTES = 2**63 - 1
"""Largest chunk size that is a plausible number of bytes. A larger one is an invalid request, not a large body."""

MIN_UPLOAD_BYTES_PER_S = 64 << 10
"""Bytes per second that a client must reach for the largest upload to arrive in time."""


class HttpProtocol(StallTimeoutMixin, H11Protocol):
    """One HTTP/1.1 connection. Headers and body each have a deadline, which bytes that trickle in do not extend."""

    admission: AdmissionController
    table: EndpointTable
    cors: CorsPolicy

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._guarded_app = self.app
        self.app = self._run_app
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited_part: str | None = None
        self._upgraded = False
        self._permit: AdmissionPermit | None = None
        self._awaiting_admission = False
        self._data_while_waiting = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the header deadline: it also ends a connection that sends nothing."""
        super().connection_made(transport)
        self._set_deadline("headers", self.settings.header_timeout)

    def data_received(self, data: bytes) -> None:
        """Submits the first bytes of a request to admission control, and buffers others until that has decided."""
        if self._awaiting_admission:
            self._data_while_waiting += data
        elif self.conn.our_state is h11.IDLE and not self._upgraded and not self.conn.trailing_data[0]:
            self._awaiting_admission = True
            self._unset_keepalive_if_required()
            self.admission.submit(data, self.accept, self.reject)
        else:
            self._parse_data(data)

    def accept(self, data: bytes, permit: AdmissionPermit | None) -> None:
        """Parses the request, and the bytes that arrived while it waited for admission."""
        data, self._data_while_waiting = data + self._data_while_waiting, b""
        self._awaiting_admission, self._permit = False, permit
        if not self.transport.is_closing():
            self._parse_data(data)
        if permit is not None and self._current_cycle() is None:
            permit.release()  # the client has disconnected, or the request was invalid HTTP

    def reject(self, error: ApiError, headers: HeaderPairs) -> None:
        """Writes the error to the transport directly; h11 never sees the request."""
        self._awaiting_admission = False
        self.transport.write(encode_error_response(error, (*self.server_state.default_headers, *headers)))
        self.on_response_complete()

    def _parse_data(self, data: bytes) -> None:
        """Parses bytes. A fault of the server is logged and answered.

        Otherwise the event loop would close the connection without a reply; uvloop logs no `OSError` then.
        """
        try:
            self._pass_data(data)
        except Exception:  # noqa: BLE001  # any fault is answered
            _log.exception("unhandled exception while a request was received")
            self._abort_with_error(internal_error())

    def _pass_data(self, data: bytes) -> None:
        """Passes bytes to h11. Changes the deadline only on progress: complete headers or a complete body."""
        super().data_received(data)
        if self._upgraded:
            return
        cycle = self._current_cycle()
        if cycle is None:
            self._set_deadline("headers", self.settings.header_timeout)
        elif cycle.more_body:
            endpoint = open_request(cycle.scope, self.table).match.endpoint
            self._set_deadline("body", self._body_timeout(endpoint))
            self._check_chunk_size(find_max_bytes(endpoint, self.settings))
        else:
            self._set_deadline(None, 0)

    def _body_timeout(self, endpoint: Endpoint) -> float:
        """Returns the seconds in which a body must arrive. Uploads get as many as a slow connection needs."""
        is_upload = isinstance(endpoint.body, Form)
        upload_s = find_max_bytes(endpoint, self.settings) / MIN_UPLOAD_BYTES_PER_S if is_upload else 0.0
        return self.settings.body_timeout + upload_s

    def _check_chunk_size(self, max_bytes: int) -> None:
        """Rejects a chunk larger than a body may be as soon as its size has arrived: its bytes may never come."""
        size = getattr(self.conn._reader, "_bytes_in_chunk", 0)  # h11 has no other way to see it
        if size > MAX_CHUNK_BYTES:
            self._abort_with_error(ApiError(400, "invalid_http", "The size of a chunk is out of range."))
        elif size > max_bytes:
            self._abort_with_error(body_too_large(max_bytes))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the deadline."""
        self._set_deadline(None, 0)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Cancels the deadline: until the next request, uvicorn's keep-alive timeout applies."""
        self._set_deadline(None, 0)
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hands the connection over to `WebSocketProtocol`, which has its own deadlines."""
        self._set_deadline(None, 0)
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answers invalid or oversized HTTP with an error in the API's shape."""
        self._abort_with_error(ApiError(400, "invalid_http", msg))

    async def _run_app(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Runs one request. `self.cycle` belongs to it: the next cycle begins after this request is answered."""
        response, state = ChunkedResponse(scope, self.cycle, send), open_request(scope, self.table)
        state.permit, state.response, self._permit = self._permit, response, None

        async def receive_part() -> AsgiMessage:
            state.check_body()
            message = await receive()
            state.check_body()
            return message

        try:
            await self._guarded_app(scope, receive_part, response.send)
        finally:
            state.release_permit()

    @property
    def is_active(self) -> bool:
        """True if a request is being received, or waits for the beginning of its answer."""
        cycle = self._current_cycle()
        is_waiting = cycle is not None and not cycle.response_started
        return self._awaiting_admission or is_waiting or bool(self.conn.trailing_data[0])

    def _current_cycle(self) -> RequestResponseCycle | None:
        """Returns the cycle of the request that is being answered, or None."""
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _set_deadline(self, awaited_part: str | None, seconds: float) -> None:
        if awaited_part == self._awaited_part:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited_part = awaited_part
        self._deadline = self.loop.call_later(seconds, self._on_deadline) if awaited_part else None

    def _on_deadline(self) -> None:
        if self.transport.is_closing():
            return
        self._abort_with_error(ApiError(408, "request_timeout", f"The {self._awaited_part} did not arrive in time."))

    def _abort_with_error(self, error: ApiError) -> None:
        """Answers with an error, and closes the connection.

        The request guard answers a request whose head was complete: it knows the path, and a handler that reads no body
        may have run. Before that, the error is written to the transport directly, since h11 may be in any state.
        """
        cycle = self._current_cycle()
        if cycle is None:
            own_headers = ((b"x-request-id", new_request_id().encode()), (b"connection", b"close"))
            self.transport.write(encode_error_response(error, (*own_headers, *self.cors.reply_headers(None))))
            self.transport.close()
        elif cycle.response_started:
            self.transport.close()
        else:
            headers = (*error.headers, ("connection", "close"))
            state = open_request(cycle.scope, self.table)
            state.body_error = ApiError(error.status, error.code, error.message, headers=headers)
            cycle.keep_alive = False  # whatever the reply is, the rest of the body is not read
            cycle.message_event.set()


def encode_error_response(error: ApiError, more: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes an error as an HTTP/1.1 response; `more` are additional headers."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in (*error.header_pairs, *more)])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (error.status, STATUS_PHRASES[error.status], lines, error.encoded_body)


def http_protocol_class(settings: Settings, admission: AdmissionController, table: EndpointTable) -> type[HttpProtocol]:
    """Returns a protocol class with these settings; uvicorn creates one instance per connection."""
    cors = CorsPolicy(settings.allowed_origins)
    attributes = {"settings": settings, "admission": admission, "table": table, "cors": cors}
    return type("Protocol", (HttpProtocol,), attributes)
