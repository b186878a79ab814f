"""`/v1/files` over HTTP: forms of every shape, limits, lists, and files of other keys."""

import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from antiphon.app.route_helpers import upload
from antiphon.app.store.batches.records import FILE_PIECE_BYTES
from tests.app.batches.batch_client import BOUNDARY, KEYS, SCRIPT, BatchClient, count_rows
from tests.app.server_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

SERVER = partial(serve, SCRIPT, api_keys=KEYS, file_store=True)


@pytest.fixture
def client(server: RunningServer) -> BatchClient:
    return BatchClient(server, "alice")


def post_form(client: BatchClient, *parts: str, end: bool = True, headers: dict[str, str] | None = None) -> Any:
    body = "".join(f"--{BOUNDARY}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
    body += f"--{BOUNDARY}--\r\n" if end else ""
    head = {"content-type": f"multipart/form-data; boundary={BOUNDARY}", **(headers or {})}
    return client.post("/files", content=body.encode(), headers=head)


@pytest.mark.parametrize(
    "size", [0, 1, FILE_PIECE_BYTES - 1, FILE_PIECE_BYTES, FILE_PIECE_BYTES + 1, 3 * FILE_PIECE_BYTES + 7]
)
def test_content_comes_back_as_it_was_sent(client: BatchClient, size: int) -> None:
    content = bytes(number * 7 % 256 for number in range(4096)) * (size // 4096 + 1)
    content = content[:size]
    reply = client.upload(content, "user_data", "notes \u00e9.txt").json()
    assert re.fullmatch(r"file-[0-9a-f]{48}", reply["id"]) and reply["bytes"] == size
    assert {key: reply[key] for key in ("object", "filename", "purpose", "status", "expires_at")} == {
        "object": "file", "filename": "notes \u00e9.txt", "purpose": "user_data", "status": "processed", "expires_at": None
    }  # fmt: skip
    assert client.get(f"/files/{reply['id']}").json() == reply
    found = client.get(f"/files/{reply['id']}/content")
    assert found.content == content and found.headers["content-type"] == "application/octet-stream"


def test_fields_may_follow_the_file(client: BatchClient) -> None:
    reply = post_form(
        client,
        'name="file"; filename="../../etc/x.jsonl"\r\nContent-Type: text/plain\r\n\r\nabc',
        'name="purpose"\r\n\r\nbatch',
        'name="expires_after[anchor]"\r\n\r\ncreated_at',
        'name="expires_after[seconds]"\r\n\r\n3600',
    )
    assert reply.status_code == 200, reply.text
    assert (reply.json()["filename"], reply.json()["bytes"]) == ("x.jsonl", 3)
    assert reply.json()["expires_at"] - reply.json()["created_at"] == 3600


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("../../x", "x"), ("C:\\\\x", "x"), ("a\u202eb", "ab"), ("..", ".."), ("", "file"), ("a" * 300, "a" * 255)],
)
def test_file_name_has_no_path(client: BatchClient, sent: str, kept: str) -> None:
    reply = post_form(client, f'name="file"; filename="{sent}"\r\n\r\nabc', PURPOSE_PART)
    assert (reply.status_code, reply.json()["filename"]) == (200, kept), reply.text


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ("filename*=utf-8''na%C3%AFve%20%E4%B8%96.txt", "naïve 世.txt"),
        ("filename=\"a.txt\"; filename*=UTF-8'en'%e2%82%ac.txt", "€.txt"),
        ("filename*=iso-8859-1''%A3.txt; filename=\"a.txt\"", "£.txt"),
        ("filename*=utf-8''..%2F..%2Fetc%2Fb.txt", "b.txt"),
        ("filename*=utf-8''%FF.txt; filename=\"a.txt\"", "a.txt"),
        ("filename*=nocode''%E4.txt", "%E4.txt"),
        ('filename="=?utf-8?B?bmHDr3ZlLnR4dA==?="', "naïve.txt"),
        ('filename="=?UTF-8?Q?na=C3=AFve_?= =?utf-8?q?b=2Etxt?="', "naïve b.txt"),
        ('filename="=?iso-8859-1?Q?=A3.txt?="', "£.txt"),
        ('filename="=?nocode?B?QQ==?="', "=?nocode?B?QQ==?="),
        ('filename="=?utf-8?B?%%%?="', "=?utf-8?B?%%%?="),
        ('filename="a =?utf-8?B?QQ==?= b"', "a =?utf-8?B?QQ==?= b"),
    ],
)
def test_encoded_name_is_decoded(client: BatchClient, parameters: str, kept: str) -> None:
    reply = post_form(client, f'name="file"; {parameters}\r\n\r\nabc', PURPOSE_PART)
    assert (reply.status_code, reply.json().get("filename")) == (200, kept), reply.text


