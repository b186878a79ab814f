"""Images of several owners, turns and files: whose bytes are used, for how long, and what is shown of them."""

import io
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from PIL import Image

from antiphon.app import context
from antiphon.app.media import processor_files
from antiphon.app.turns.media import reading
from tests.app.media.documents import make_pdf
from tests.clients.media.image_requests import (
    BLUE,
    BLUE_TOKENS,
    GREEN,
    RED,
    RED_TOKENS,
    Caller,
    RecordedJobs,
    chat_image,
    image_block,
    image_part,
    read_error,
    read_text,
    user,
)
from tests.clients.media.vision_model import SAY_IMAGES, data_url, make_png, serve_vision, vision_registry
from tests.serving import RunningServer, scripted_registry, serve

KEYS = ("sk-one", "sk-two")
ANTHROPIC = {"anthropic-version": "2023-06-01"}
INCLUDE = "message.input_image.image_url"
SCRIPT: list[dict[str, Any]] = [
    {"name": "summary", "when": ["summar"], "output": ["They looked at a picture."]},
    {"name": "think", "when": ["Think."], "output": ["<think>\nRed.\n</think>\n\n", {"media": True}]},
    SAY_IMAGES,
]


SERVER = partial(serve_vision, replies=SCRIPT, api_keys=KEYS, file_store=True)


@pytest.fixture
def caller(server: RunningServer) -> Caller:
    return Caller(server, KEYS[0])


@pytest.fixture
def jobs(server: RunningServer) -> RecordedJobs:
    return RecordedJobs(server)


def make_jpeg(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (width, height), color).save(written, "JPEG")
    return written.getvalue()


def list_image_urls(caller: Caller, response_id: str, **query: str) -> list[Any]:
    items = caller.get(f"/responses/{response_id}/input_items", order="asc", **query).json()["data"]
    return [part["image_url"] for item in items for part in item["content"] if part["type"] == "input_image"]


def test_owners_with_one_picture_share_nothing(server: RunningServer, jobs: RecordedJobs) -> None:
    callers = [Caller(server, key) for key in KEYS]
    picture = make_png(64, 160)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda each: each.respond([user(image_part(picture))]), callers))
    assert [read_text(reply)[:18] for reply in replies] == ["1 image: 10 tokens"] * 2
    assert len({job.owner for job in jobs}) == 2
    rows = server.context.store.debug.database.query_rows(
        "SELECT count(*), count(DISTINCT owner) FROM blobs WHERE size = ?", (len(picture),)
    )
    assert [tuple(row) for row in rows] == [(2, 2)]
    ids = [reply.json()["id"] for reply in replies]
    foreign = callers[1].respond("And?", previous_response_id=ids[0])
    assert read_error(foreign)["code"] == "previous_response_not_found"
    assert callers[0].delete(f"/responses/{ids[0]}").status_code == 200
    assert read_text(callers[1].respond("And?", previous_response_id=ids[1])).startswith("1 image: 10 tokens")


def test_files_of_other_owners_are_not_found(server: RunningServer, caller: Caller) -> None:
    file_id = caller.upload(RED)
    pdf = caller.upload(b"%PDF-1.4", "a.pdf")
    deleted = caller.upload(RED)
    caller.delete(f"/files/{deleted}")
    upload = caller.post("/uploads", {"bytes": 9, "filename": "a.png", "mime_type": "image/png", "purpose": "vision"})
    other = Caller(server, KEYS[1])
    for each, unknown in (
        (other, file_id),
        (caller, deleted),
        (caller, upload.json()["id"]),
        (caller, "file-" + "0" * 48),
    ):
        for kind, code in (("input_image", "image_file_not_found"), ("input_file", "file_not_found")):
            error = read_error(each.respond([user({"type": kind, "file_id": unknown})]))
            path = "input[0].content[0].file_id"
            assert (error["code"], error["param"]) == (code, path)
            assert error["message"] == f"File '{unknown}' at '{path}' was not found."
        block = {"type": "image", "source": {"type": "file", "file_id": unknown}}
        message = read_error(each.message({"role": "user", "content": [block]}))["message"]
        assert message == f"File '{unknown}' at 'messages.0.content.0.image.source.file' was not found."
    assert read_error(caller.respond([user({"type": "input_image", "file_id": pdf})]))["code"] == "invalid_value"
    assert read_error(caller.respond([user({"type": "input_file", "file_id": file_id})]))["code"] == "invalid_file"


