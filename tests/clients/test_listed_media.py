"""Pictures and files in lists of items and messages: what is shown, when, and which bytes are loaded for it."""

import asyncio
import base64
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import openai
import pytest
from msgspec import structs

from antiphon.app.projections import listed_media
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.blobs.blob_tables import BlobTables
from antiphon.app.turn_types.blob_urls import format_blob_url, refer_to
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputCustomOutput,
    InputFile,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputText,
)
from tests.app.store.store_helpers import make_response, make_steps
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, on_both_stores, serve

SERVERS = on_both_stores(serve, [{"name": "any", "output": ["Yes."]}])
PICTURE, SCREENSHOT, DOCUMENT = b"\x89PNG" * 50_000, b"\xff\xd8screen", b"%PDF"
PICTURE_URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
SCREENSHOT_URL = "data:image/jpeg;base64," + base64.b64encode(SCREENSHOT).decode()
WEB_URL = "https://example.com/a.png?x=1"
PICTURES, SCREENSHOTS = "message.input_image.image_url", "computer_call_output.output.image_url"
T = TypeVar("T")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes of the blobs that the server reads from its database."""
    hashes: list[bytes] = []
    load = BlobTables.load_blob

    def record(tables: BlobTables, owner: str, sha256: bytes) -> bytes | None:
        hashes.append(sha256)
        return load(tables, owner, sha256)

    monkeypatch.setattr(BlobTables, "load_blob", record)
    return hashes


def run(server: RunningServer, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, server.loop).result(HANG_TIMEOUT_S)


def blob_url(content: bytes, media_type: str, source_url: str = "") -> str:
    return format_blob_url(refer_to(content, media_type, source_url))


def contents_of(*contents: bytes) -> Mapping[bytes, bytes]:
    return {refer_to(content, "").sha256: content for content in contents}


def make_items() -> tuple[AnyInput, ...]:
    """Returns an item of each shape that has a picture or a file."""
    picture = InputImage(image_url=blob_url(PICTURE, "image/png"), detail="high")
    screenshot = {"type": "computer_screenshot", "image_url": blob_url(SCREENSHOT, "image/jpeg")}
    return (
        InputMessage(role="user", content=(InputText(text="a"), picture)),
        InputMessage(role="user", content=(InputImage(image_url=WEB_URL), InputImage(image_url=PICTURE_URL))),
        InputMessage(
            role="user",
            content=(
                InputImage(image_url=blob_url(PICTURE, "image/png", WEB_URL)),
                InputImage(image_url=blob_url(PICTURE, "image/png"), file_id="file-a"),
                InputFile(file_data=blob_url(DOCUMENT, "application/pdf"), filename="a.pdf"),
                InputFile(file_data=blob_url(DOCUMENT, ""), file_id="file-b", detail="low"),
            ),
        ),
        InputFunctionOutput(call_id="f", output=(picture,)),
        InputCustomOutput(call_id="c", output=(picture,)),
        HostedInput(kind="computer_call_output", payload={"call_id": "s", "output": screenshot}),
        HostedInput(
            kind="computer_call_output",
            payload={"call_id": "e", "output": {"type": "computer_screenshot", "image_url": ""}},
        ),
    )


async def add_response(server: RunningServer, name: str, items: tuple[AnyInput, ...], *contents: bytes) -> str:
    base = make_response(name)
    log = EventLog(base, "", with_ids(items, base.id), blobs=contents_of(*contents))
    log.append_step(make_steps()[0])
    server.context.store.add_log(log)
    for step in make_steps()[1:]:
        log.append_step(step)
    log.end_log()
    await log.wait_published()
    return log.id


def list_urls(items: Any) -> list[Any]:
    """Returns the URL of each picture of listed items, in order."""
    urls: list[Any] = []
    for item in items:
        fields = item.to_dict(warnings=False)
        output = fields.get("output")
        parts = [output] if isinstance(output, dict) else output or fields.get("content")
        urls += [part["image_url"] for part in parts if "image_url" in part]
    return urls


SHOWN: dict[tuple[str, ...], list[str | None]] = {
    (): [None, WEB_URL, None, WEB_URL, None, None, None, None, ""],
    (PICTURES,): [PICTURE_URL, WEB_URL, PICTURE_URL, WEB_URL, None, PICTURE_URL, PICTURE_URL, None, ""],
    (SCREENSHOTS,): [None, WEB_URL, None, WEB_URL, None, None, None, SCREENSHOT_URL, ""],
    (PICTURES, SCREENSHOTS): [
        PICTURE_URL, WEB_URL, PICTURE_URL, WEB_URL, None, PICTURE_URL, PICTURE_URL, SCREENSHOT_URL, ""
    ],
}  # fmt: skip
"""URLs in lists of `make_items`, by `include`."""


@pytest.mark.parametrize("include", SHOWN, ids=lambda include: "+".join(include) or "nothing")
def test_input_items_show_data_urls_only_if_included(
    server: RunningServer, client: openai.OpenAI, loaded: list[bytes], include: tuple[Any, ...]
) -> None:
    name = f"r{len(include)}{include[:1] == (PICTURES,)}{server.port}"
    response_id = run(server, add_response(server, name, make_items(), PICTURE, SCREENSHOT, DOCUMENT))
    items = client.responses.input_items.list(response_id, order="asc", include=list(include)).data
    assert list_urls(items) == SHOWN[include]
    assert len(loaded) == len(include), "each content once, and none that is not shown"
    files: Any = items[2].to_dict(warnings=False)["content"]
    assert [part.get("file_data") for part in files[2:]] == [None, None]
    assert (files[1]["file_id"], files[2]["filename"], files[3]["file_id"]) == ("file-a", "a.pdf", "file-b")
    assert files[3]["detail"] == "low" and "blob:" not in str(items)
    again = client.responses.input_items.list(response_id, order="asc", include=list(include)).data
    assert list_urls(again) == SHOWN[include], "a list changes nothing of the log"


def test_conversation_items_show_data_urls_only_if_included(
    server: RunningServer, client: openai.OpenAI, loaded: list[bytes]
) -> None:
    store = server.context.store
    conversation = client.conversations.create()
    run(
        server,
        store.add_items(
            "", conversation.id, with_ids(make_items(), "items"), contents_of(PICTURE, SCREENSHOT, DOCUMENT)
        ),
    )
    for include, urls in SHOWN.items():
        loaded.clear()
        items = client.conversations.items.list(conversation.id, order="asc", include=list(include)).data  # type: ignore[arg-type]
        assert list_urls(items) == urls and len(loaded) == len(include)
    first = items[0]
    for included in ([], [PICTURES]):
        found: Any = client.conversations.items.retrieve(
            str(first.id),
            conversation_id=conversation.id,
            include=included,  # type: ignore[arg-type]
        )
        assert list_urls([found]) == [PICTURE_URL if included else None]
    client.conversations.items.delete(str(first.id), conversation_id=conversation.id)
    assert run(server, store.read_blob("", refer_to(PICTURE, "").sha256)) == PICTURE, "other items have it"
    client.conversations.delete(conversation.id)
    counts = store.debug.database.query_rows("SELECT count(*) FROM blob_references WHERE kind = 'conversation'")
    assert counts == [(0,)]


def test_page_ends_early_where_its_pictures_are_large(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_media, "MAX_LISTED_BYTES", 450_000)
    message = InputMessage(role="user", content=(InputImage(image_url=blob_url(PICTURE, "image/png")),))
    large = InputMessage(role="user", content=(*message.content, *message.content, *message.content))  # type: ignore[arg-type]
    response_id = run(
        server, add_response(server, f"pages{server.port}", (message,) * 3 + (large,) + (message,), PICTURE)
    )
    sizes, after = [], openai.omit
    while True:
        page = client.responses.input_items.list(response_id, order="asc", include=[PICTURES], after=after)  # type: ignore[list-item]
        sizes.append(len(page.data))
        if not page.has_more:
            break
        after = page.data[-1].id  # type: ignore[assignment]
    assert sizes == [2, 1, 1, 1]
    assert len(client.responses.input_items.list(response_id).data) == 5, "without pictures, a page is a page"


def test_unknown_include_is_refused(server: RunningServer, client: openai.OpenAI) -> None:
    unknown = InputMessage(role="user", content=(InputImage(image_url=blob_url(b"nobody sent it", "image/png")),))
    response_id = run(server, add_response(server, f"unknown{server.port}", (unknown,)))
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.input_items.list(response_id, include=["message.input_image"])  # type: ignore[list-item]
    assert refused.value.param == "include"
    listed = client.responses.input_items.list(response_id, order="asc", include=[PICTURES]).data  # type: ignore[list-item]
    assert list_urls(listed) == [None], "a picture that is not stored is null"


def test_messages_of_stored_completions_are_whole(server: RunningServer, client: openai.OpenAI) -> None:
    url = blob_url(PICTURE, "image/png")
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": WEB_URL},
        {"type": "file", "file": {"file_data": blob_url(DOCUMENT, ""), "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-a"}},
    ]
    name = f"chatcmpl_{server.port}"

    async def add_completion() -> None:
        log = EventLog(
            structs.replace(make_response("a"), id=name), "", keeps_details=True, blobs=contents_of(PICTURE, DOCUMENT)
        )
        completion = StoredCompletion(
            id=name, created_at=1, model="m", metadata={}, choice_ids=(name,), form=ChatForm()
        )
        log.append_step(make_steps()[0])
        server.context.store.add_completion(completion, ({"role": "user", "content": parts},), [log])
        for step in make_steps()[1:]:
            log.append_step(step)
        log.end_log()
        await log.wait_published()

    run(server, add_completion())
    listed: Any = client.chat.completions.messages.list(name.replace("_", "-")).data[0].to_dict(warnings=False)
    assert listed["content_parts"] == [
        parts[0],
        {"type": "image_url", "image_url": {"url": PICTURE_URL, "detail": "low"}},
        parts[2],
        {"type": "file", "file": {"file_data": base64.b64encode(DOCUMENT).decode(), "filename": "a.pdf"}},
        parts[4],
    ]
