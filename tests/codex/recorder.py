"""Records the traffic between an agent and the server: request bodies, reply bodies, WebSocket messages."""

import json
from typing import Any

from msgspec import Struct, field

from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_body import decompress
from antiphon.app.http.request_state import SCOPE_KEY
from tests import invariants

Item = dict[str, Any]


class HttpExchange(Struct):
    """An HTTP request and its reply. `status` is 0 until the reply begins."""

    method: str
    path: str
    headers: dict[str, str]
    raw_body: bytes = b""
    status: int = 0
    raw_reply: bytes = b""

    @property
    def body(self) -> dict[str, Any]:
        """The request body, decompressed and decoded."""
        compressed = self.headers.get("content-encoding") == "zstd"
        body: dict[str, Any] = json.loads(decompress(self.raw_body, "zstd", 10**8) if compressed else self.raw_body)
        return body

    @property
    def input(self) -> list[Item]:
        """The input items of the request."""
        items: list[Item] = self.body["input"]
        return items

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a streamed reply, without comments and the end mark."""
        lines = self.raw_reply.decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(text) for text in data if text != "[DONE]"]

    def items_of_type(self, kind: str) -> list[Item]:
        """Returns the input items of one type, in order."""
        return [item for item in self.input if item["type"] == kind]


class WebSocketMessages(Struct):
    """The messages of one WebSocket."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


class TrafficRecorder(Struct):
    """Wraps an application and records every exchange, in the order in which they began."""

    exchanges: list[HttpExchange] = field(default_factory=list)
    websockets: list[WebSocketMessages] = field(default_factory=list)

    def wrap_app(self, app: AsgiApp) -> AsgiApp:
        """Returns `app` with its traffic recorded."""

        async def run_recorded(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
            if scope["type"] == "websocket":
                await app(scope, *self._record_websocket(receive, send))
                return
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
            exchange = HttpExchange(method=scope["method"], path=scope["path"], headers=headers)
            self.exchanges.append(exchange)

            async def receive_recorded() -> AsgiMessage:
                message = await receive()
                exchange.raw_body += message.get("body", b"")
                return message

            async def send_recorded(message: AsgiMessage) -> None:
                exchange.status = message.get("status", exchange.status)
                exchange.raw_reply += message.get("body", b"")
                await send(message)

            # Without the server's direct writer in the scope, so that every part of the reply passes through `send`.
            await app({key: value for key, value in scope.items() if key != SCOPE_KEY}, receive_recorded, send_recorded)

        return run_recorded

    def _record_websocket(self, receive: AsgiReceive, send: AsgiSend) -> tuple[AsgiReceive, AsgiSend]:
        messages = WebSocketMessages()
        self.websockets.append(messages)

        async def receive_recorded() -> AsgiMessage:
            message = await receive()
            if message.get("text"):
                messages.requests.append(json.loads(message["text"]))
            return message

        async def send_recorded(message: AsgiMessage) -> None:
            if message.get("text"):
                messages.events.append(json.loads(message["text"]))
            await send(message)

        return receive_recorded, send_recorded

    @property
    def turns(self) -> list[HttpExchange]:
        """Requests to `/v1/responses`."""
        return [
            exchange for exchange in self.exchanges if exchange.method == "POST" and exchange.path == "/v1/responses"
        ]

    def check_streams(self) -> None:
        """Checks that every recorded stream is legal."""
        for exchange in self.turns:
            if exchange.status == 200 and exchange.body.get("stream"):
                invariants.check_stream(exchange.events)
