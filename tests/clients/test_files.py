"""Files through the openai SDK for Python: uploads, lists, content, deletion."""

import hashlib
import io
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources import Files

from tests.clients.batch_files import DAY_S, SCRIPT, UNKNOWN_FILE, list_methods, open_client
from tests.serving import RunningServer, serve

SERVER = partial(serve, SCRIPT, file_store=True)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """A client of a server that has no file when a test starts."""
    with open_client(server) as client:
        for file in client.files.list():
            client.files.delete(file.id)
        yield client


def test_sdk_has_no_untested_method_of_files() -> None:
    """The tests below use every method that the SDK has; `retrieve_content` is the old name of `content`."""
    assert list_methods(Files) == set(
        "create retrieve list delete content retrieve_content wait_for_processing".split()
    )


def write_upload(folder: Path) -> Path:
    path = folder / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    return path


@pytest.mark.parametrize(
    ("make_file", "filename"),
    [
        (write_upload, "lines.jsonl"),
        (lambda _: ("Überblick 1.jsonl", b'{"a": 1}\n'), "Überblick 1.jsonl"),
        (lambda _: ('a "b".jsonl', io.BytesIO(b'{"a": 1}\n'), "application/jsonl"), 'a "b".jsonl'),
        (lambda _: ("../up/down.jsonl", b'{"a": 1}\n'), "down.jsonl"),
        (lambda _: io.BytesIO(b'{"a": 1}\n'), "upload"),
        (lambda _: b'{"a": 1}\n', "upload"),
    ],
    ids=["path", "bytes", "BytesIO", "path as name", "BytesIO without a name", "bytes without a name"],
)
def test_every_form_of_file_is_uploaded(client: openai.OpenAI, tmp_path: Path, make_file: Any, filename: str) -> None:
    before = int(time.time())
    file = client.files.create(file=make_file(tmp_path), purpose="batch")
    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", 9, filename, "batch")
    assert (file.status, file.status_details) == ("processed", None)
    assert file.id.startswith("file-") and before <= file.created_at <= time.time()
    assert file.expires_at == file.created_at + 30 * DAY_S
    assert client.files.retrieve(file.id) == file == client.files.wait_for_processing(file.id)
    assert client.files.content(file.id).content == b'{"a": 1}\n'


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (3 << 20) + 7])
def test_content_comes_back_in_every_size(client: openai.OpenAI, tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    file = client.files.create(file=("x.bin", content), purpose="user_data")
    assert (file.bytes, file.expires_at) == (size, None)
    reply = client.files.content(file.id)
    assert reply.response.headers["content-length"] == str(size)
    reply.write_to_file(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    digest = hashlib.sha256()
    with client.files.with_streaming_response.content(file.id) as streamed:
        for piece in streamed.iter_bytes():
            digest.update(piece)
    assert digest.digest() == hashlib.sha256(content).digest()


def test_files_are_listed_in_pages(client: openai.OpenAI) -> None:
    purposes: list[Any] = ["batch", "user_data", "batch", "vision", "batch"]
    ids = [client.files.create(file=b"x", purpose=purpose).id for purpose in purposes]
    assert [file.id for file in client.files.list()] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1], "the SDK asks for three pages"
    assert [file.id for file in client.files.list(limit=2, order="asc", purpose="batch")] == ids[::2]
    page = client.files.list(limit=2, after=ids[4])
    assert ([file.id for file in page.data], page.has_more) == ([ids[3], ids[2]], True)
    last = page.get_next_page()
    assert ([file.id for file in last.data], last.has_next_page()) == ([ids[1], ids[0]], False)
    assert [file.id for file in client.files.list(after=ids[3], order="asc")] == ids[4:]
    assert client.files.list(purpose="evals").data == []


def test_deleted_file_is_gone(client: openai.OpenAI) -> None:
    kept, gone = (client.files.create(file=b"x", purpose="batch").id for _ in range(2))
    deleted = client.files.delete(gone)
    assert (deleted.id, deleted.object, deleted.deleted) == (gone, "file", True)
    assert [file.id for file in client.files.list()] == [kept]
    for attempt in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {gone}"):
            attempt(gone)
    with pytest.raises(openai.BadRequestError, match=f"No such File object: {gone}"):
        client.batches.create(input_file_id=gone, endpoint="/v1/responses", completion_window="24h")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"purpose": "fine-tune"}, "invalid_value", "purpose"),
        ({"purpose": "batch_output"}, "invalid_value", "purpose"),
        ({"purpose": openai.omit}, "missing_required_parameter", "purpose"),
        ({"expires_after": {"seconds": 3600}}, "missing_required_parameter", "expires_after[anchor]"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "invalid_value", "expires_after[anchor]"),
        ({"expires_after": {"anchor": "created_at"}}, "missing_required_parameter", "expires_after[seconds]"),
        ({"expires_after": {"anchor": "created_at", "seconds": "x"}}, "invalid_type", "expires_after[seconds]"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "integer_below_min_value", "expires_after[seconds]"),
        ({"expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "integer_above_max_value", "expires_after[seconds]"),
        ({"extra_body": {"wisdom": 1}}, "unknown_parameter", "wisdom"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)  # fmt: skip
def test_refused_upload_names_its_field(client: openai.OpenAI, fields: Any, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(**{"file": b"x", "purpose": "batch", **fields})
    assert (caught.value.code, caught.value.param) == (code, param)
    assert client.files.list().data == [], "nothing is left of it"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"order": "up"}, "order"),
        ({"purpose": "x"}, "purpose"),
        ({"after": UNKNOWN_FILE}, "after"),
    ],
    ids=str,
)
def test_invalid_query_of_files_is_refused(client: openai.OpenAI, query: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.list(**query)
    assert caught.value.param == param
