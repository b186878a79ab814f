"""Replies to clients about images and files, as text in `/snapshots/image_wire`: lists, errors, objects, catalogs, usage.

Ids are numbered, times are 0, and base64 is its length.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.outbound.faults import FetchFault
from antiphon.app.outbound.fetcher import UrlFetcher
from tests.app.media.documents import encrypt_pdf, make_pdf
from tests.clients.media.image_requests import BLUE, RED, Caller, call_items, chat_image, image_block, image_part, user
from tests.clients.media.vision_model import SAY_IMAGES, data_url, make_png, vision_registry, write_vision_model
from tests.serving import RunningServer, scripted_registry, serve
from tests.snapshots.snapshot_files import SNAPSHOT_FOLDER, CaseSnapshot

ANTHROPIC = {"anthropic-version": "2023-06-01"}
PDF = make_pdf("gamma delta")
INCLUDES = ("message.input_image.image_url", "computer_call_output.output.image_url")
MIB = 1 << 20
SCRIPT: list[dict[str, Any]] = [
    {"name": "hit", "when": ["Again."], "output": ["Yes."], "cached_tokens": 20},
    SAY_IMAGES,
]
_ID = re.compile(r"\b([a-z]+[_-])[0-9a-f]{48,}\b")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{60,}")
_TIMES = re.compile(r'("(?:created_at|expires_at|last_active_at)": )(\d+|"[^"]*")')

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")
"""The files are named after what they show."""
SendRequest = Callable[[Caller], httpx.Response]


class ImageWireSnapshot(CaseSnapshot):
    """One text file for each subject: `snapshots/image_wire/NAME.txt`."""

    folder = SNAPSHOT_FOLDER / "image_wire"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serve(vision_registry(folder, SCRIPT), max_image_mib=1, max_images=22) as running:
        yield running


@pytest.fixture
def caller(server: RunningServer) -> Caller:
    return Caller(server)


@pytest.fixture
def compare(snapshot: SnapshotAssertion) -> Callable[[str, list[str]], None]:
    """Compares lines with those of a snapshot."""

    def compare_lines(name: str, lines: list[str]) -> None:
        text = number_ids("\n".join(lines) + "\n")
        assert text == snapshot(name=name, extension_class=ImageWireSnapshot)

    return compare_lines


def number_ids(text: str) -> str:
    """Replaces the ids in a text by their kind and a number, in the order in which they come."""
    numbers: dict[str, str] = {}
    counts: dict[str, int] = {}

    def number_id(match: re.Match[str]) -> str:
        if match[0] not in numbers:
            counts[match[1]] = counts.get(match[1], 0) + 1
            numbers[match[0]] = f"{match[1]}{counts[match[1]]}"
        return numbers[match[0]]

    return _ID.sub(number_id, text)


def dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    text = _TIMES.sub(r"\g<1>0", text)
    return _BASE64.sub(lambda match: f"<{len(match[0])} of base64>", text)


def show_error(reply: httpx.Response) -> str:
    body = reply.json()
    body.pop("request_id", None)
    return f"  {reply.status_code}  {dump(body)}"


def document(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source}


def file_part(data: bytes, filename: str = "a.pdf", media_type: str = "application/pdf") -> dict[str, Any]:
    return {"type": "input_file", "filename": filename, "file_data": data_url(data, media_type)}


def respond(*parts: Any) -> SendRequest:
    return lambda caller: caller.respond([user(*parts)])


def chat(*parts: Any) -> SendRequest:
    return lambda caller: caller.chat({"role": "user", "content": list(parts)})


def message(*blocks: Any) -> SendRequest:
    return lambda caller: caller.message({"role": "user", "content": list(blocks)})


def image_url(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def chat_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CUT, BITMAP, LARGE = RED[:60], b"BM" + bytes(60), bytes(MIB + 1)
MANY_PAGES = make_pdf(*["x"] * 101)
UNKNOWN = "file-" + "0" * 48
URL = "https://pictures.example/a.png?key=secret"
RESPONSES_FAULTS: dict[str, SendRequest] = {
    "cut": respond("x", image_part(CUT)),
    "another format": respond(image_part(BITMAP)),
    "in an output": lambda caller: caller.respond(
        [user("x"), *call_items("c"), {"type": "function_call_output", "call_id": "c", "output": [image_part(CUT)]}]
    ),
    "a screenshot": lambda caller: caller.respond(
        [{"type": "computer_call_output", "call_id": "c",
          "output": {"type": "computer_screenshot", "image_url": data_url(CUT)}}]
    ),
    "no bytes": respond(image_url("data:image/png;base64,")),
    "no base64": respond(image_url("data:image/png;base64,a b c")),
    "no comma": respond(image_url("data:image/png;base64")),
    "another type": respond(image_url(data_url(RED, "image/heic"))),
    "no type": respond(image_url(data_url(RED, ""))),
    "bytes": respond(image_part(LARGE)),
    "side": respond(image_part(make_png(16_001, 1))),
    "ratio": respond(image_part(make_png(400, 1))),
    "number": respond(*[image_part(RED)] * 23),
    "unknown image": respond({"type": "input_image", "file_id": UNKNOWN}),
    "unknown file": respond({"type": "input_file", "file_id": UNKNOWN}),
    "URL of an image": respond(image_url(URL)),
    "URL of a file": respond({"type": "input_file", "file_url": URL}),
    "private URL": respond(image_url("http://127.0.0.1/a.png")),
    "blob URL": respond(image_url("blob:sha256-" + "0" * 64 + ";image/png;9")),
    "both sources": respond({"type": "input_image", "image_url": data_url(RED), "file_id": UNKNOWN}),
    "no source": respond({"type": "input_image"}),
    "PDF, password": respond(file_part(encrypt_pdf(PDF))),
    "PDF, damaged": respond(file_part(b"%PDF-1.7 nothing")),
    "PDF, none": respond(file_part(b"no document")),
    "PDF, pages": respond(file_part(MANY_PAGES)),
    "archive": respond(file_part(b"PK\x03\x04" + bytes(50), "a.zip", "application/zip")),
}  # fmt: skip
CHAT_FAULTS: dict[str, SendRequest] = {
    "cut": chat(chat_image(CUT)),
    "another format": chat(chat_image(BITMAP)),
    "another type": chat(chat_url(data_url(RED, "image/heic"))),
    "no bytes": chat(chat_url("data:image/png;base64,")),
    "bytes": chat(chat_image(LARGE)),
    "side": chat(chat_image(make_png(16_001, 1))),
    "number": chat(*[chat_image(RED)] * 23),
    "unknown file": chat({"type": "file", "file": {"file_id": UNKNOWN}}),
    "URL": chat(chat_url(URL)),
    "PDF, password": chat({"type": "file", "file": {"filename": "a.pdf", "file_data": data_url(encrypt_pdf(PDF), "application/pdf")}}),
}  # fmt: skip
MESSAGES_FAULTS: dict[str, SendRequest] = {
    "cut": message({"type": "text", "text": "x"}, image_block(CUT)),
    "in a result": lambda caller: caller.message(
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [image_block(CUT)]}]},
    ),
    "in a document": message({"type": "document", "source": {"type": "content", "content": [image_block(CUT)]}}),
    "another format than its type": message(image_block(RED, "image/jpeg")),
    "another type": message(image_block(RED, "image/heic")),
    "no bytes": message(image_block(b"")),
    "base64 over 5 MiB": message(image_block(bytes(4 * MIB))),
    "side": message(image_block(make_png(8001, 64))),
    "side of many": message(*[image_block(RED)] * 20, image_block(make_png(2001, 64))),
    "number": message(*[image_block(RED)] * 23),
    "unknown image": message({"type": "image", "source": {"type": "file", "file_id": UNKNOWN}}),
    "URL": message({"type": "image", "source": {"type": "url", "url": URL}}),
    "in the system prompt": lambda caller: caller.message({"role": "user", "content": "x"}, system=[image_block(RED)]),
    "PDF, password": message(document(encrypt_pdf(PDF))),
    "PDF, damaged": message(document(b"%PDF-1.7 nothing")),
    "PDF, none": message(document(b"no document")),
    "PDF, empty": message(document(b"")),
    "PDF, pages": message(document(MANY_PAGES)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("api", "faults"), [("responses", RESPONSES_FAULTS), ("chat", CHAT_FAULTS), ("messages", MESSAGES_FAULTS)]
)
def test_errors(
    caller: Caller,
    folder: Path,
    compare: Any,
    monkeypatch: pytest.MonkeyPatch,
    api: str,
    faults: dict[str, SendRequest],
) -> None:
    lines = [f"{name}\n{show_error(send(caller))}" for name, send in faults.items()]
    requests = {
        "responses": respond(image_part(BLUE)),
        "chat": chat(chat_image(BLUE)),
        "messages": message(image_block(BLUE)),
    }
    blind = scripted_registry(SCRIPT, names=("vision",))
    with serve(blind, unsupported_media="refuse") as strict:
        lines.append(f"a model that does not see\n{show_error(requests[api](Caller(strict)))}")
    for code in ("too_slow", "busy"):

        async def fail(*_: Any, _code: Any = code, **__: Any) -> Any:
            raise MediaFault(_code)

        monkeypatch.setattr(MediaPreparer, "prepare", fail)
        monkeypatch.setattr(MediaPreparer, "find", lambda *_, **__: None)
        lines.append(f"{code}\n{show_error(requests[api](caller))}")
    urls = {
        "responses": respond(image_url(URL)),
        "chat": chat(chat_url(URL)),
        "messages": message({"type": "image", "source": {"type": "url", "url": URL}}),
    }
    for fault in (FetchFault("status", URL, status=404), FetchFault("timeout", URL)):

        async def fail_to_fetch(*_: Any, _fault: FetchFault = fault) -> Any:
            raise _fault

        monkeypatch.setattr(UrlFetcher, "fetch", fail_to_fetch)
        lines.append(f"download, {fault.code}\n{show_error(urls[api](caller))}")
    compare(f"errors_{api}", lines)


def test_input_items(caller: Caller, compare: Any) -> None:
    picture, pdf = caller.upload(RED), caller.upload(PDF, "a.pdf")
    shot = {"type": "computer_screenshot", "image_url": data_url(RED)}
    items = [
        user("a", image_part(RED, detail="high"), {"type": "input_image", "file_id": picture, "detail": "auto"}),
        user(file_part(PDF), {"type": "input_file", "file_id": pdf}),
        *call_items("f"),
        {"type": "function_call_output", "call_id": "f", "output": user("b", image_part(BLUE))["content"]},
        {"type": "custom_tool_call", "call_id": "x", "name": "draw", "input": "red"},
        {"type": "custom_tool_call_output", "call_id": "x", "output": [image_part(BLUE, detail="original")]},
        *[
            item
            for call_id, output in {
                "s": shot, "i": {**shot, "type": "input_image"}, "e": {**shot, "image_url": ""},
                "d": {"type": "computer_screenshot", "file_id": picture},
            }.items()
            for item in (
                {"type": "computer_call", "id": f"cu_{call_id}", "call_id": call_id, "action": {"type": "screenshot"},
                 "status": "completed", "pending_safety_checks": []},
                {"type": "computer_call_output", "call_id": call_id, "output": output},
            )
        ],
    ]  # fmt: skip
    reply = caller.respond(items)
    assert reply.status_code == 200, reply.text
    lines: list[str] = []
    for include in ((), *[(each,) for each in INCLUDES]):
        query: dict[str, Any] = {"order": "asc", "include": list(include)}
        listed = caller.get(f"/responses/{reply.json()['id']}/input_items", **query).json()["data"]
        lines += [f"include {', '.join(include) or 'nothing'}", *[f"  {dump(item)}" for item in listed]]
    compare("input_items", lines)


def test_objects_of_files(caller: Caller, compare: Any) -> None:
    for known in caller.get("/files").json()["data"]:
        caller.delete(f"/files/{known['id']}")
    lines: list[str] = []

    def show(title: str, reply: httpx.Response) -> Any:
        body = reply.json()
        body.pop("request_id", None)
        lines.append(f"{title}\n  {reply.status_code}  {dump(body)}")
        return body

    fields = {"purpose": "vision", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    send = {"files": {"file": ("red.png", RED, "image/png")}}
    file = show("POST /v1/files", caller.post("/files", None, data=fields, **send))
    path = f"/files/{file['id']}"
    show("GET /v1/files/ID", caller.get(path))
    show("GET /v1/files", caller.get("/files"))
    anthropic = show("POST /v1/files, Anthropic", caller.post("/files", None, ANTHROPIC, **send))
    show("GET /v1/files/ID, Anthropic", caller.get(f"/files/{anthropic['id']}", ANTHROPIC))
    show("GET /v1/files, Anthropic", caller.get("/files", ANTHROPIC))
    show("DELETE /v1/files/ID", caller.delete(path))
    show("GET /v1/files/ID, deleted", caller.get(path))
    show("GET /v1/files/ID, deleted, Anthropic", caller.get(path, ANTHROPIC))
    url, headers = f"{caller.server.url}/files/{anthropic['id']}", ANTHROPIC
    show("DELETE /v1/files/ID, Anthropic", httpx.delete(url, headers=headers, timeout=None))
    create = {"bytes": 6, "filename": "a.pdf", "mime_type": "application/pdf", "purpose": "user_data"}
    upload = show("POST /v1/uploads", caller.post("/uploads", create))
    part = show(
        "POST /v1/uploads/ID/parts",
        caller.post(f"/uploads/{upload['id']}/parts", None, files={"data": ("p", b"abcdef")}),
    )
    show("POST /v1/uploads/ID/complete", caller.post(f"/uploads/{upload['id']}/complete", {"part_ids": [part["id"]]}))
    other = caller.post("/uploads", create).json()
    show("POST /v1/uploads/ID/cancel", caller.post(f"/uploads/{other['id']}/cancel", {}))
    compare("files", lines)


def test_catalogs(caller: Caller, folder: Path, compare: Any) -> None:
    lines: list[str] = []
    for title, make in (
        ("sees", partial(vision_registry, folder, SCRIPT)),
        ("does not see", partial(scripted_registry, SCRIPT, names=("vision",))),
    ):
        with serve(make()) as server:
            each = Caller(server)
            lines.append(f"{title}\n  GET /v1/models/vision\n    {dump(each.get('/models/vision').json())}")
            [entry] = each.get("/models", client_version="1.0.0").json()["models"]
            shown = {key: entry[key] for key in ("slug", "input_modalities", "supports_image_detail_original")}
            lines.append(f"  GET /v1/models?client_version, of Codex's entry\n    {dump(shown)}")
    compare("catalogs", lines)


def test_usage_of_a_hit_and_a_miss(caller: Caller, compare: Any) -> None:
    lines: list[str] = []
    for text in ("Look.", "Again."):
        requests = {
            "responses": respond(text, image_part(RED)),
            "chat": chat({"type": "text", "text": text}, chat_image(RED)),
            "messages": message({"type": "text", "text": text}, image_block(RED)),
        }
        for api, send in requests.items():
            reply = send(caller)
            assert reply.status_code == 200, reply.text
            lines.append(f"{'hit' if text == 'Again.' else 'miss'}, {api}\n  {dump(reply.json()['usage'])}")
    compare("usage", lines)
