"""Packed request bodies: read, bounded, and refused by name where they are broken. Hard inputs, row 7."""

import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest
import zstandard

from antiphon.app.errors import ApiError
from antiphon.app.http.request_body import decompress
from tests.clients.sdk_helpers import post
from tests.serving import RunningServer, scripted_registry, serve

MOST = 4 * 1024 * 1024
BODY = {"model": "scripted", "input": "Hello! " * 200}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "ZSTD": zstandard.ZstdCompressor(write_content_size=False).compress,
    "x-gzip": gzip.compress,
}
ONE = {name: pack for name, pack in PACK.items() if name.islower() and not name.startswith("x-")}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}]), max_body_bytes=MOST) as running:
        yield running


def send(served: RunningServer, body: bytes, encoding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return post(f"{served.url}/responses", content=body, headers=headers, timeout=20)


def error(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json()["error"]["code"]


@pytest.mark.parametrize("encoding", PACK)
def test_a_packed_body_is_read(served: RunningServer, encoding: str) -> None:
    packed = PACK[encoding](json.dumps(BODY).encode())
    assert len(packed) < 200
    reply = send(served, packed, encoding)
    assert reply.status_code == 200 and reply.json()["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.parametrize("encoding", ONE)
def test_many_members_are_one_body(encoding: str) -> None:
    pack = ONE[encoding]
    parts = [b'{"model": ', b'"scripted", ', b'"input": "x"}']
    assert decompress(b"".join(map(pack, parts)), encoding, MOST) == b"".join(parts)
    assert decompress(b"".join(map(pack, [*parts, b""])), encoding, MOST) == b"".join(parts)


def test_members_without_end_are_no_body_and_take_no_time() -> None:
    began = time.monotonic()
    with pytest.raises(ApiError) as raised:
        decompress(gzip.compress(b"") * 100_000, "gzip", MOST)
    assert raised.value.code == "invalid_body" and time.monotonic() - began < 1


@pytest.mark.parametrize("encoding", ONE)
def test_exactly_the_limit_is_no_more_than_the_limit(encoding: str) -> None:
    data = bytes(10_000)
    assert decompress(ONE[encoding](data), encoding, 10_000) == data
    with pytest.raises(ApiError) as raised:
        decompress(ONE[encoding](data + b"x"), encoding, 10_000)
    assert raised.value.status == 413
    assert decompress(ONE[encoding](b""), encoding, 10) == b""


@pytest.mark.parametrize("encoding", ONE)
def test_a_bomb_stops_at_the_limit_and_the_server_goes_on(served: RunningServer, encoding: str) -> None:
    pack = ONE[encoding]
    bomb = pack(bytes(64 * MOST))
    began = time.monotonic()
    assert error(send(served, bomb, encoding)) == (413, "request_too_large")
    assert error(send(served, pack(bytes(MOST - 100)) * 3, encoding)) == (413, "request_too_large")
    assert time.monotonic() - began < 5
    assert send(served, pack(json.dumps(BODY).encode()), encoding).status_code == 200


def test_a_window_that_would_need_too_much_memory() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(bytes(1000)) + packer.flush()
    with pytest.raises(ApiError) as raised:
        decompress(packed, "zstd", MOST)
    assert (raised.value.status, raised.value.code) == (400, "invalid_body")


@pytest.mark.parametrize("encoding", ONE)
@pytest.mark.parametrize("how", ["cut", "nothing", "plain", "torn", "tail"])
def test_what_is_not_what_it_says(served: RunningServer, encoding: str, how: str) -> None:
    whole = json.dumps(BODY).encode()
    packed = ONE[encoding](whole)
    body = {
        "cut": packed[:-3],
        "nothing": b"",
        "plain": whole,
        "torn": packed[:20] + bytes([packed[20] ^ 0xFF]) + packed[21:],
        "tail": packed + b"{}",
    }[how]
    reply = send(served, body, encoding)
    assert reply.status_code == 400 and reply.json()["error"]["code"] in ("invalid_body", "invalid_json")
