"""WebSocket connections: uvicorn's protocol, with a stall timeout and errors in the API's shape."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Response

from antiphon.app.base.errors import ApiError
from antiphon.app.base.settings import Settings
from antiphon.app.http.stall_timeout import StallTimeoutMixin

FEED_BYTES = 8 * 1024
"""Bytes that are parsed in one iteration of the event loop. A thousand pings of six bytes take 20 ms."""


class WebSocketProtocol(StallTimeoutMixin, WebSocketsSansIOProtocol):
    """A WebSocket connection. It is closed if the client stops reading or does not answer a ping."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unparsed = bytearray()
        self._is_feeding = False
        self._default_reject, self.conn.reject = self.conn.reject, self._reject_handshake  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        """Parses the first bytes now, and the others in further iterations of the event loop."""
        self._unparsed += data
        if not self._is_feeding:
            self._feed_next()

    def _feed_next(self) -> None:
        part, self._unparsed = bytes(self._unparsed[:FEED_BYTES]), self._unparsed[FEED_BYTES:]
        super().data_received(part)
        was_feeding, self._is_feeding = self._is_feeding, bool(self._unparsed) and not self.transport.is_closing()
        if self._is_feeding:
            if not was_feeding:
                self.transport.pause_reading()
            self.loop.call_soon(self._feed_next)
        elif was_feeding and not self.read_paused:
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        """Passes a message on. A text that is not UTF-8 closes the connection; uvicorn would log a traceback, too."""
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
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(1008, "no pong")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def websocket_protocol_class(settings: Settings) -> type[WebSocketProtocol]:
    """Returns a protocol class with these settings; uvicorn creates one instance per connection."""
    return type("SocketProtocol", (WebSocketProtocol,), {"settings": settings})
