"""Runs a gRPC call as a request of the HTTP application, so that both faces of the server are one.

The application sees an ASGI request with the call's metadata as headers: authentication, limits, parsing, turns,
projections, the access log and the metrics are those of HTTP. The reply is read here: each event becomes a message,
and an error becomes a status.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import Descriptor
from msgspec import Struct

from antiphon.app.base.errors import ApiError
from antiphon.app.grpc.json_wire import encode_json
from antiphon.app.grpc.statuses import CLIENT_GONE, INTERNAL_ERROR, CallLostError, read_error
from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiScope
from antiphon.app.http.request_state import SCOPE_KEY, RequestState

FORWARDED_HEADERS = ("authorization", "x-api-key", "x-request-id")
"""Metadata that the application gets as headers."""
DATA = b"data: "
END_OF_STREAM = b"[DONE]"
_ERROR_PREFIX = b'{"error":'
"""Beginning of an event that ends a stream of chunks. No event of the Responses API begins like this."""

WriteMessage = Callable[[bytes], Awaitable[None]]
OnHead = Callable[[dict[str, str]], Awaitable[None]]


class HttpRequest(Struct, frozen=True, kw_only=True):
    """The HTTP request that a call stands for."""

    method: str
    path: str
    query: bytes = b""
    read_body: Callable[[], Awaitable[bytes]] | None = None
    """Returns the body. Called once the application has accepted the head; None: there is no body."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    time_limit: float | None = None
    """Time of the event loop at which the client's deadline passes."""


class HttpReply:
    """Reads the reply to one request: writes a message for each event, or keeps the body."""

    def __init__(self, descriptor: Descriptor, write: WriteMessage | None, on_head: OnHead) -> None:
        self._descriptor, self._write, self._on_head = descriptor, write, on_head
        self._status, self._headers, self._body = 0, dict[str, str](), b""
        self._failed: ApiError | None = None
        self._is_complete = False
        self.disconnected = asyncio.Event()
        """Set once the client has left, or reads nothing."""

    async def send(self, message: AsgiMessage) -> None:
        """Takes a message of the application."""
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            await self._write_safely(self._on_head(self._headers))
        elif self._write is not None and self._status == 200:
            await self._write_events(message.get("body", b""), self._write)
        else:
            self._body += message.get("body", b"")

    def encode_body(self) -> bytes:
        """Returns the message for the body."""
        return encode_json(self._descriptor, self._body)

    def raise_error(self) -> None:
        """Raises the reply's `ApiError`, also one that ended a stream.

        The application leaves a reply incomplete that it cannot finish, which cuts an HTTP connection.
        """
        if self._failed is not None:
            raise self._failed
        if not self._is_complete:
            raise INTERNAL_ERROR
        if self._status != 200:
            raise read_error(self._status, self._body, self._headers)

    async def _write_events(self, frames: bytes, write: WriteMessage) -> None:
        """Writes a message for each event in whole frames; comments, which only keep HTTP streams open, have none."""
        for frame in frames.split(b"\n\n"):
            start = frame.find(DATA)
            data = frame[start + len(DATA) :]
            if start < 0 or data == END_OF_STREAM or self._failed is not None:
                continue
            if data.startswith(_ERROR_PREFIX):
                self._failed = read_error(500, data, {})
                continue
            await self._write_safely(write(encode_json(self._descriptor, data)))

    async def _write_safely(self, writing: Awaitable[None]) -> None:
        """Writes to the client, and notes that it has left if that is not possible."""
        try:
            await writing
        except CallLostError:
            self._failed = CLIENT_GONE
            self.disconnected.set()


async def run_request(app: AsgiApp, request: HttpRequest, reply: HttpReply) -> None:
    """Runs a request. If the call is cancelled, so is the request. Raises the `ApiError` of the reply."""
    read_body = request.read_body or _no_body
    was_read = False

    async def receive() -> AsgiMessage:
        nonlocal was_read
        if not was_read:
            was_read = True
            return {"type": "http.request", "body": await read_body(), "more_body": False}
        await reply.disconnected.wait()  # usually the task is cancelled when the client leaves
        return {"type": "http.disconnect"}

    await app(_build_scope(request), receive, reply.send)
    reply.raise_error()


async def _no_body() -> bytes:
    return b""


def _build_scope(request: HttpRequest) -> AsgiScope:
    headers = [(b"host", b"localhost"), *request.headers]
    if request.read_body is not None:  # its size is known when it has been converted
        headers += [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        SCOPE_KEY: RequestState(time_limit=request.time_limit),
    }
    return scope


def forwarded_headers(metadata: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the metadata that the application gets. gRPC allows printable ASCII in it only."""
    return tuple((key.encode(), value.encode()) for key, value in metadata or () if key in FORWARDED_HEADERS)
