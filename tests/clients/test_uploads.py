"""Uploads through the openai SDK for Python: files in parts, their order, their check, and what ends one."""

import hashlib
import io
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources import Uploads
from openai.resources.uploads import Parts

from tests.app.server_helpers import wait_until
from tests.clients.batch_files import list_methods, open_client
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, on_both_stores, serve

MIB = 1 << 20
KEYS = ("sk-one", "sk-two")
SERVERS = on_both_stores(serve, [{"name": "any", "output": ["Yes."]}], api_keys=KEYS)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with open_client(server, KEYS[0]) as client:
        for file in client.files.list():
            client.files.delete(file.id)
        yield client


def create(client: openai.OpenAI, size: int, **fields: Any) -> Any:
    fields = {"filename": "a.bin", "purpose": "user_data", "mime_type": "application/pdf", **fields}
    return client.uploads.create(bytes=size, **fields)


def count_parts(server: RunningServer) -> int:
    """Returns the number of files in the database that no client can see."""
    reader: Any = server.context.store.debug.reader
    query = "SELECT count(*) FROM files WHERE upload IS NOT NULL"
    return int(reader.query_rows(query)[0][0])


def test_sdk_has_no_untested_method_of_uploads() -> None:
    assert list_methods(Uploads) == {"create", "complete", "cancel", "parts", "upload_file_chunked"}
    assert list_methods(Parts) == {"create"}


@pytest.mark.parametrize("part_size", [MIB, MIB // 3, 64 * MIB])
def test_file_is_uploaded_in_chunks(
    server: RunningServer, client: openai.OpenAI, tmp_path: Path, part_size: int
) -> None:
    content = random.Random(part_size).randbytes(3 * MIB + 17)
    path = tmp_path / "large.pdf"
    path.write_bytes(content)
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="application/pdf", purpose="user_data", part_size=part_size,
        md5=hashlib.md5(content, usedforsecurity=False).hexdigest(),
    )  # fmt: skip
    assert (upload.object, upload.status, upload.bytes, upload.filename) == (
        "upload", "completed", len(content), "large.pdf"
    )  # fmt: skip
    assert upload.file is not None and upload.file.expires_at is None
    assert client.files.retrieve(upload.file.id) == upload.file
    assert client.files.content(upload.file.id).content == content
    assert [file.id for file in client.files.list()] == [upload.file.id], "parts are no files"
    assert wait_until(HANG_TIMEOUT_S, lambda: count_parts(server) == 0)


def test_bytes_in_memory_are_uploaded_in_chunks(client: openai.OpenAI) -> None:
    upload = client.uploads.upload_file_chunked(
        file=b"x" * 1000, filename="a.png", bytes=1000, mime_type="image/png", purpose="vision", part_size=300
    )
    assert upload.file is not None and (upload.file.bytes, upload.file.purpose) == (1000, "vision")


def test_parts_are_joined_in_the_order_of_the_request(client: openai.OpenAI) -> None:
    upload = create(client, 6, expires_after={"anchor": "created_at", "seconds": 3600})
    assert (upload.status, upload.expires_at - upload.created_at, upload.file) == ("pending", 3600, None)
    first, second = (client.uploads.parts.create(upload.id, data=data) for data in (b"abc", io.BytesIO(b"def")))
    assert (first.object, first.upload_id) == ("upload.part", upload.id) and first.id.startswith("part_")
    done = client.uploads.complete(upload.id, part_ids=[second.id, first.id])
    assert done.file is not None and client.files.content(done.file.id).content == b"defabc"
    assert done.file.expires_at == done.file.created_at + 3600
    assert client.uploads.complete(upload.id, part_ids=[]) == done, "a client that repeats the request gets the file"
    for attempt in (
        lambda: client.uploads.parts.create(upload.id, data=b"x"),
        lambda: client.uploads.cancel(upload.id),
    ):
        with pytest.raises(openai.BadRequestError, match="has ended"):
            attempt()


def test_cancelled_upload_takes_nothing(server: RunningServer, client: openai.OpenAI) -> None:
    upload = create(client, 6)
    part = client.uploads.parts.create(upload.id, data=b"abcdef")
    assert client.uploads.cancel(upload.id).status == "cancelled" == client.uploads.cancel(upload.id).status
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.uploads.complete(upload.id, part_ids=[part.id])
    assert client.files.list().data == [] and wait_until(HANG_TIMEOUT_S, lambda: count_parts(server) == 0)


def test_parts_must_be_the_file(client: openai.OpenAI) -> None:
    upload, other = create(client, 6), create(client, 6)
    parts = [client.uploads.parts.create(upload.id, data=data).id for data in (b"abc", b"de", b"f")]
    foreign = client.uploads.parts.create(other.id, data=b"f").id
    for part_ids, message in (
        (parts[:2], "5 bytes"),
        ([*parts[:2], parts[1]], "once"),
        ([*parts[:2], foreign], "no part with id"),
        ([], "0 bytes"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            client.uploads.complete(upload.id, part_ids=part_ids)
    with pytest.raises(openai.BadRequestError, match="more than the 6 bytes"):
        client.uploads.parts.create(upload.id, data=b"g")
    with pytest.raises(openai.BadRequestError, match="md5") as refused:
        client.uploads.complete(upload.id, part_ids=parts, md5="0" * 32)
    assert refused.value.param == "md5" and client.files.list().data == []
    digest = hashlib.md5(b"abcdef", usedforsecurity=False).hexdigest().upper()
    assert client.uploads.complete(upload.id, part_ids=parts, md5=digest).status == "completed"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"size": 0}, 400, "bytes"),
        ({"size": 64 * MIB + 1}, 413, "bytes"),
        ({"size": 200 * MIB + 1, "purpose": "batch"}, 413, "bytes"),
        ({"purpose": "fine-tune"}, 400, "purpose"),
        ({"filename": "a\nb"}, 400, "filename"),
        ({"mime_type": openai.omit}, 400, "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "expires_after.seconds"),
    ],
)
def test_fields_are_checked(client: openai.OpenAI, fields: Any, status: int, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        create(client, **{"size": 1, **fields})
    assert refused.value.status_code == status and refused.value.body["param"] == param  # type: ignore[index]


def test_uploads_of_other_keys_do_not_exist(server: RunningServer, client: openai.OpenAI) -> None:
    upload = create(client, 3)
    with open_client(server, KEYS[1]) as other:
        attempts = (
            lambda: other.uploads.parts.create(upload.id, data=b"abc"),
            lambda: other.uploads.complete(upload.id, part_ids=[]),
            lambda: other.uploads.cancel(upload.id),
            lambda: client.uploads.cancel("upload_none"),
        )
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError, match="No such Upload object"):
                attempt()


