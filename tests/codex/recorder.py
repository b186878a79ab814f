"""What passed between an agent and the server: request bodies as they came, events as they left."""

import json
from typing import Any

from msgspec import Struct, field

from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_body import decompress
from antiphon.app.http.request_state import SCOPE_KEY
from tests import invariants

Item = dict[str, Any]


class Exchange(Struct):
    """One request and its answer. `status` is 0 until the answer began."""

    method: str
    path: str
    headers: dict[str, str]
    sent: bytes = b""
    status: int = 0
    answer: bytes = b""

    @property
    def body(self) -> dict[str, Any]:
        """What was sent, unpacked."""
        packed = self.headers.get("content-encoding") == "zstd"
        found: dict[str, Any] = json.loads(decompress(self.sent, "zstd", 10**8) if packed else self.sent)
        return found

    @property
    def input(self) -> list[Item]:
        """The items that the request carried."""
        found: list[Item] = self.body["input"]
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a streamed answer; comments and the trailer are none."""
        lines = self.answer.decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(text) for text in data if text != "[DONE]"]

    def items(self, kind: str) -> list[Item]:
        """The items of one type that the request carried, in order."""
        return [item for item in self.input if item["type"] == kind]


class Line(Struct):
    """What went over one WebSocket."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)


class Tape(Struct):
    """Stands around an application and writes down every exchange, in the order in which they began."""

    exchanges: list[Exchange] = field(default_factory=list)
    sockets: list[Line] = field(default_factory=list)

    def around(self, app: AsgiApp) -> AsgiApp:
        """`app`, recorded."""

        async def recorded(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
            if scope["type"] == "websocket":
                await app(scope, *self._wired(receive, send))
                return
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
            exchange = Exchange(method=scope["method"], path=scope["path"], headers=headers)
            self.exchanges.append(exchange)

            async def hear() -> AsgiMessage:
                message = await receive()
                exchange.sent += message.get("body", b"")
                return message

            async def say(message: AsgiMessage) -> None:
                exchange.status = message.get("status", exchange.status)
                exchange.answer += message.get("body", b"")
                await send(message)

            # Without the pipe past ASGI, so that every piece comes by here.
            await app({key: value for key, value in scope.items() if key != SCOPE_KEY}, hear, say)

        return recorded

    def _wired(self, receive: AsgiReceive, send: AsgiSend) -> tuple[AsgiReceive, AsgiSend]:
        line = Line()
        self.sockets.append(line)

        async def hear() -> AsgiMessage:
            message = await receive()
            if message.get("text"):
                line.sent.append(json.loads(message["text"]))
            return message

        async def say(message: AsgiMessage) -> None:
            if message.get("text"):
                line.told.append(json.loads(message["text"]))
            await send(message)

        return hear, say

    @property
    def turns(self) -> list[Exchange]:
        """The requests for a turn."""
        return [one for one in self.exchanges if one.method == "POST" and one.path == "/v1/responses"]

    def check(self) -> None:
        """Every stream that left was legal, from its first event to its last."""
        for exchange in self.turns:
            if exchange.status == 200 and exchange.body.get("stream"):
                invariants.check(exchange.events)
