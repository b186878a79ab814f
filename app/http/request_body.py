"""Request bodies: limits their size and decompresses them, within the same limit.

A few kilobytes can decompress to gigabytes, so decompression stops at the limit; the memory that it needs in between is
bounded, too. It runs in a thread: decompressing megabytes on the event loop would delay every stream.
"""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import zstandard

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive

MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum zstd window: the size that RFC 8878 asks every decoder to support."""
ZSTD_INPUT_CHUNK_BYTES = 512
"""Compressed bytes per call: the zstd decompressor has no output limit, and each byte yields at most 32 KiB."""
GZIP_INPUT_CHUNK_BYTES = 64 * 1024
MAX_GZIP_MEMBERS = 64
"""Maximum members of one gzip body: each has a cost, even if it is empty."""
_DECOMPRESS_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix="unpack")
"""A single thread, because every thread that has decompressed a large body keeps its memory for the next one."""
SUPPORTED_ENCODINGS = ("gzip", "deflate", "zstd")


def check_encoding(header: str) -> str | None:
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


def limit_body(receive: AsgiReceive, max_bytes: int, encoding: str | None) -> AsgiReceive:
    """Returns a `receive` that limits the body, and decompresses it if it is `packed`.

    Above `most` bytes it raises `ApiError` 413 and discards what was read.
    """
    size = 0

    async def counted() -> AsgiMessage:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message["body"])
            if size > max_bytes:
                raise body_too_large(max_bytes)
        return message

    return _decompress_body(counted, max_bytes, encoding) if encoding else counted


def body_too_large(max_bytes: int) -> ApiError:
    """Returns the error for a body of more than `most` bytes."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return ApiError(status, "request_too_large", f"The body is larger than {max_bytes} bytes.")


def decompress(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompresses `data`. Raises `ApiError`: 413 for more than `most` bytes, 400 if it is invalid or incomplete."""
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
    """Returns a `receive` whose first message has the receive_body decompressed body."""
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