def test_control_character_in_an_encoded_name_is_refused(client: BatchClient) -> None:
    for parameters in ("filename*=utf-8''a%00b", "filename*=utf-8''a%0Ab", 'filename="=?utf-8?Q?a=1Bb?="'):
        reply = post_form(client, f'name="file"; {parameters}\r\n\r\nabc', PURPOSE_PART)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "filename"), reply.text


FILE_PART = 'name="file"; filename="a"\r\n\r\nabc'
PURPOSE_PART = 'name="purpose"\r\n\r\nbatch'
BAD_FORMS: dict[str, tuple[tuple[str, ...], str | None, str]] = {
    "no purpose": ((FILE_PART,), "purpose", "missing_required_parameter"),
    "no file": ((PURPOSE_PART,), "file", "missing_required_parameter"),
    "two files": ((FILE_PART, FILE_PART, PURPOSE_PART), "file", "invalid_value"),
    "another purpose": ((FILE_PART, 'name="purpose"\r\n\r\nfine-tune'), "purpose", "invalid_value"),
    "unknown field": ((FILE_PART, PURPOSE_PART, 'name="x"\r\n\r\n1'), "x", "unknown_parameter"),
    "long field": ((FILE_PART, f'name="purpose"\r\n\r\n{"b" * 2000}'), "purpose", "invalid_value"),
    "long file name": ((f'name="file"; filename="{"a" * 10_000}"\r\n\r\nabc', PURPOSE_PART), None, "invalid_body"),
    "10 000 parts": ((FILE_PART, *[f'name="x{number}"\r\n\r\n1' for number in range(10_000)]), None, "invalid_body"),
    "many fields": ((FILE_PART, *[f'name="x{number}"\r\n\r\n1' for number in range(20)]), None, "invalid_body"),
    "two purposes": ((FILE_PART, PURPOSE_PART, PURPOSE_PART), "purpose", "invalid_value"),
    "purpose of other servers": ((FILE_PART, 'name="purpose"\r\n\r\nevals'), "purpose", "invalid_value"),
    "NUL in the file name": (('name="file"; filename="a\0b"\r\n\r\nabc', PURPOSE_PART), "filename", "invalid_value"),
    "escape in the file name": (
        ('name="file"; filename="a\x1b[2J"\r\n\r\nabc', PURPOSE_PART),
        "filename",
        "invalid_value",
    ),
    "newline in the file name": (
        ('name="file"; filename="a\nb"\r\n\r\nabc', PURPOSE_PART),
        "filename",
        "invalid_value",
    ),
    "long header": (
        (f'name="file"; filename="a"\r\nX-A: {"a" * 10_000}\r\n\r\nabc', PURPOSE_PART),
        None,
        "invalid_body",
    ),
    "many headers": (
        ('name="file"; filename="a"\r\n' + "X-A: a\r\n" * 10_000 + "\r\nabc", PURPOSE_PART),
        None,
        "invalid_body",
    ),
    "no anchor": (
        (FILE_PART, PURPOSE_PART, 'name="expires_after[seconds]"\r\n\r\n3600'),
        "expires_after[anchor]",
        "missing_required_parameter",
    ),
    **{
        f"lifetime {value}": (
            (
                FILE_PART,
                PURPOSE_PART,
                'name="expires_after[anchor]"\r\n\r\ncreated_at',
                f'name="expires_after[seconds]"\r\n\r\n{value}',
            ),
            "expires_after[seconds]",
            code,
        )
        for value, code in (
            ("3599", "integer_below_min_value"),
            ("2592001", "integer_above_max_value"),
            ("x", "invalid_type"),
        )
    },
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_bad_form_is_refused_and_leaves_nothing(server: RunningServer, client: BatchClient, name: str) -> None:
    parts, param, code = BAD_FORMS[name]
    before = [file["id"] for file in client.get("/files").json()["data"]]
    reply = post_form(client, *parts)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code), reply.text
    assert [file["id"] for file in client.get("/files").json()["data"]] == before
    assert_no_incomplete(server)


