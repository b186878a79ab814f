"""WebSocket connections: uvicorn's protocol, with a stall timeout and errors in the API's shape."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response

from antiphon.app.errors import ApiError
from antiphon.app.http.stall_timeout import StallTimeoutMixin
from antiphon.app.settings import Settings


class WebSocketProtocol(StallTimeoutMixin, WebSocketsSansIOProtocol):
    """A WebSocket. Who does not read, or answers no ping, does not stay either."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._default_reject, self.conn.reject = self.conn.reject, self._reject_handshake  # type: ignore[method-assign]

    def _reject_handshake(self, status: int, text: str) -> Response:
        """What is no handshake, in the shape of every other error."""
        refusal = self._default_reject(status, text)
        refusal.body = ApiError(status, "invalid_handshake", text.strip()).encoded_body
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


def websocket_protocol_class(settings: Settings) -> type[WebSocketProtocol]:
    """The protocol of WebSockets with these settings."""
    return type("SocketProtocol", (WebSocketProtocol,), {"settings": settings})
