"""HTTP/1.1 as uvicorn speaks it through h11, with deadlines: who never finishes, or never reads, does not stay.

h11 rather than httptools, because it bounds the headers (64 KiB), insists on Host, and refuses contradicting lengths.
Of an answer in chunks h11 writes the head and the end only: what its checks cost for every piece of a stream is more
than writing the piece.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Response

from antiphon.app.errors import ApiError
from antiphon.app.http.admission import Crowd, Ticket, hold
from antiphon.app.http.asgi import Message, Receive, Scope, Send
from antiphon.app.settings import Settings

PIPE = "antiphon.pipe"
"""Where a scope holds the `Answer` to it."""


class _Reader:
    """A slow one is waited for; one that stops for good is cut off, which ends its turn."""

    settings = Settings()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The system's buffers are full."""
        super().pause_writing()  # type: ignore[misc]  # of the protocol that this is mixed into
        self._stalled = self.loop.call_later(self.settings.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads on."""
        self._unstall()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._unstall()
        super().connection_lost(exc)  # type: ignore[misc]

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class PatientProtocol(_Reader, H11Protocol):
    """One connection. Headers and body each have a time by which they must have come, however slowly they trickle."""

    crowd: Crowd

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._behind = self.app
        self.app = self._answer
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_for: str | None = None
        self._upgraded = False
        self._ticket: Ticket | None = None
        self._queued = False
        self._later = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A silent socket has as long as slow headers have."""
        super().connection_made(transport)
        self._expect("headers", self.settings.header_timeout)

    def data_received(self, data: bytes) -> None:
        """More bytes. What comes between two requests joins the crowd first."""
        if self._queued:
            self._later += data
        elif self.conn.our_state is h11.IDLE and not self._upgraded and not self.conn.trailing_data[0]:
            self._queued = True
            self._unset_keepalive_if_required()
            self.crowd.come(self, data)
        else:
            self._read(data)

    def let_in(self, data: bytes, ticket: Ticket | None) -> None:
        """It is this connection's turn."""
        data, self._later = data + self._later, b""
        self._queued, self._ticket = False, ticket
        if not self.transport.is_closing():
            self._read(data)
        if ticket is not None and self._open_cycle() is None:
            ticket.decide()  # it has left, or was no HTTP

    def turn_away(self, error: ApiError, request_id: str) -> None:
        """Too many: answered past h11, which never hears of it."""
        self._queued = False
        more = (*self.server_state.default_headers, (b"x-request-id", request_id.encode()))
        self.transport.write(answer(error, more))
        self.on_response_complete()

    def _read(self, data: bytes) -> None:
        """They change the deadline only when they complete something."""
        super().data_received(data)
        if self._upgraded:
            return
        cycle = self._open_cycle()
        if cycle is None:
            self._expect("headers", self.settings.header_timeout)
        elif cycle.more_body:
            self._expect("body", self.settings.body_timeout)
        else:
            self._expect(None, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._expect(None, 0)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Between two requests the keep-alive time of uvicorn counts."""
        self._expect(None, 0)
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on the connection is a `PatientSocket`, with deadlines of its own."""
        self._expect(None, 0)
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it, in the shape of every other error."""
        self._last_words(ApiError(400, "invalid_http", msg))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. The cycle is this request's: the next one begins when this one is answered."""
        ticket, self._ticket = self._ticket, None
        hold(ticket)
        pipe = scope[PIPE] = Answer(scope, self.cycle, send)
        try:
            await self._behind(scope, receive, pipe.send)
        finally:
            if ticket is not None:
                ticket.decide()

    def _open_cycle(self) -> RequestResponseCycle | None:
        """The request that is being answered, if any."""
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _expect(self, what: str | None, seconds: float) -> None:
        if what == self._waits_for:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._waits_for = what
        self._deadline = self.loop.call_later(seconds, self._too_late) if what else None

    def _too_late(self) -> None:
        if self.transport.is_closing():
            return
        self._last_words(ApiError(408, "request_timeout", f"The {self._waits_for} did not arrive in time."))

    def _last_words(self, error: ApiError) -> None:
        """An answer past h11, which may be in any state, and the end of the connection."""
        cycle = self._open_cycle()
        if cycle is None or not cycle.response_started:
            self.transport.write(answer(error, [(b"connection", b"close")]))
        self.transport.close()


class PatientSocket(_Reader, WebSocketsSansIOProtocol):
    """A WebSocket. Who does not read, or answers no ping, does not stay either."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._reject, self.conn.reject = self.conn.reject, self._refuse  # type: ignore[method-assign]

    def _refuse(self, status: int, text: str) -> Response:
        """What is no handshake, in the shape of every other error."""
        refusal = self._reject(status, text)
        refusal.body = ApiError(status, "invalid_handshake", text.strip()).body
        del refusal.headers["Content-Length"], refusal.headers["Content-Type"]
        refusal.headers.update({"Content-Length": str(len(refusal.body)), "Content-Type": "application/json"})
        return refusal

    def keepalive_timeout(self) -> None:
        """No answer to a ping: the connection is told why it ends, in case that still reaches anybody."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(1008, "no pong")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()


class Answer:
    """An answer on its way out, which h11 writes; and a pipe: where it comes in chunks, they may be written past h11.

    Between the head and the end, a chunk leaves no trace in h11's state.
    """

    def __init__(self, scope: Scope, cycle: RequestResponseCycle, send: Send) -> None:
        self._cycle, self._send = cycle, send
        self._may_be_chunked = scope["http_version"] == "1.1" and scope["method"] in {"GET", "POST"}
        self.open = False
        """Whether `write` may be used: the head has been sent, and the answer comes in chunks."""

    async def send(self, message: Message) -> None:
        """Pass a message of ASGI's on to h11."""
        if message["type"] == "http.response.start":
            self.open = self._may_be_chunked and _in_chunks(message)
        await self._send(message)

    @property
    def stuck(self) -> bool:
        """Whether the client is slower than the answer. One that has left is not waited for."""
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    async def drained(self) -> None:
        """Wait until it is no more."""
        if self.stuck:
            await self._cycle.flow.drain()

    def write(self, piece: bytes) -> None:
        """One chunk, at once. To a client that has left, nothing is written."""
        if piece and not self._cycle.disconnected:  # an empty chunk would be the end
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _in_chunks(start: Message) -> bool:
    """Whether h11 will send the body of such an answer in chunks: it may have one, and its length is not known."""
    return start["status"] == 200 and all(name.lower() != b"content-length" for name, _ in start["headers"])


def answer(error: ApiError, more: Iterable[tuple[bytes, bytes]]) -> bytes:
    """An error as HTTP/1.1 says it, with more headers than its own."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in (*error.pairs, *more)])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (error.status, STATUS_PHRASES[error.status], lines, error.body)


def socket_protocol(settings: Settings) -> type[PatientSocket]:
    """The protocol of WebSockets with these settings."""
    return type("SocketProtocol", (PatientSocket,), {"settings": settings})


def protocol(settings: Settings, crowd: Crowd) -> type[PatientProtocol]:
    """The protocol with these settings; uvicorn makes one instance per connection."""
    return type("Protocol", (PatientProtocol,), {"settings": settings, "crowd": crowd})
