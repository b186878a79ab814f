"""HTTPS and secure WebSockets on real sockets, and refusals of certificates and keys at start."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect as connect_websocket

from antiphon.app.lifecycle.tls import load_ssl_context
from antiphon.app.observability.startup import base_urls
from antiphon.app.options.serve_options import ServeError
from antiphon.app.options.settings import Settings
from tests.app.http.certificates import write_certificate
from tests.conftest import StartServer
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

LONG_TEXT = "word " * 5_000
SCRIPT: list[dict[str, Any]] = [
    {"name": "long", "when": ["At length"], "output": [LONG_TEXT]},
    {"name": "stall", "when": ["Stall"], "output": ["On", {"stall": True}]},
    {"name": "hello", "output": ["Hello, ", "you."]},
]
BODY = {"model": "scripted", "input": "hi"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("certificate"))


def serve_tls(certificate: tuple[Path, Path]) -> AbstractContextManager[RunningServer]:
    return serve(SCRIPT, ssl_certfile=certificate[0], ssl_keyfile=certificate[1], body_timeout=0.3)


SERVER = serve_tls


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """A client's context that trusts the certificate only, and checks its name."""
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture
def client(trust: ssl.SSLContext) -> Iterator[httpx.Client]:
    with httpx.Client(verify=trust) as client:
        yield client


