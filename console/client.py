"""The HTTP client of the commands: bodies, lines and events of a server as they arrive."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from antiphon.console.server_address import ServerAddress, is_loopback
from antiphon.kit.checker.sse import END_MARKER, Frame, SseReader
from antiphon.kit.findings import FindingList
from antiphon.kit.json_values import Json, as_objects, as_table, as_text, decode_object

CONNECT_TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 60.0
"""Time between two bytes of a list. A reply has no limit: a model may think for minutes, and Ctrl-C ends it."""
MAX_SHOWN_ERROR_BYTES = 1 << 16
MAX_FRAME_BYTES = 16 << 20
"""Longest event. A server that never ends a line must not fill the memory."""
UNAUTHORIZED = 401


class ReplyFailedError(Exception):
    """Raised if a reply fails or ends too early. The message quotes the server and is not safe for a terminal."""


class ServerClient:
    """Sends requests to one server."""

    def __init__(self, address: ServerAddress, api_key: str | None = None) -> None:
        self.address = address
        self._headers = {"authorization": f"Bearer {api_key}", "x-api-key": api_key} if api_key else {}
        # A proxy of the environment is not for a server on this machine.
        self._uses_environment = not is_loopback(urlsplit(address.base_url).hostname)

    @asynccontextmanager
    async def _open_reply(
        self, method: str, path: str, read_timeout_s: float | None = FETCH_TIMEOUT_S, **sent: Any
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Sends a request, and yields its reply, of which the body is not read. Raises `ReplyFailedError`."""
        timeout = httpx2.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
        sent.setdefault("headers", self._headers)
        try:
            async with (
                httpx2.AsyncClient(timeout=timeout, trust_env=self._uses_environment) as http,
                http.stream(method, self.address.base_url + path, **sent) as reply,
            ):
                if reply.status_code >= 400:
                    raise ReplyFailedError(_describe_refusal(reply.status_code, await _read_start(reply)))
                yield reply
        except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
            raise self._explain(error) from None

    async def list_models(self) -> list[str]:
        """Returns the names of the server's models. Raises `ReplyFailedError`."""
        entries = as_objects((decode_object(await self.fetch("/models")) or {}).get("data"))
        return [entry["id"] for entry in entries if isinstance(entry.get("id"), str) and entry["id"]]

    async def fetch(self, path: str) -> bytes:
        """Returns the body of a GET, whose path may have a query. Raises `ReplyFailedError`."""
        async with self._open_reply("GET", path) as reply:
            return await reply.aread()

    async def read_lines(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a GET as they arrive, without empty ones, which servers send while nothing happens.

        Closing the iterator closes the connection. Raises `ReplyFailedError`.
        """
        async with self._open_reply("GET", path) as reply:
            async for line in _split_lines(reply.aiter_bytes()):
                yield line

    async def read_frames(
        self, path: str, body: Json | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Frame, None]:
        """Sends a POST, or a GET without a body, and yields the frames of the stream.

        Closing the iterator closes the connection.

        Raises `ReplyFailedError` if there is no stream, or it breaks.
        """
        sent = {**self._headers, **(headers or {}), "accept": "text/event-stream", "content-type": "application/json"}
        method = "GET" if body is None else "POST"
        try:
            content = None if body is None else json.dumps(body).encode()  # ASCII, for surrogates
        except RecursionError:
            raise ReplyFailedError("an item of the conversation is nested too deeply: /clear it") from None
        async with self._open_reply(method, path, None, content=content, headers=sent) as reply:
            kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
            if reply.status_code != 200:
                raise ReplyFailedError(_describe_refusal(reply.status_code, await _read_start(reply)))
            if kind != "text/event-stream":
                raise ReplyFailedError(f"the server sent {kind or 'a reply without a content type'}, not a stream")
            async for frame in _split_frames(reply.aiter_bytes()):
                yield frame

    def _explain(self, error: Exception) -> ReplyFailedError:
        reason = str(error) or type(error).__name__
        if isinstance(
            error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.InvalidURL)
        ):
            place = f"{self.address.shown_url} ({self.address.source})"
            hint = "start one with `antiphon serve`, or name another with --url or ANTIPHON_URL"
            return ReplyFailedError(f"no server answers at {place}: {reason}; {hint}")
        if isinstance(error, httpx2.TimeoutException):
            return ReplyFailedError(f"the server did not answer within {FETCH_TIMEOUT_S:g} s")
        if isinstance(error, httpx2.DecodingError):
            return ReplyFailedError(f"the reply cannot be decoded: {error}")
        return ReplyFailedError(f"the connection to the server broke: {reason}")


def _describe_refusal(status: int, content: bytes) -> str:
    found = decode_object(content)
    message = describe_error(found) if found is not None else content.decode(errors="replace").strip()
    if status == UNAUTHORIZED:
        hint = "set ANTIPHON_API_KEY or OPENAI_API_KEY, or name a file with --api-key-file"
        return f"{status}: {message or 'an API key is required'} ({hint})"
    return f"{status}: {message or 'without a message'}"


async def _read_start(reply: httpx2.Response) -> bytes:
    """Returns the first bytes of a body: enough for an error."""
    content = b""
    async for piece in reply.aiter_bytes():
        content += piece
        if len(content) > MAX_SHOWN_ERROR_BYTES:
            break
    return content[:MAX_SHOWN_ERROR_BYTES]


async def _split_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the lines of a body that are not empty."""
    begun: list[bytes] = []
    num_begun_bytes = 0
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            if whole := b"".join([*begun, line]):
                yield whole
            begun, num_begun_bytes = [], 0
        begun.append(rest)
        num_begun_bytes += len(rest)
        if num_begun_bytes > MAX_FRAME_BYTES:
            raise ReplyFailedError(f"a line of the server has more than {MAX_FRAME_BYTES >> 20} MiB")
    if last := b"".join(begun):
        yield last


async def _split_frames(pieces: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    reader, num_open_bytes = SseReader(FindingList()), 0
    async for piece in pieces:
        num_open_bytes += len(piece)
        for frame in reader.feed(piece):
            num_open_bytes = 0
            yield frame
        if num_open_bytes > MAX_FRAME_BYTES:
            raise ReplyFailedError(f"an event of the server has more than {MAX_FRAME_BYTES >> 20} MiB")


def parse_frame(frame: Frame) -> dict[str, Any] | None:
    """Returns the event of a frame; None for the marker of the end. Raises `ReplyFailedError` for anything else."""
    if frame.data.strip() == END_MARKER:
        return None
    try:
        return as_table(json.loads(frame.data))
    except (ValueError, RecursionError):
        raise ReplyFailedError(f"the server sent an event that is not JSON: {frame.data}") from None


def describe_error(value: object) -> str:
    """Returns the message of an error in any API's shape, or the whole value as JSON."""
    error = as_table(value)
    inner = error.get("error")
    if isinstance(inner, str):
        return inner
    message = as_text(as_table(inner).get("message")) or as_text(error.get("message"))
    return message or json.dumps(value, ensure_ascii=False)