def test_a_file_of_one_vendor_is_used_in_the_api_of_the_other(caller: Caller, jobs: RecordedJobs) -> None:
    openai_id = caller.upload(RED)
    anthropic = caller.post("/files", None, ANTHROPIC, files={"file": ("blue.png", BLUE, "image/png")}).json()
    block = {"type": "image", "source": {"type": "file", "file_id": openai_id.replace("file-", "file_")}}
    assert read_text(caller.message({"role": "user", "content": [block]})).startswith("1 image: 4 tokens")
    part = {"type": "input_image", "file_id": anthropic["id"], "detail": "low"}
    assert read_text(caller.respond([user(part)])).startswith("1 image: 6 tokens")
    text = caller.upload(b"alpha beta", "a.txt")
    document = {"type": "document", "source": {"type": "file", "file_id": text}}
    assert caller.message({"role": "user", "content": [document]}).status_code == 200
    assert '<file name="a.txt">\nalpha beta\n</file>' in jobs.prompt()
    chat_file = {"type": "file", "file": {"file_id": text}}
    assert caller.chat({"role": "user", "content": [chat_file]}).status_code == 200
    assert "alpha beta" in jobs.prompt()


def test_a_file_that_expires_between_two_turns(
    caller: Caller, jobs: RecordedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file_id = caller.upload(GREEN, **expires)
    part = {"type": "input_image", "file_id": file_id}
    first = caller.respond([user(part)]).json()
    monkeypatch.setattr(reading, "time", SimpleNamespace(time=lambda: time.time() + 3601))
    assert read_error(caller.respond([user(part)]))["code"] == "image_file_not_found"
    again = caller.respond("And?", previous_response_id=first["id"])
    assert read_text(again).startswith("1 image: 8 tokens"), "the conversation goes on with its bytes"


def test_pictures_that_are_nearly_equal(caller: Caller, jobs: RecordedJobs) -> None:
    changed = make_png(64, 64, (200, 30, 31))
    cases = {
        "same": image_part(RED),
        "pixel": image_part(changed),
        "detail": image_part(RED, detail="high"),
        "type": image_part(RED, "image/jpeg"),
        "format": image_part(make_jpeg(64, 64, (200, 30, 30)), "image/jpeg"),
    }
    keys, listed = {}, {}
    for name, part in cases.items():
        reply = caller.respond([user(part)])
        assert read_text(reply).startswith("1 image: 4 tokens")
        keys[name] = jobs[-1].media[0].key
        listed[name] = list_image_urls(caller, reply.json()["id"], include=INCLUDE)
    assert keys["same"] == keys["type"]
    assert len({keys[name] for name in ("same", "pixel", "format")}) == 3
    assert listed == {name: [part["image_url"]] for name, part in cases.items()}, "each as it was sent"
    both = caller.respond([user(cases["same"], cases["pixel"])])
    assert len({span.key for span in jobs[-1].media}) == 2, both.text


def test_items_are_replayed_without_a_store(caller: Caller, jobs: RecordedJobs) -> None:
    first = [user("Think.", image_part(RED))]
    include = ["reasoning.encrypted_content", INCLUDE]
    reply = caller.respond(first, store=False, include=include).json()
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"]
    assert reply["output"][0]["encrypted_content"]
    second = caller.respond([*first, *reply["output"], user("And?", image_part(BLUE))], store=False, include=include)
    assert read_text(second).startswith("2 images: 4 tokens")
    assert jobs.images() == [RED_TOKENS, BLUE_TOKENS]
    assert caller.get(f"/responses/{reply['id']}").status_code == 404
    rows = caller.server.context.store.debug.database.query_rows(
        "SELECT count(*) FROM blob_references WHERE holder = ?", (reply["id"],)
    )
    assert rows[0][0] == 0


def test_compaction_keeps_pictures_of_messages(caller: Caller, jobs: RecordedJobs) -> None:
    """The model sees the conversation as it was, and later the messages that the compaction keeps."""
    picture = image_part(make_png(96, 64, (1, 2, 3)))
    items = [user("What is it?", picture), user("Say it."), {"type": "compaction_trigger"}]
    reply = caller.respond(items)
    assert reply.status_code == 200, reply.text
    assert jobs.images() == [BLUE_TOKENS]
    [compaction] = reply.json()["output"]
    assert read_text(caller.respond([compaction, user("Go on.")])).startswith("They")
    assert jobs.images() == [BLUE_TOKENS] and "What is it?<6><" in jobs.prompt()


def test_truncation_drops_a_picture_as_a_whole(folder: Path) -> None:
    registry = vision_registry(folder, SCRIPT)
    engine: Any = registry.served[0].engine
    engine.info = structs.replace(engine.info, max_model_len=400)
    with serve(registry) as server:
        caller, jobs = Caller(server), RecordedJobs(server)
        items = [user("First." * 40, image_part(make_png(256, 256))), {"role": "assistant", "content": "Yes."}]
        items += [user("Second." * 10, image_part(RED))]
        refused = read_error(caller.respond(items, max_output_tokens=20))
        assert refused["code"] == "context_length_exceeded"
        kept = caller.respond(items, truncation="auto", max_output_tokens=20)
        assert kept.status_code == 200, kept.text
        assert jobs.images() == [RED_TOKENS] and "First." not in jobs.prompt()


@pytest.mark.parametrize("reason", ["model", "switch", "extra"])
def test_models_that_do_not_see(folder: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """A model without vision, images switched off, or no extra: a placeholder, or a refusal, in all three APIs."""
    if reason == "extra":
        for module in (processor_files, context):
            monkeypatch.setattr(module, "find_missing_packages", lambda _: ["pillow"])
    images = "off" if reason == "switch" else "auto"
    make = partial(vision_registry, folder, SCRIPT) if reason != "model" else partial(
        scripted_registry, SCRIPT, names=("vision",)
    )  # fmt: skip
    with serve(make(), images=images) as server, serve(make(), images=images, unsupported_media="refuse") as strict:
        caller, jobs, refusing = Caller(server), RecordedJobs(server), Caller(strict)
        requests = [
            lambda each: each.respond([user("x", image_part(RED))]),
            lambda each: each.chat({"role": "user", "content": [chat_image(RED)]}),
            lambda each: each.message({"role": "user", "content": [image_block(RED)]}),
        ]
        for request in requests:
            assert read_text(request(caller)).startswith("0 images")
            assert "[image]" in jobs.prompt()
            assert request(refusing).status_code == 400
        pdf = {"type": "input_file", "filename": "a.pdf", "file_data": data_url(make_pdf("gamma"), "application/pdf")}
        assert caller.respond([user(pdf)]).status_code == 200
        assert ("[file: a.pdf]" if reason == "extra" else '<page n="1">') in jobs.prompt()
        file_url = {"type": "input_image", "image_url": "https://example.com/a.png"}
        assert read_text(caller.respond([user(file_url)])).startswith("0 images")
        entry = caller.get("/models/vision").json()
        assert entry["input_modalities"] == ["text"]
        codex = caller.get("/models", client_version="1.0.0").json()["models"][0]
        assert (codex["input_modalities"], codex["supports_image_detail_original"]) == (["text"], False)


def test_both_catalogs_name_a_model_that_sees(caller: Caller) -> None:
    assert caller.get("/models/vision").json()["input_modalities"] == ["text", "image"]
    codex = caller.get("/models", client_version="1.0.0").json()["models"][0]
    assert (codex["input_modalities"], codex["supports_image_detail_original"]) == (["text", "image"], True)


def test_items_that_are_added_to_a_conversation(caller: Caller, jobs: RecordedJobs) -> None:
    conversation = caller.post("/conversations", {}).json()["id"]
    file_id = caller.upload(BLUE)
    item = {"type": "message", **user("Look.", image_part(RED), {"type": "input_image", "file_id": file_id})}
    assert caller.post(f"/conversations/{conversation}/items", {"items": [item]}).status_code == 200
    caller.delete(f"/files/{file_id}")
    reply = caller.respond("And?", conversation=conversation)
    assert read_text(reply).startswith("2 images: 4 tokens") and jobs.images() == [RED_TOKENS, BLUE_TOKENS]
    path = f"/conversations/{conversation}/items"
    listed = caller.get(path, order="asc").json()["data"][0]
    shown = caller.get(path, order="asc", include=INCLUDE).json()["data"][0]
    assert [part.get("image_url") for part in listed["content"]] == [None, None, None]
    assert [part.get("image_url") for part in shown["content"]] == [None, data_url(RED), None]
    assert shown["content"][2]["file_id"] == file_id
    assert caller.delete(f"{path}/{listed['id']}").status_code == 200
    assert read_text(caller.respond("And?", conversation=conversation)).startswith("0 images")
