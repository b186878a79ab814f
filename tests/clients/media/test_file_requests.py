"""Files in requests: text and PDFs in the prompt, pages as images for models that see, and the errors about them."""

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.app.media.documents import encrypt_pdf, make_pdf
from tests.clients.media.vision_model import (
    SAY_IMAGES,
    data_url,
    make_png,
    serve_vision,
)
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

TEXT_FORM = '<file name="a.txt">\nalpha beta\n</file>'
PDF_FORM = '<file name="a.pdf">\n<page n="1">'
REPLIES = [
    {"name": "text", "when": [TEXT_FORM], "output": ["The text was seen."]},
    {"name": "pdf", "when": [PDF_FORM, "gamma delta"], "output": ["The page was read. ", {"media": True}]},
    SAY_IMAGES,
]
PDF = make_pdf("gamma delta", "second page")


SERVER = partial(serve_vision, replies=REPLIES)


@pytest.fixture(scope="module")
def blind_server() -> Iterator[RunningServer]:
    """A server whose model sees no images."""
    with serve(scripted_registry(REPLIES, names=("vision",))) as running:
        yield running


def post(url: str, json: Any) -> httpx.Response:
    return httpx.post(url, json=json, timeout=HANG_TIMEOUT_S)


def respond(server: RunningServer, *parts: Any, **more: Any) -> httpx.Response:
    body = {"model": "vision", "input": [{"role": "user", "content": list(parts)}], **more}
    return post(f"{server.url}/responses", json=body)


def file_part(data: bytes, filename: str | None = "a.pdf", media_type: str = "application/pdf") -> dict[str, Any]:
    return {"type": "input_file", "filename": filename, "file_data": data_url(data, media_type)}


def said(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["output"][0]["content"][0]["text"])


def test_text_files_are_read_for_every_model(server: RunningServer, blind_server: RunningServer) -> None:
    for data, media_type in ((b"alpha beta", "text/plain"), (b"\xef\xbb\xbfalpha beta", "text/markdown")):
        for each in (server, blind_server):
            assert said(respond(each, file_part(data, "a.txt", media_type))) == "The text was seen."
    bare = {"type": "input_file", "filename": "a.txt", "file_data": base64.b64encode(b"alpha beta").decode()}
    assert said(respond(server, bare)) == "The text was seen."


def test_pages_are_images_for_a_model_that_sees(server: RunningServer, blind_server: RunningServer) -> None:
    assert said(respond(server, file_part(PDF))).startswith("The page was read. 2 images: ")
    assert said(respond(blind_server, file_part(PDF))) == "The page was read. 0 images"


def test_files_are_read_in_all_apis_and_in_later_turns(server: RunningServer) -> None:
    first = respond(server, file_part(PDF)).json()
    again = post(
        f"{server.url}/responses", json={"model": "vision", "input": "And?", "previous_response_id": first["id"]}
    )
    assert said(again).startswith("The page was read. 2 images")
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url(PDF, "application/pdf")}}
    chat = {"model": "vision", "messages": [{"role": "user", "content": [file]}]}
    reply = post(f"{server.url}/chat/completions", json=chat)
    assert reply.json()["choices"][0]["message"]["content"].startswith("The page was read. 2 images")
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(PDF).decode()}
    document = {"type": "document", "source": source, "title": "a.pdf"}
    messages = {"model": "vision", "max_tokens": 99, "messages": [{"role": "user", "content": [document]}]}
    reply = post(f"{server.url}/messages", json=messages)
    assert reply.json()["content"][0]["text"].startswith("The page was read. 2 images")


