"""WebSocket connections: uvicorn's protocol, with a stall timeout and errors in the API's shape."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response

from antiphon.app.errors import ApiError
from antiphon.app.http.stall_timeout import StallTimeoutMixin
from antiphon.app.options.settings import Settings

FEED_BYTES = 8 * 1024
"""Bytes that are parsed in one iteration of the event loop. A thousand pings of six bytes take 20 ms."""
MAX_UNFINISHED_MESSAGES = 8
"""Number of messages of the largest size that are kept in memory at once while their ends have not arrived."""
FRAGMENT_OVERHEAD_BYTES = 64
"""Memory of a fragment of a message besides its content, which may be one byte."""


class UnfinishedMessages:
    """Memory of the messages of all connections whose ends have not arrived.

    Above `max_bytes`, the connection whose message began first is closed: a client that keeps a message unfinished
    makes room for those that send theirs.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._used_bytes = max_bytes, 0
        self._sizes: dict[WebSocketProtocol, int] = {}
        """Bytes of each connection, in the order in which the messages began."""

    def update(self, connection: "WebSocketProtocol", num_bytes: int) -> None:
        """Notes the size of the message of a connection; 0 if it has none."""
        self._used_bytes += num_bytes - self._sizes.get(connection, 0)
        if num_bytes:
            self._sizes[connection] = num_bytes
        else:
            self._sizes.pop(connection, None)
        while self._used_bytes > self._max_bytes:
            oldest = next(iter(self._sizes))
            self._used_bytes -= self._sizes.pop(oldest)
            oldest.close_unfinished()


class WebSocketProtocol(StallTimeoutMixin, WebSocketsSansIOProtocol):
    """A WebSocket connection. It is closed if the client stops reading or does not answer a ping."""

    unfinished = UnfinishedMessages(MAX_UNFINISHED_MESSAGES * Settings().max_body_bytes)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unparsed = bytearray()
        self._is_feeding = False
        self._fragment_bytes = 0
        """Memory of the fragments in `frames`."""
        self._default_reject, self.conn.reject = self.conn.reject, self._reject_handshake  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        """Parses the first bytes now, and the others in further iterations of the event loop."""
        self._unparsed += data
        if not self._is_feeding:
            self._feed_next()

    def _feed_next(self) -> None:
        part, self._unparsed = bytes(self._unparsed[:FEED_BYTES]), self._unparsed[FEED_BYTES:]
        super().data_received(part)
        if not self.transport.is_closing():
            fragment_bytes = self._fragment_bytes if self.frames else 0
            self.unfinished.update(self, fragment_bytes + len(self.conn.reader.buffer))
        was_feeding, self._is_feeding = self._is_feeding, bool(self._unparsed) and not self.transport.is_closing()
        if self._is_feeding:
            if not was_feeding:
                self.transport.pause_reading()
            self.loop.call_soon(self._feed_next)
        elif was_feeding and not self.read_paused:
            self.transport.resume_reading()

    def handle_text(self, event: Frame) -> None:
        """Begins a message."""
        self._fragment_bytes = _measure_fragment(event)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Begins a message."""
        self._fragment_bytes = _measure_fragment(event)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """Continues a message."""
        self._fragment_bytes += _measure_fragment(event)
        super().handle_cont(event)

    def close_unfinished(self) -> None:
        """Closes the connection: its unfinished message takes memory that others need."""
        self.frames = []
        if self.close_sent:
            self.transport.abort()
        else:
            self._fail(CloseCode.TRY_AGAIN_LATER, "unfinished messages take too much memory")

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives the memory of an unfinished message back."""
        self.unfinished.update(self, 0)
        super().connection_lost(exc)

    def send_receive_event_to_app(self) -> None:
        """Passes a message on. A text that is not UTF-8 closes the connection; uvicorn would log a traceback, too."""
        self.unfinished.update(self, 0)
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(CloseCode.INVALID_DATA, "the frame is not UTF-8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def _reject_handshake(self, status: int, text: str) -> Response:
        """Returns the response to an invalid handshake: an error in the API's shape."""
        response = self._default_reject(status, text)
        response.body = ApiError(status, "invalid_handshake", text.strip()).encoded_body
        del response.headers["Content-Length"], response.headers["Content-Type"]
        response.headers.update({"Content-Length": str(len(response.body)), "Content-Type": "application/json"})
        return response

    def keepalive_timeout(self) -> None:
        """Closes the connection after an unanswered ping, with a close frame in case the client still receives it."""
        self._fail(CloseCode.POLICY_VIOLATION, "no pong")

    def _fail(self, code: CloseCode, reason: str) -> None:
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()


def _measure_fragment(event: Frame) -> int:
    return len(event.data) + FRAGMENT_OVERHEAD_BYTES


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def websocket_protocol_class(settings: Settings) -> type[WebSocketProtocol]:
    """Returns a protocol class with these settings; uvicorn creates one instance per connection."""
    unfinished = UnfinishedMessages(MAX_UNFINISHED_MESSAGES * settings.max_body_bytes)
    return type("SocketProtocol", (WebSocketProtocol,), {"settings": settings, "unfinished": unfinished})
