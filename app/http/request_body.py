"""Request bodies: limits their size and decompresses them, within the same limit.

A few kilobytes can decompress to gigabytes, so decompression stops at the limit; the memory that it needs in between is
bounded, too. It runs in a thread: decompressing megabytes on the event loop would delay every stream.
"""

import asyncio
import re
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import zstandard

from antiphon.app.errors import ApiError, clip_text, from_engine
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive
from antiphon.app.http.endpoints.endpoint import Endpoint, Form
from antiphon.app.options.settings import Settings
from antiphon.engine.protocol import overloaded_error

MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum zstd window: the size that RFC 8878 asks every decoder to support."""
ZSTD_INPUT_CHUNK_BYTES = 512
"""Compressed bytes per call: the zstd decompressor has no output limit, and each byte yields at most 32 KiB."""
GZIP_INPUT_CHUNK_BYTES = 64 * 1024
MAX_GZIP_MEMBERS = 64
"""Maximum members of one gzip body: each has a cost, even if it is empty."""
_DECOMPRESS_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix="unpack")
"""A single thread, because every thread that has decompressed a large body keeps its memory for the next one."""
MAX_FORM_BYTES = 64 << 10
"""Bytes of an upload besides the file itself."""
MAX_BODIES = 8
"""Number of bodies of the largest size that are kept in memory at once."""
SMALL_BODY_BYTES = 1 << 20
MEMORY_MESSAGE = "The bodies of other requests take too much memory; try again shortly."
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
SUPPORTED_ENCODINGS = ("gzip", "deflate", "zstd")


def parse_encoding(header: str) -> str | None:
    """Returns the encoding of a body, or None for identity. Raises `ApiError` 415 for other or stacked encodings."""
    name = header.strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return None
    if name not in SUPPORTED_ENCODINGS:
        message = f"Unsupported Content-Encoding '{clip_text(header)}'. Use one of: {', '.join(SUPPORTED_ENCODINGS)}."
        raise ApiError(
            415, "unsupported_content_encoding", message, headers=(("accept-encoding", ", ".join(SUPPORTED_ENCODINGS)),)
        )
    return name


def find_max_bytes(endpoint: Endpoint, settings: Settings) -> int:
    """Returns the largest size of a request's body: that of most requests, or that of an upload."""
    if not isinstance(endpoint.body, Form):
        return settings.max_body_bytes
    return MAX_FORM_BYTES + max(settings.max_file_mib << 20, endpoint.body.max_file_bytes)


def check_body_head(endpoint: Endpoint, headers: Mapping[str, str], settings: Settings) -> None:
    """Checks what the headers say of a body: its length, type, encoding and size. Raises `ApiError`."""
    if "content-length" in headers and "transfer-encoding" in headers:
        # A proxy may use the other one and then see two requests where this server sees one (request smuggling).
        raise ApiError(400, "ambiguous_length", "Send either Content-Length or Transfer-Encoding, not both.")
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return  # no body, as in POST .../cancel
    content_type = headers.get("content-type", "").partition(";")[0].strip()
    if isinstance(endpoint.body, Form):
        _check_upload_head(headers, content_type)
    # A "simple" cross-site form can send neither this Content-Type nor a Content-Encoding, so this also stops CSRF.
    # Such a form can be an upload, which is why the guard checks the origin of that.
    elif not _JSON.fullmatch(content_type):
        message = "The body must be JSON: send it with 'Content-Type: application/json'."
        raise ApiError(415, "unsupported_media_type", message)
    parse_encoding(headers.get("content-encoding", ""))
    length, max_bytes = headers.get("content-length", "0"), find_max_bytes(endpoint, settings)
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise body_too_large(max_bytes)


def _check_upload_head(headers: Mapping[str, str], content_type: str) -> None:
    """Raises `ApiError` 415 if an upload is no form, or is compressed."""
    if content_type.lower() != "multipart/form-data":
        message = "A file is uploaded as a form: send it with 'Content-Type: multipart/form-data'."
        raise ApiError(415, "unsupported_media_type", message)
    if parse_encoding(headers.get("content-encoding", "")) is not None:
        raise ApiError(415, "unsupported_content_encoding", "An upload must not be compressed.")


