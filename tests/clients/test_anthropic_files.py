"""Files through the anthropic SDK, on the paths that OpenAI's API has too, and both SDKs on one server."""

import io
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.resources import Files

from tests.clients.batch_files import list_methods, open_client
from tests.clients.sdk_helpers import open_anthropic
from tests.serving import RunningServer, on_both_stores, serve

KEYS = ("sk-one", "sk-two")
SERVERS = on_both_stores(serve, [{"name": "any", "output": ["Yes."]}], api_keys=KEYS)
DAY_S = 86_400


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with open_anthropic(server) as client:
        for file in client.files.list():
            client.files.delete(file.id)
        yield client


def test_sdk_has_no_untested_method_of_files() -> None:
    assert list_methods(Files) == {"list", "delete", "download", "retrieve_metadata", "upload"}


def test_file_has_the_fields_of_the_api(client: anthropic.Anthropic, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(b"\x89PNG")
    before = int(time.time())
    file = client.files.upload(file=path, expires_in_seconds=90 * DAY_S)
    assert re.fullmatch(r"file_[0-9a-f]{48}", file.id)
    assert (file.type, file.filename, file.mime_type, file.size_bytes) == ("file", "cat.png", "image/png", 4)
    assert file.downloadable is True and file.created_at >= datetime.fromtimestamp(before, UTC)
    assert file.expires_at is not None and (file.expires_at - file.created_at).total_seconds() == 90 * DAY_S
    assert client.files.retrieve_metadata(file.id) == file
    assert client.files.download(file.id).read() == b"\x89PNG"
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.type) == (file.id, "file_deleted")
    for attempt in (client.files.retrieve_metadata, client.files.download, client.files.delete):
        with pytest.raises(anthropic.NotFoundError, match="No such File object") as refused:
            attempt(file.id)
        assert refused.value.body["type"] == "error"  # type: ignore[index]
        assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


@pytest.mark.parametrize(
    ("file", "filename", "mime_type"),
    [
        (("a.pdf", b"x", "application/pdf"), "a.pdf", "application/pdf"),
        (("../../etc/a.txt", b"x"), "a.txt", "text/plain"),
        (("", b"x", "image/png"), "unnamed.png", "image/png"),
        (("a", b"x", "nonsense"), "a", "application/octet-stream"),
        (("a", b"x", "Text/Plain; charset=utf-8"), "a", "text/plain"),
        (io.BytesIO(b"x"), "unnamed.bin", "application/octet-stream"),
    ],
)
def test_name_and_type_come_with_the_file(
    client: anthropic.Anthropic, file: Any, filename: str, mime_type: str
) -> None:
    found = client.files.upload(file=file)
    assert (found.filename, found.mime_type, found.expires_at) == (filename, mime_type, None)


def test_files_are_listed_in_pages(client: anthropic.Anthropic) -> None:
    ids = [client.files.upload(file=("a", b"x")).id for _ in range(5)][::-1]
    assert [file.id for file in client.files.list()] == ids
    assert [file.id for file in client.files.list(limit=2)] == ids, "the SDK asks for three pages"
    page = client.files.list(limit=2)
    assert page.next_page is not None and page.next_page.startswith("page_")
    assert [file.id for file in client.files.list(limit=2, page=page.next_page).data] == ids[2:4]
    last = client.files.list(limit=5)
    assert len(last.data) == 5 and last.next_page is None
    chosen = client.files.list(ids=[ids[3], ids[0], "file_none", "x", ids[0]])
    assert ([file.id for file in chosen.data], chosen.next_page) == ([ids[0], ids[3]], None)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"page": "x"}, "page"),
        ({"page": "page_file-none"}, "page"),
        ({"ids": ["file_a"], "limit": 3}, "ids"),
        ({"ids": [f"file_{number}" for number in range(101)]}, "ids"),
    ],
)
def test_invalid_lists_are_refused(client: anthropic.Anthropic, query: Any, message: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=f"'{message}'"):
        client.files.list(**query)


@pytest.mark.parametrize("seconds", [3599, 90 * DAY_S + 1])
def test_lifetime_is_limited(client: anthropic.Anthropic, seconds: int) -> None:
    with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
        client.files.upload(file=("a", b"x"), expires_in_seconds=seconds)


def test_expired_file_does_not_exist(
    server: RunningServer, client: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client.files.upload(file=("a", b"x"), expires_in_seconds=3600)
    monkeypatch.setattr(server.context.turn_manager, "clock", lambda: time.time() + 3601)
    with pytest.raises(anthropic.NotFoundError):
        client.files.retrieve_metadata(file.id)
    assert client.files.list().data == []


def test_both_apis_have_the_same_files(server: RunningServer, client: anthropic.Anthropic) -> None:
    with open_client(server, KEYS[0]) as openai_client:
        ours = client.files.upload(file=("a.pdf", b"abc", "application/pdf"))
        theirs = openai_client.files.create(file=("b.txt", b"defg"), purpose="user_data")
        as_openai, as_anthropic = openai_client.files.retrieve(ours.id), client.files.retrieve_metadata(theirs.id)
        assert (as_openai.id, as_openai.bytes, as_openai.purpose) == (ours.id.replace("_", "-"), 3, "user_data")
        assert (as_anthropic.id, as_anthropic.size_bytes) == (theirs.id.replace("-", "_"), 4)
        assert as_anthropic.mime_type == "text/plain"
        for file_id in (ours.id, as_openai.id):
            assert client.files.download(file_id).read() == b"abc" == openai_client.files.content(file_id).content
        assert [file.id for file in openai_client.files.list(after=as_anthropic.id)] == [as_openai.id]
        assert [file.id for file in client.files.list(ids=[theirs.id])] == [as_anthropic.id]
        openai_client.files.delete(ours.id)
        with pytest.raises(openai.NotFoundError):
            openai_client.files.delete(as_openai.id)


def test_files_of_other_keys_do_not_exist(server: RunningServer, client: anthropic.Anthropic) -> None:
    file = client.files.upload(file=("a", b"x"))
    with open_anthropic(server, KEYS[1]) as other:
        assert other.files.list().data == [] and other.files.list(ids=[file.id]).data == []
        for attempt in (other.files.retrieve_metadata, other.files.download, other.files.delete):
            with pytest.raises(anthropic.NotFoundError):
                attempt(file.id)


def test_errors_have_the_shape_of_the_api(server: RunningServer) -> None:
    """Errors of the guard before the handler, too."""
    headers = {"anthropic-version": "2023-06-01", "x-api-key": KEYS[0]}
    form = {"file": ("a", b"x")}
    cases: list[tuple[httpx.Response, int, str]] = [
        (
            httpx.post(f"{server.url}/files", headers={**headers, "x-api-key": ""}, files=form),
            401,
            "authentication_error",
        ),
        (httpx.post(f"{server.url}/files", headers=headers, json={}), 415, "invalid_request_error"),
        (
            httpx.post(f"{server.url}/files", headers=headers, files=form, data={"purpose": "vision"}),
            400,
            "invalid_request_error",
        ),
        (httpx.get(f"{server.url}/files/none", headers=headers), 404, "not_found_error"),
    ]
    for reply, status, kind in cases:
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind), reply.text
        assert reply.json()["request_id"] == reply.headers["request-id"]
    reply = httpx.get(f"{server.url}/files/none", headers={"authorization": f"Bearer {KEYS[0]}"})
    assert reply.json()["error"]["param"] == "id", "OpenAI's clients get OpenAI's shape"