def test_form_that_is_cut_off_is_refused(server: RunningServer, client: BatchClient) -> None:
    reply = post_form(client, FILE_PART, PURPOSE_PART, end=False)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_body")
    assert_no_incomplete(server)


def test_head_of_an_upload_is_checked_first(server: RunningServer, client: BatchClient) -> None:
    cases: dict[str, tuple[dict[str, str], int]] = {
        "JSON": ({"content-type": "application/json"}, 415),
        "no boundary": ({"content-type": "multipart/form-data"}, 400),
        "compressed": ({"content-encoding": "gzip"}, 415),
        "another page": ({"origin": "https://evil.example"}, 403),
        "without a key": ({"authorization": ""}, 401),
    }
    for name, (headers, status) in cases.items():
        assert post_form(client, FILE_PART, PURPOSE_PART, headers=headers).status_code == status, name
    form = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    assert client.post("/responses", content=b"--", headers=form).status_code == 415
    assert_no_incomplete(server)


def test_size_is_limited(server: RunningServer, client: BatchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MAX_BATCH_FILE_BYTES", 2 * FILE_PIECE_BYTES)
    assert client.upload(bytes(2 * FILE_PIECE_BYTES)).status_code == 200
    reply = client.upload(bytes(2 * FILE_PIECE_BYTES + 1))
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "file_too_large")
    with send_head(server, 300 << 20) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert_no_incomplete(server)


def test_files_of_a_key_are_limited_together(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = BatchClient(server, "bob"), BatchClient(server, "alice")
    monkeypatch.setattr(server.context.store, "max_owner_bytes", 3 * FILE_PIECE_BYTES)
    ids = [client.upload_id(bytes(FILE_PIECE_BYTES)) for _ in range(2)]
    reply = client.upload(bytes(FILE_PIECE_BYTES))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/files/" in reply.json()["error"]["message"]
    server.context.store.max_owner_bytes = 0
    assert client.upload(b"").json()["error"]["code"] == "storage_limit_exceeded"  # each file counts, an empty one, too
    server.context.store.max_owner_bytes = 3 * FILE_PIECE_BYTES
    assert other.get("/models").status_code == 200
    client.delete(f"/files/{ids[0]}")
    client.upload_id(bytes(FILE_PIECE_BYTES))


def test_lists_are_in_order_and_in_pages(server: RunningServer) -> None:
    with serve(SCRIPT) as fresh:
        client = BatchClient(fresh)
        ids = [client.upload_id(b"x", "batch" if number % 2 else "user_data") for number in range(5)]

        def list_ids(**query: Any) -> list[str]:
            reply = client.get("/files", params=query)
            assert reply.status_code == 200, reply.text
            assert reply.json()["first_id"] == (reply.json()["data"] or [{"id": None}])[0]["id"]
            return [file["id"] for file in reply.json()["data"]]

        assert list_ids() == ids[::-1]
        assert list_ids(order="asc") == ids
        assert list_ids(limit=2) == ids[:2:-1]
        assert client.get("/files", params={"limit": 2}).json()["has_more"] is True
        assert list_ids(limit=2, after=ids[3]) == [ids[2], ids[1]]
        assert list_ids(order="asc", after=ids[3]) == [ids[4]]
        assert list_ids(purpose="batch") == [ids[3], ids[1]]
        assert client.get("/files", params={"after": "file-none"}).json()["error"]["param"] == "after"


def test_files_of_other_keys_do_not_exist(server: RunningServer, client: BatchClient) -> None:
    other, file_id = BatchClient(server, "bob"), client.upload_id(b"secret")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        reply = other.request(method, f"/files/{file_id}{path}")
        assert reply.status_code == 404
        assert reply.json()["error"]["message"] == f"No such File object: {file_id}"
    assert file_id not in other.get("/files").text
    assert other.get("/files", params={"after": file_id}).status_code == 400
    assert client.get(f"/files/{file_id}/content").content == b"secret"


@pytest.mark.parametrize(
    "file_id", ["x", "file-", "file-none", "file-" + "a" * 200, "file-%00", "file-'; DROP", "batch_1"]
)
def test_malformed_ids_are_not_found(client: BatchClient, file_id: str) -> None:
    assert client.get(f"/files/{file_id}").status_code == 404


def test_deleted_file_is_gone_with_its_pieces(server: RunningServer, client: BatchClient) -> None:
    file_id = client.upload_id(bytes(20 * FILE_PIECE_BYTES))
    assert client.delete(f"/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    assert client.delete(f"/files/{file_id}").status_code == 404
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "file_pieces", "file", file_id) == 0)
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "files", "id", file_id) == 0)