@pytest.mark.parametrize(
    ("data", "filename", "detail", "messages_text"),
    [
        (b"no document", "a.pdf", "is not a valid PDF.", "The PDF specified was not valid"),
        (PDF[:200], "a.pdf", "is not a valid PDF.", "The PDF specified was not valid"),
        (encrypt_pdf(PDF), "a.pdf", "is password protected.", "The PDF specified is password protected"),
    ],
    ids=["text", "cut", "password"],
)
def test_pdfs_that_cannot_be_read_are_named(
    server: RunningServer, data: bytes, filename: str, detail: str, messages_text: str
) -> None:
    error = respond(server, {"type": "input_text", "text": "x"}, file_part(data, filename)).json()["error"]
    path = "input[0].content[1].file_data"
    assert (error["code"], error["param"], error["message"]) == ("invalid_file", path, f"'{path}' {detail}")
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    content = [{"type": "document", "source": source}]
    body = {"model": "vision", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    message = post(f"{server.url}/messages", json=body).json()["error"]["message"]
    assert message == f"messages.0.content.0.document.source.base64.data: {messages_text}"


@pytest.mark.parametrize(
    ("data", "name"), [(b"PK\x03\x04" + bytes(50), "application/zip"), (make_png(8, 8), "image/png")]
)
def test_other_files_are_refused_with_their_type(server: RunningServer, data: bytes, name: str) -> None:
    error = respond(server, file_part(data, "a.bin", "application/octet-stream")).json()["error"]
    path = "input[0].content[0].file_data"
    assert error["code"] == "invalid_file"
    assert error["message"] == f"'{path}' is '{name}'; PDF and text are read."


@pytest.mark.parametrize(
    ("data", "media_type", "shown"),
    [
        ("Grüße".encode("utf-16"), "text/plain", '<file name="a.txt">\nGrüße\n</file>'),
        ("これは本".encode("cp932"), "text/csv;charset=Shift_JIS", '<file name="a.txt">\nこれは本\n</file>'),
        ("Schöne Grüße".encode("latin-1"), "", '<file name="a.txt" encoding="windows-1252 (assumed)">\nSchöne Grüße\n</file>'),
    ],
)  # fmt: skip
def test_text_in_another_encoding_reaches_the_model(
    server: RunningServer, data: bytes, media_type: str, shown: str
) -> None:
    sent = base64.encodebytes(data).decode()
    value = f"data:{media_type};base64,{sent}" if media_type else sent
    part = {"type": "input_file", "filename": "a.txt", "file_data": value}
    reply = respond(server, part, {"type": "input_text", "text": "x"}, store=False)
    assert reply.status_code == 200, reply.text
    counted = post(
        f"{server.url}/responses/input_tokens",
        json={"model": "vision", "input": [{"role": "user", "content": [part, {"type": "input_text", "text": "x"}]}]},
    )
    plain = {"type": "input_text", "text": shown}
    expected = post(
        f"{server.url}/responses/input_tokens",
        json={"model": "vision", "input": [{"role": "user", "content": [plain, {"type": "input_text", "text": "x"}]}]},
    )
    assert counted.json()["input_tokens"] == expected.json()["input_tokens"]


def test_uploaded_text_keeps_its_charset(server: RunningServer) -> None:
    text = "Съешь же ещё этих мягких французских булок."
    for media_type, status in (("text/plain; charset=windows-1251", 200), ("text/plain", 400)):
        files = {"file": ("a.txt", text.encode("cp1251"), media_type)}
        uploaded = httpx.post(f"{server.url}/files", files=files, data={"purpose": "user_data"}, timeout=60).json()
        reply = respond(server, {"type": "input_file", "file_id": uploaded["id"]})
        assert reply.status_code == status, reply.text
    assert "a declared charset" in reply.json()["error"]["message"]


def test_items_of_conversations_have_images_and_files(server: RunningServer) -> None:
    image = {"type": "input_image", "image_url": data_url(make_png(64, 64))}
    item = {"type": "message", "role": "user", "content": [image, file_part(PDF)]}
    conversation = post(f"{server.url}/conversations", json={"items": [item]}).json()
    body = {"model": "vision", "input": "What is it?", "conversation": conversation["id"]}
    assert said(post(f"{server.url}/responses", json=body)).startswith("The page was read. 3 images")
    url = f"{server.url}/conversations/{conversation['id']}/items"
    listed = httpx.get(url, params={"order": "asc"}, timeout=HANG_TIMEOUT_S).json()["data"][0]
    assert listed["content"][0]["image_url"] is None
    shown = httpx.get(url, params={"order": "asc", "include": "message.input_image.image_url"}, timeout=HANG_TIMEOUT_S)
    assert shown.json()["data"][0]["content"][0]["image_url"] == image["image_url"]


def test_screenshots_of_computers_are_seen(server: RunningServer) -> None:
    items = [
        {"role": "user", "content": "Look."},
        {"type": "computer_call", "call_id": "c", "id": "cu_1", "action": {"type": "screenshot"}, "status": "completed",
         "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "c",
         "output": {"type": "computer_screenshot", "image_url": data_url(make_png(64, 64))}},
    ]  # fmt: skip
    reply = post(f"{server.url}/responses", json={"model": "vision", "input": items})
    assert said(reply).startswith("1 image: 4 tokens")
