"""Requests and replies of a connection, read from the bytes that went over it."""

from collections import deque
from typing import Any

import h11

from antiphon.kit.json_values import decode_object
from antiphon.kit.snapshot.recorded_stream import RecordedStream


class RelayedExchange:
    """A request and its reply, as far as it has come."""

    def __init__(self, request: h11.Request) -> None:
        self.method = request.method.decode()
        self.path = request.target.decode()
        self.request_headers = _decode_headers(request.headers)
        self.request_body = b""
        self.status: int | None = None
        """Status of the reply; None before it came."""
        self.reply_headers: dict[str, str] = {}
        self.reply_body = b""
        self.is_complete = False
        """True if the whole reply came."""

    def __repr__(self) -> str:
        return f"<{self.method} {self.path}: {self.status or 'no reply'}, {len(self.reply_body)} bytes>"

    @property
    def request(self) -> dict[str, Any] | None:
        """The body of the request; None if it is no JSON object."""
        return decode_object(self.request_body)

    @property
    def is_stream(self) -> bool:
        """True if the reply is server-sent events."""
        return self.reply_headers.get("content-type", "").startswith("text/event-stream")

    @property
    def stream(self) -> RecordedStream:
        """The body of the reply, with the request."""
        return RecordedStream(self.reply_body, self.request)


class ConnectionRecorder:
    """Reads the bytes of both directions of a connection, and adds its exchanges to a list as requests come.

    What is no HTTP/1.1, such as the frames of a WebSocket, ends the recording of the direction, never the connection.
    """

    def __init__(self, exchanges: list[RelayedExchange]) -> None:
        self._exchanges = exchanges
        self._unanswered: deque[RelayedExchange] = deque()
        self._current: RelayedExchange | None = None
        self._requests: h11.Connection | None = h11.Connection(h11.SERVER)
        self._replies: h11.Connection | None = None
        self._reads_replies = True

    def add_request_bytes(self, data: bytes) -> None:
        """Reads bytes of the client."""
        while data and self._requests is not None:
            try:
                data = self._read_request(self._requests, data)
            except h11.ProtocolError:
                self._requests = None

    def add_reply_bytes(self, data: bytes) -> None:
        """Reads bytes of the server."""
        while data and self._reads_replies:
            try:
                data = self._read_reply(data)
            except (h11.ProtocolError, IndexError):  # IndexError: bytes that no request has asked for
                self._reads_replies = False

    def _read_request(self, parser: h11.Connection, data: bytes) -> bytes:
        """Reads to the end of a request at most. Returns the rest of the bytes."""
        parser.receive_data(data)
        while True:
            match parser.next_event():
                case h11.Request() as request:
                    self._current = RelayedExchange(request)
                    self._exchanges.append(self._current)
                    self._unanswered.append(self._current)
                case h11.Data(data=body) if self._current is not None:
                    self._current.request_body += bytes(body)
                case h11.EndOfMessage():
                    self._requests = h11.Connection(h11.SERVER)
                    return parser.trailing_data[0]
                case _:
                    return b""

    def _read_reply(self, data: bytes) -> bytes:
        """Reads to the end of a reply at most. Returns the rest of the bytes."""
        exchange = self._unanswered[0]
        parser = self._replies = self._replies or _expect_reply(exchange)
        parser.receive_data(data)
        while True:
            match parser.next_event():
                case h11.Response() as reply:
                    exchange.reply_headers = _decode_headers(reply.headers)
                    exchange.status = reply.status_code
                case h11.InformationalResponse(status_code=101):
                    exchange.status, self._reads_replies = 101, False
                    return b""
                case h11.InformationalResponse():
                    continue
                case h11.Data(data=body):
                    exchange.reply_body += bytes(body)
                case h11.EndOfMessage():
                    exchange.is_complete = True
                    self._unanswered.popleft()
                    self._replies = None
                    return parser.trailing_data[0]
                case _:
                    return b""


def _expect_reply(exchange: RelayedExchange) -> h11.Connection:
    """Returns a parser of the reply. Of the request, it needs to know the method, which decides on the body."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=exchange.method, target=exchange.path, headers=[("Host", "relay")]))
    parser.send(h11.EndOfMessage())
    return parser


def _decode_headers(headers: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