def test_upload_that_is_broken_off_leaves_nothing(server: RunningServer) -> None:
    """The client sends two pieces and the begin of a third, and closes the connection."""
    with send_head(server, 50 << 20) as connection:
        begin = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        connection.sendall(begin.encode() + bytes(2 * FILE_PIECE_BYTES + 1000))
        assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "files", "writer", server.context.store.name) == 1)
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "files", "writer", server.context.store.name) == 0)


def test_expired_file_does_not_exist(
    server: RunningServer, client: BatchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client.upload(b"x", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json()
    assert client.get(f"/files/{file['id']}").status_code == 200
    monkeypatch.setattr(server.context.turn_manager, "clock", lambda: time.time() + 3601)
    assert client.get(f"/files/{file['id']}").status_code == 404
    assert file["id"] not in client.get("/files").text


def send_head(server: RunningServer, length: int) -> socket.socket:
    """Begins an upload of so many bytes. Returns the connection."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Length: {length}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def assert_no_incomplete(server: RunningServer) -> None:
    """Asserts that no upload has left a file that is being written."""
    name = server.context.store.name
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "files", "writer", name) == 0)


def test_health_stays_fast_beside_an_upload(client: BatchClient) -> None:
    """The server reads a large upload in pieces; it answers another request before that has arrived."""

    def slow_body() -> Iterator[bytes]:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        for _ in range(4):
            yield bytes(FILE_PIECE_BYTES)
            assert client.get("/models").status_code == 200
        yield f'\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}--\r\n'.encode()

    head = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    reply = client.post("/files", content=slow_body(), headers=head)
    assert reply.json()["bytes"] == 4 * FILE_PIECE_BYTES, reply.text


def test_unknown_file_of_an_image_is_named_also_for_a_model_that_sees_none(
    client: BatchClient, server: RunningServer
) -> None:
    known = client.upload(b"\x89PNG", "vision", "a.png").json()["id"]
    foreign = BatchClient(server, "bob").upload(b"\x89PNG", "vision", "a.png").json()["id"]
    for file_id, status in ((known, 200), (foreign, 400), ("file-nope", 400), ("../../etc/passwd", 400)):
        part = {"type": "input_image", "file_id": file_id}
        body = {"model": "scripted", "input": [{"role": "user", "content": [part]}]}
        reply = client.post("/responses", json=body)
        assert reply.status_code == status, reply.text
        block = {"type": "image", "source": {"type": "file", "file_id": file_id}}
        message = {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
        assert client.post("/messages", json=message).status_code == status
        if status == 400:
            error = reply.json()["error"]
            assert (error["code"], error["param"]) == ("image_file_not_found", "input[0].content[0].file_id")
