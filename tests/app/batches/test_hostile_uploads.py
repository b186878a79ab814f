"""Uploads that clients break off, drip or malform, of whole files and of parts: each ends, and leaves nothing."""

import socket
import time
from functools import partial
from typing import Any

import pytest

from antiphon.app.http import protocol
from tests.app.batches.batch_client import BOUNDARY, BatchClient, count_rows
from tests.app.server_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

SCRIPT = [{"name": "any", "output": ["Yes."]}]
FILE_START = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="NAME"; filename="a"\r\n\r\n'
PURPOSE = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
END = f"--{BOUNDARY}--\r\n"
SERVER = partial(serve, SCRIPT, file_store=True, body_timeout=0.5)


@pytest.fixture(params=["files", "parts"])
def target(request: pytest.FixtureRequest, server: RunningServer) -> tuple[str, str]:
    """The path of an upload and the field of its file."""
    if request.param == "files":
        return "/files", "file"
    body = {"bytes": 1000, "filename": "a", "mime_type": "image/png", "purpose": "vision"}
    upload = BatchClient(server).post("/uploads", json=body).json()
    return f"/uploads/{upload['id']}/parts", "data"


def post_raw(server: RunningServer, path: str, body: str, **headers: str) -> Any:
    head = {"content-type": f"multipart/form-data; boundary={BOUNDARY}", **headers}
    return BatchClient(server).post(path, content=body.encode(), headers=head)


def open_upload(server: RunningServer, path: str, length: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S)
    head = (
        f"POST /v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def assert_nothing_left(server: RunningServer) -> None:
    """Asserts that no file is being written, that none but deleted ones are parts, and that the server answers."""
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "files", "writer", server.context.store.name) == 0)
    assert BatchClient(server).get("/files").json()["data"] == []


def test_file_that_drips_is_cut_off(
    server: RunningServer, target: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, field = target
    monkeypatch.setattr(protocol, "MIN_UPLOAD_BYTES_PER_S", 1 << 40)
    started = time.monotonic()
    with open_upload(server, path, 900) as connection:
        connection.sendall(FILE_START.replace("NAME", field).encode())
        connection.settimeout(0.05)
        reply = b""
        while not reply and time.monotonic() - started < HANG_TIMEOUT_S:
            try:
                connection.sendall(b"x")
                reply = connection.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
    assert reply.startswith(b"HTTP/1.1 408") and time.monotonic() - started < HANG_TIMEOUT_S
    assert_nothing_left(server)


@pytest.mark.parametrize("closes", ["half", "whole"])
def test_body_shorter_than_told_leaves_nothing(server: RunningServer, target: tuple[str, str], closes: str) -> None:
    path, field = target
    form = FILE_START.replace("NAME", field) + "abc\r\n" + (PURPOSE if field == "file" else "") + END
    with open_upload(server, path, len(form) + 5) as connection:
        connection.sendall(form.encode())
        if closes == "half":
            connection.shutdown(socket.SHUT_WR)
            assert not connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert_nothing_left(server)


BAD_BODIES = {
    "two files": (FILE_START + "a\r\n" + FILE_START + "b\r\n", 400),
    "no file": (PURPOSE, 400),
    "unknown field": (FILE_START + "a\r\n" + PURPOSE.replace("purpose", "x"), 400),
    "header bomb": (f"--{BOUNDARY}\r\n" + "X-A: a\r\n" * 100_000 + "\r\n", 400),
    "long header": (f"--{BOUNDARY}\r\nX-A: {'a' * 1_000_000}\r\n\r\n", 400),
    "no end": (FILE_START + "a", 400),
    "another boundary": (FILE_START.replace(BOUNDARY, "x") + "a\r\n", 400),
    "file name of 64 KB": (FILE_START.replace('filename="a"', f'filename="{"a" * 65_536}"') + "a\r\n", 400),
    "NUL in the file name": (FILE_START.replace('filename="a"', 'filename="a\0b"') + "a\r\n", 400),
    "no disposition": (f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\na\r\n", 400),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_malformed_form_is_refused(server: RunningServer, target: tuple[str, str], name: str) -> None:
    path, field = target
    body, status = BAD_BODIES[name]
    purpose = PURPOSE if field == "file" and "purpose" not in body else ""
    end = "" if name == "no end" else purpose + END
    reply = post_raw(server, path, body.replace("NAME", field) + end)
    assert reply.status_code == status and reply.json()["error"]["message"], reply.text
    assert_nothing_left(server)


def test_head_is_checked(server: RunningServer, target: tuple[str, str]) -> None:
    path, field = target
    form = FILE_START.replace("NAME", field) + "a\r\n" + END
    for headers, status in (
        ({"content-type": "multipart/form-data"}, 400),
        ({"content-type": "application/json"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"origin": "https://evil.example"}, 403),
    ):
        assert post_raw(server, path, form, **headers).status_code == status, headers
    with open_upload(server, path, 300 << 20) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert_nothing_left(server)
