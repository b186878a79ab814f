"""A request's body as it comes: at most so many bytes, unpacked where it was packed, and never more than that.

A few kilobytes can unpack to gigabytes, so unpacking stops at the limit; what a packed stream may make us hold while
we unpack it is bounded, too. It runs in a thread: megabytes of it would hold up every stream.
"""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import zstandard

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive

MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""The largest window of zstd that is taken: the one that RFC 8878 asks of every decoder."""
ZSTD_INPUT_CHUNK_BYTES = 512
"""Bytes that are unpacked at a time: zstd makes at most 32 KiB of each, and has no limit of its own."""
GZIP_INPUT_CHUNK_BYTES = 64 * 1024
MAX_GZIP_MEMBERS = 64
"""Of one gzip body: each costs, however little is in it."""
_DECOMPRESS_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix="unpack")
"""One, since each thread that ever held a large body keeps memory for another one."""
SUPPORTED_ENCODINGS = ("gzip", "deflate", "zstd")


def check_encoding(said: str) -> str | None:
    """The encoding of a body, None for none. Raises `ApiError` 415 for one, or a stack of them, that is not spoken."""
    name = said.strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return None
    if name not in SUPPORTED_ENCODINGS:
        message = f"The content encoding '{clip_text(said)}' is not spoken here; {', '.join(SUPPORTED_ENCODINGS)} are, one at a time."
        raise ApiError(
            415, "unsupported_content_encoding", message, headers=(("accept-encoding", ", ".join(SUPPORTED_ENCODINGS)),)
        )
    return name


def limit_body(receive: AsgiReceive, most: int, packed: str | None) -> AsgiReceive:
    """`receive`, which raises `ApiError` 413 once a body has more than `most` bytes: what was read is let go of."""
    seen = 0

    async def counted() -> AsgiMessage:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message["body"])
            if seen > most:
                raise body_too_large(most)
        return message

    return _decompress_body(counted, most, packed) if packed else counted


def body_too_large(most: int) -> ApiError:
    """The answer to a body of more than `most` bytes."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return ApiError(status, "request_too_large", f"The body is larger than {most} bytes.")


def decompress(data: bytes, encoding: str, most: int) -> bytes:
    """What `data` unpacks to. Raises `ApiError`: 413 past `most` bytes, 400 where it is not what it says."""
    try:
        out, whole = (_inflate if encoding in ("gzip", "deflate") else _decompress_zstd)(data, most)
    except (zlib.error, zstandard.ZstdError):
        out, whole = b"", False
    if len(out) > most:
        raise body_too_large(most)
    if not whole:
        raise ApiError(400, "invalid_body", f"The body is not the {encoding} that its Content-Encoding says.")
    return out


def _decompress_body(receive: AsgiReceive, most: int, packed: str) -> AsgiReceive:
    """`receive`, with the whole body in its first message."""
    done = False

    async def whole() -> AsgiMessage:
        nonlocal done
        if done:
            return await receive()
        pieces: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return message
            pieces.append(message["body"])
            more = message.get("more_body", False)
        done = True
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(_DECOMPRESS_EXECUTOR, decompress, b"".join(pieces), packed, most)
        return {"type": "http.request", "body": body, "more_body": False}

    return whole


def _inflate(data: bytes, most: int) -> tuple[bytes, bool]:
    """gzip, of a few members, or deflate; and whether it came to its end."""
    parts: list[bytes] = []
    size = at = 0
    members, reader = 1, zlib.decompressobj(zlib.MAX_WBITS | 32)
    while at < len(data) and size <= most:
        if reader.eof:
            members, reader = members + 1, zlib.decompressobj(zlib.MAX_WBITS | 32)
            if members > MAX_GZIP_MEMBERS:
                return b"", False
        piece = data[at : at + GZIP_INPUT_CHUNK_BYTES]
        parts.append(reader.decompress(piece, most + 1 - size))
        size += len(parts[-1])
        at += len(piece) - len(reader.unused_data) - len(reader.unconsumed_tail)
    return b"".join(parts), reader.eof


def _decompress_zstd(data: bytes, most: int) -> tuple[bytes, bool]:
    """zstd, of one frame or more; and whether it came to its end."""
    made = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    parts: list[bytes] = []
    size, at, reader = 0, 0, made.decompressobj()
    while at < len(data) and size <= most:
        if reader.eof:
            reader = made.decompressobj()
        piece = data[at : at + ZSTD_INPUT_CHUNK_BYTES]
        parts.append(reader.decompress(piece))
        size += len(parts[-1])
        at += len(piece) - len(reader.unused_data if reader.eof else b"")
    return b"".join(parts), reader.eof