def https_url(server: RunningServer, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{server.port}/v1"


def read_events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_response_is_complete(server: RunningServer, client: httpx.Client, host: str) -> None:
    for _ in range(2):  # on one connection
        reply = client.post(f"{https_url(server, host)}/responses", json=BODY)
        assert reply.json()["output"][0]["content"][0]["text"] == "Hello, you."
    assert client.get(f"{https_url(server, host).removesuffix('/v1')}/health").json() == {"status": "ok"}


def test_large_body_arrives(server: RunningServer, client: httpx.Client) -> None:
    reply = client.post(f"{https_url(server)}/responses", json={**BODY, "input": "word " * 20_000})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("text", ["hi", "At length"])
def test_stream_is_complete(server: RunningServer, client: httpx.Client, text: str) -> None:
    body = {**BODY, "input": text, "stream": True}
    with client.stream("POST", f"{https_url(server)}/responses", json=body) as reply:
        events = read_events(reply)
    check_stream(events)
    expected = LONG_TEXT if text == "At length" else "Hello, you."
    assert (events[-1]["response"]["output"][0]["content"][0]["text"] == expected) is True  # without a long diff


async def test_websocket_is_secure(server: RunningServer, trust: ssl.SSLContext) -> None:
    url, origin = f"wss://localhost:{server.port}/v1/responses", f"https://localhost:{server.port}"
    async with connect_websocket(url, ssl=trust, max_size=None, origin=origin) as websocket:  # type: ignore[arg-type]
        for text in ("hi", "At length"):
            await websocket.send(json.dumps({"type": "response.create", **BODY, "input": text}))
            events = [json.loads(await websocket.recv())]
            while events[-1]["type"] not in ("response.completed", "response.incomplete", "error"):
                events.append(json.loads(await websocket.recv()))
            assert events[-1]["type"] == "response.completed"
            check_stream(events)


def test_excess_request_is_rejected(
    start_server: StartServer, certificate: tuple[Path, Path], client: httpx.Client
) -> None:
    files = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    server = start_server(scripted_registry(SCRIPT, max_num_seqs=1, max_waiting=0), **files)
    body = {**BODY, "input": "Stall", "stream": True}
    with client.stream("POST", f"{https_url(server)}/responses", json=body) as running:
        pieces = running.iter_raw()
        next(pieces)
        assert client.post(f"{https_url(server)}/responses", json=BODY).status_code == 429


def test_slow_body_is_answered_and_the_connection_closed(server: RunningServer, trust: ssl.SSLContext) -> None:
    head = (
        b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S)
    with plain, trust.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(head)
        reply = b""
        while piece := connection.recv(65536):
            reply += piece
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_client_that_stops_reading_is_disconnected(
    start_server: StartServer, certificate: tuple[Path, Path], trust: ssl.SSLContext
) -> None:
    output = [{"name": "flood", "output": ["word " * 400_000] * 4}]
    server = start_server(output, ssl_certfile=certificate[0], ssl_keyfile=certificate[1], stall_timeout=0.3)
    body = json.dumps({**BODY, "stream": True}).encode()
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(20)
        plain.connect(("127.0.0.1", server.port))
        with trust.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(head % len(body) + body)
            connection.recv(100)
            deadline = time.monotonic() + HANG_TIMEOUT_S
            while not server.access_records and time.monotonic() < deadline:
                time.sleep(0.02)
    assert server.access_records, "the turn still runs"


def test_http_on_the_port_is_closed_without_a_traceback(
    server: RunningServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while plain.recv(65536):
            pass
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_key_may_be_encrypted_and_in_the_file_of_the_certificate(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, password="open")
    assert load_ssl_context(Settings(ssl_certfile=certificate, ssl_keyfile=key, ssl_keyfile_password="open"))
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    assert load_ssl_context(Settings(ssl_certfile=certificate, ssl_keyfile_password="open"))
    with pytest.raises(ServeError, match=r"--ssl-certfile .*encrypted"):
        load_ssl_context(Settings(ssl_certfile=certificate))


def test_no_certificate_means_http() -> None:
    assert load_ssl_context(Settings()) is None
    assert base_urls(Settings(), 8000) == ["http://127.0.0.1:8000/v1"]
    assert base_urls(Settings(ssl_certfile=Path("c.pem")), 8000) == ["https://127.0.0.1:8000/v1"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ssl_keyfile": "key.pem"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ssl_keyfile_password": "open"}, "--ssl-keyfile-password needs --ssl-certfile"),
        ({"ssl_certfile": "missing.pem"}, "--ssl-certfile missing.pem: cannot be read: No such file"),
        ({"ssl_certfile": "."}, "--ssl-certfile .: cannot be read: Is a directory"),
        ({"ssl_certfile": "certificate.pem", "ssl_keyfile": "missing.pem"}, "--ssl-keyfile missing.pem: cannot be read"),
        ({"ssl_certfile": "empty.pem", "ssl_keyfile": "key.pem"}, "--ssl-certfile empty.pem: contains no certificate in PEM"),
        ({"ssl_certfile": "key.pem", "ssl_keyfile": "key.pem"}, "--ssl-certfile key.pem: contains no certificate in PEM"),
        ({"ssl_certfile": "certificate.pem"}, "--ssl-certfile certificate.pem: contains no private key; give --ssl-keyfile"),
        ({"ssl_certfile": "certificate.pem", "ssl_keyfile": "certificate.pem"}, "--ssl-keyfile certificate.pem: contains no private key"),
        ({"ssl_certfile": "certificate.pem", "ssl_keyfile": "empty.pem"}, "--ssl-keyfile empty.pem: contains no private key"),
        ({"ssl_certfile": "certificate.pem", "ssl_keyfile": "other/key.pem"}, "--ssl-keyfile other/key.pem: the key does not belong to the certificate"),
        ({"ssl_certfile": "locked/certificate.pem", "ssl_keyfile": "locked/key.pem"}, "--ssl-keyfile locked/key.pem: the private key is encrypted; give --ssl-keyfile-password"),
        ({"ssl_certfile": "locked/certificate.pem", "ssl_keyfile": "locked/key.pem", "ssl_keyfile_password": "x"}, "--ssl-keyfile locked/key.pem: --ssl-keyfile-password does not decrypt the private key"),
        ({"ssl_certfile": "locked/certificate.pem", "ssl_keyfile": "locked/key.pem", "ssl_keyfile_password": "x" * 2000}, "--ssl-keyfile locked/key.pem: --ssl-keyfile-password does not decrypt the private key"),
    ],
)  # fmt: skip
def test_unusable_files_are_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certificate(tmp_path)
    write_certificate(tmp_path / "other")
    write_certificate(tmp_path / "locked", password="open")
    (tmp_path / "empty.pem").write_bytes(b"")
    values: Any = {name: value if name.endswith("password") else Path(value) for name, value in files.items()}
    with pytest.raises(ServeError) as caught:
        load_ssl_context(Settings(**values))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