class BodyMemory:
    """Memory of the bodies of all requests that have not been answered, whether they are complete or not.

    Requests that wait on WebSockets are part of it.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.max_bytes = MAX_BODIES * max_body_bytes
        self.used_bytes = 0


class BodyReservation:
    """Memory of one request's body, or of all requests that wait on a connection; no bytes yet."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory, self._bytes = memory, 0

    def add(self, count: int) -> None:
        """Adds bytes that have arrived. Raises `ApiError` 429 for a large body if all bodies take too much memory."""
        if not self.try_add(count):
            raise body_memory_error(("connection", "close"))

    def try_add(self, count: int) -> bool:
        """Adds bytes, in any case. Returns False if the body is large, and all bodies take too much memory.

        Small ones are always read, so that clients that leave large bodies unfinished do not keep others out.
        """
        self._bytes += count
        self._memory.used_bytes += count
        return self._bytes <= SMALL_BODY_BYTES or self._memory.used_bytes <= self._memory.max_bytes

    def remove(self, count: int) -> None:
        """Gives the memory of some bytes back."""
        self._bytes -= count
        self._memory.used_bytes -= count

    def release(self) -> None:
        """Gives the memory back: the request is being answered. Only the first call has an effect."""
        self._memory.used_bytes -= self._bytes
        self._bytes = 0


def body_memory_error(*headers: tuple[str, str]) -> ApiError:
    """Returns the error 429 of a request for which there is no memory, with more headers."""
    error = from_engine(overloaded_error())
    return ApiError(error.status, error.code, MEMORY_MESSAGE, kind=error.type, headers=(*error.headers, *headers))


def limit_body(receive: AsgiReceive, max_bytes: int, encoding: str | None, reservation: BodyReservation) -> AsgiReceive:
    """Returns a `receive` that limits the body, and decompresses it if it has an encoding.

    Above `max_bytes` it raises `ApiError` 413, and 429 if all bodies take too much memory; it discards what was read.
    """
    size = 0

    async def counted() -> AsgiMessage:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message["body"])
            if size > max_bytes:
                raise body_too_large(max_bytes)
            reservation.add(len(message["body"]))
        return message

    async def counted_twice() -> AsgiMessage:
        message = await decompressed()
        reservation.add(len(message.get("body", b"")))
        return message

    decompressed = _decompress_body(counted, max_bytes, encoding) if encoding else counted
    return counted_twice if encoding else counted


def body_too_large(max_bytes: int) -> ApiError:
    """Returns the error for a body of more than `max_bytes` bytes."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return ApiError(status, "request_too_large", f"The body is larger than {max_bytes} bytes.")


def decompress(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompresses `data`. Raises `ApiError`: 413 above `max_bytes` bytes, 400 if it is invalid or incomplete."""
    try:
        out, complete = (_inflate if encoding in ("gzip", "deflate") else _decompress_zstd)(data, max_bytes)
    except (zlib.error, zstandard.ZstdError):
        out, complete = b"", False
    if len(out) > max_bytes:
        raise body_too_large(max_bytes)
    if not complete:
        raise ApiError(
            400, "invalid_body", f"The body is not valid {encoding}, although its Content-Encoding header declares it."
        )
    return out


def _decompress_body(receive: AsgiReceive, max_bytes: int, encoding: str) -> AsgiReceive:
    """Returns a `receive` whose first message has the decompressed body."""
    done = False

    async def receive_body() -> AsgiMessage:
        nonlocal done
        if done:
            return await receive()
        pieces: list[bytes] = []
        more_body = True
        while more_body:
            message = await receive()
            if message["type"] != "http.request":
                return message
            pieces.append(message["body"])
            more_body = message.get("more_body", False)
        done = True
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(_DECOMPRESS_EXECUTOR, decompress, b"".join(pieces), encoding, max_bytes)
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body


def _inflate(data: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Decompresses gzip (up to `MAX_GZIP_MEMBERS` members) or deflate; also returns whether the stream is complete."""
    parts: list[bytes] = []
    size = offset = 0
    members, reader = 1, zlib.decompressobj(zlib.MAX_WBITS | 32)
    while offset < len(data) and size <= max_bytes:
        if reader.eof:
            members, reader = members + 1, zlib.decompressobj(zlib.MAX_WBITS | 32)
            if members > MAX_GZIP_MEMBERS:
                return b"", False
        piece = data[offset : offset + GZIP_INPUT_CHUNK_BYTES]
        parts.append(reader.decompress(piece, max_bytes + 1 - size))
        size += len(parts[-1])
        offset += len(piece) - len(reader.unused_data) - len(reader.unconsumed_tail)
    return b"".join(parts), reader.eof


def _decompress_zstd(data: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Decompresses zstd, one or more frames; also returns whether the last frame is complete."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    parts: list[bytes] = []
    size, offset, reader = 0, 0, decompressor.decompressobj()
    while offset < len(data) and size <= max_bytes:
        if reader.eof:
            reader = decompressor.decompressobj()
        piece = data[offset : offset + ZSTD_INPUT_CHUNK_BYTES]
        parts.append(reader.decompress(piece))
        size += len(parts[-1])
        offset += len(piece) - len(reader.unused_data if reader.eof else b"")
    return b"".join(parts), reader.eof
