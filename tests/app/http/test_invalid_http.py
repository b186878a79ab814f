"""Invalid HTTP is answered with a 400 in the API's shape, and the connection is closed at once."""

import json
from functools import partial

import pytest

from tests.app.http.socket_client import connect, read_to_end
from tests.serving import RunningServer, serve

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
BODY = b'{"model": "scripted", "input": "Hi"}'
HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def send_bytes(server: RunningServer, data: bytes) -> tuple[int, str]:
    """Sends bytes and reads until the server closes the connection. Returns status and error code."""
    with connect(server) as client:
        client.settimeout(5)
        client.sendall(data)
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize("version", ["9.9", "2.0", "1.2", "0.9"])
@pytest.mark.parametrize("target", ["/v1/models", "/health", "/v1/responses"])
def test_unknown_http_version_is_rejected(server: RunningServer, version: str, target: str) -> None:
    method = "POST" if target == "/v1/responses" else "GET"
    head = f"{method} {target} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    data = head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    assert send_bytes(server, data) == (400, "invalid_http")


@pytest.mark.parametrize("exponent", [64, 70, 79])
def test_chunk_size_out_of_range_is_rejected(server: RunningServer, exponent: int) -> None:
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 2**exponent
    assert send_bytes(server, data) == (400, "invalid_http")


def test_chunk_larger_than_a_body_is_rejected_before_it_arrives(server: RunningServer) -> None:
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (64 * 2**20)
    status, _ = send_bytes(server, data)
    assert status == 413


@pytest.mark.parametrize("size", [b"-1", b"0x10", b"g", b""])
def test_malformed_chunk_size_is_rejected(server: RunningServer, size: bytes) -> None:
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n"
    assert send_bytes(server, data) == (400, "invalid_http")


def test_chunked_body_of_several_chunks_is_read(server: RunningServer) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:9], BODY[9:]))
    with connect(server) as client:
        client.sendall(HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert read_to_end(client).startswith(b"HTTP/1.1 200")
