"""Compressed request bodies: decoding, the size limit, and errors for corrupt ones. Hard inputs, row 7."""

import gzip
import json
import socket
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest
import zstandard

from antiphon.app.errors import ApiError
from antiphon.app.http.request_body import MAX_BODIES, MAX_GZIP_MEMBERS, decompress
from tests.clients.sdk_helpers import post, wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

MAX_BODY_BYTES = 4 * 1024 * 1024
BODY = {"model": "scripted", "input": "Hello! " * 200}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "ZSTD": zstandard.ZstdCompressor(write_content_size=False).compress,
    "x-gzip": gzip.compress,
}
STANDARD_COMPRESSORS = {
    name: compress for name, compress in COMPRESSORS.items() if name.islower() and not name.startswith("x-")
}

SERVER = partial(serve, [{"name": "any", "output": ["Yes."]}], max_body_bytes=MAX_BODY_BYTES)


def post_encoded(server: RunningServer, body: bytes, encoding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return post(f"{server.url}/responses", content=body, headers=headers, timeout=HANG_TIMEOUT_S)


def read_error(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json()["error"]["code"]


def test_unfinished_bodies_take_bounded_memory(server: RunningServer) -> None:
    """A large body that exceeds it gets a 429; small ones are served, and all of them once the others have ended."""
    memory = server.context.body_memory
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    large = {**BODY, "input": "x" * (2 * MAX_BODY_BYTES // 3)}
    with ExitStack() as stack:
        for _ in range(MAX_BODIES):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S))
            client.sendall(head % MAX_BODY_BYTES + b" " * (MAX_BODY_BYTES - 1))
        assert wait_until(60, lambda: memory.used_bytes == MAX_BODIES * (MAX_BODY_BYTES - 1))
        refused = post(f"{server.url}/responses", json=large, timeout=HANG_TIMEOUT_S)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert post(f"{server.url}/responses", json=BODY, timeout=HANG_TIMEOUT_S).status_code == 200
    assert wait_until(60, lambda: memory.used_bytes == 0)
    read = post(f"{server.url}/responses", json=large, timeout=HANG_TIMEOUT_S)
    assert read_error(read) == (400, "context_length_exceeded"), "it was read"
    assert wait_until(60, lambda: memory.used_bytes == 0)


@pytest.mark.parametrize("encoding", COMPRESSORS)
def test_compressed_body_is_decoded(server: RunningServer, encoding: str) -> None:
    compressed = COMPRESSORS[encoding](json.dumps(BODY).encode())
    assert len(compressed) < 200
    reply = post_encoded(server, compressed, encoding)
    assert reply.status_code == 200 and reply.json()["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.parametrize("encoding", STANDARD_COMPRESSORS)
def test_concatenated_members_are_one_body(encoding: str) -> None:
    compress = STANDARD_COMPRESSORS[encoding]
    parts = [b'{"model": ', b'"scripted", ', b'"input": "x"}']
    assert decompress(b"".join(map(compress, parts)), encoding, MAX_BODY_BYTES) == b"".join(parts)
    assert decompress(b"".join(map(compress, [*parts, b""])), encoding, MAX_BODY_BYTES) == b"".join(parts)


def test_endless_empty_members_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    num_readers = 0
    create_reader = zlib.decompressobj

    def create_and_count(wbits: int) -> Any:
        nonlocal num_readers
        num_readers += 1
        return create_reader(wbits)

    monkeypatch.setattr(zlib, "decompressobj", create_and_count)
    with pytest.raises(ApiError) as caught:
        decompress(gzip.compress(b"") * 100_000, "gzip", MAX_BODY_BYTES)
    assert caught.value.code == "invalid_body" and num_readers == MAX_GZIP_MEMBERS + 1


@pytest.mark.parametrize("encoding", STANDARD_COMPRESSORS)
def test_body_of_exactly_the_limit_is_accepted(encoding: str) -> None:
    data = bytes(10_000)
    assert decompress(STANDARD_COMPRESSORS[encoding](data), encoding, 10_000) == data
    with pytest.raises(ApiError) as caught:
        decompress(STANDARD_COMPRESSORS[encoding](data + b"x"), encoding, 10_000)
    assert caught.value.status == 413
    assert decompress(STANDARD_COMPRESSORS[encoding](b""), encoding, 10) == b""


@pytest.mark.parametrize("encoding", STANDARD_COMPRESSORS)
def test_decompression_bomb_is_stopped_at_the_limit(server: RunningServer, encoding: str) -> None:
    compress = STANDARD_COMPRESSORS[encoding]
    bomb = compress(bytes(64 * MAX_BODY_BYTES))
    # Its second half is invalid, so that reading all of it is a different error.
    bomb = bomb[: len(bomb) // 2] + b"\xff" * (len(bomb) // 2)
    assert read_error(post_encoded(server, bomb, encoding)) == (413, "request_too_large")
    assert read_error(post_encoded(server, compress(bytes(MAX_BODY_BYTES - 100)) * 3, encoding)) == (
        413,
        "request_too_large",
    )
    assert post_encoded(server, compress(json.dumps(BODY).encode()), encoding).status_code == 200


def test_zstd_window_above_the_memory_limit_is_rejected() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    compressed = compressor.compress(bytes(1000)) + compressor.flush()
    with pytest.raises(ApiError) as caught:
        decompress(compressed, "zstd", MAX_BODY_BYTES)
    assert (caught.value.status, caught.value.code) == (400, "invalid_body")


@pytest.mark.parametrize("encoding", STANDARD_COMPRESSORS)
@pytest.mark.parametrize("damage", ["cut", "nothing", "plain", "torn", "tail"])
def test_corrupt_body_is_rejected(server: RunningServer, encoding: str, damage: str) -> None:
    original = json.dumps(BODY).encode()
    compressed = STANDARD_COMPRESSORS[encoding](original)
    body = {
        "cut": compressed[:-3],
        "nothing": b"",
        "plain": original,
        "torn": compressed[:20] + bytes([compressed[20] ^ 0xFF]) + compressed[21:],
        "tail": compressed + b"{}",
    }[damage]
    reply = post_encoded(server, body, encoding)
    assert reply.status_code == 400 and reply.json()["error"]["code"] in ("invalid_body", "invalid_json")