def test_upload_expires_after_an_hour(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = create(client, 3)
    part = client.uploads.parts.create(upload.id, data=b"abc")
    monkeypatch.setattr(server.context.turn_manager, "clock", lambda: time.time() + 3601)
    for attempt in (
        lambda: client.uploads.parts.create(upload.id, data=b"abc"),
        lambda: client.uploads.complete(upload.id, part_ids=[part.id]),
    ):
        with pytest.raises(openai.BadRequestError, match="expired"):
            attempt()


def test_limit_is_an_option() -> None:
    with SERVERS["memory"](max_file_mib=1) as server, open_client(server, KEYS[0]) as client:
        assert client.files.create(file=bytes(MIB), purpose="user_data").bytes == MIB
        for purpose in ("user_data", "vision"):
            with pytest.raises(openai.APIStatusError, match="at most 1048576 bytes") as refused:
                client.files.create(file=bytes(MIB + 1), purpose=purpose)  # type: ignore[arg-type]
            assert refused.value.status_code == 413
        assert client.files.create(file=bytes(2 * MIB), purpose="batch").bytes == 2 * MIB
        with pytest.raises(openai.APIStatusError, match="at most 1048576 bytes"):
            create(client, MIB + 1)
        upload = create(client, MIB)
        with pytest.raises(openai.APIStatusError) as refused:
            client.uploads.parts.create(upload.id, data=bytes(MIB + (1 << 17)))
        assert refused.value.status_code == 413
