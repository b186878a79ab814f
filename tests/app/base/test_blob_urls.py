"""Blob URLs: their form, what is none, and the places of items and messages in which they are found."""

import base64
import hashlib

import msgspec
import pytest

from antiphon.app.projections.listed_media import encode_content
from antiphon.app.turn_types.blob_urls import (
    BlobReference,
    find_blobs,
    find_message_blobs,
    format_blob_url,
    parse_blob_url,
    refer_to,
)
from antiphon.events.inputs import (
    HostedInput,
    InputCustomOutput,
    InputFile,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputText,
)

PICTURE = refer_to(b"picture", "image/png")
DOCUMENT = refer_to(b"document", "application/pdf")
FETCHED = refer_to(b"fetched", "image/webp", "https://example.com/a;b?c=1")
URLS = [format_blob_url(each) for each in (PICTURE, DOCUMENT, FETCHED)]


def test_blob_url_names_content_type_and_size() -> None:
    digest = hashlib.sha256(b"picture").hexdigest()
    assert URLS[0] == f"blob:sha256-{digest};image/png;7"
    assert URLS[2].endswith(";image/webp;7;https://example.com/a;b?c=1")


@pytest.mark.parametrize("data", [b"", b"x" * 20])
@pytest.mark.parametrize("media_type", ["", "image/png", "application/vnd.x+json", "text/x-c++"])
@pytest.mark.parametrize("source_url", ["", "http://a.example/;;;1", "https://b.example/?x=%20", "HTTPS://C.example"])
def test_reference_survives_its_url(data: bytes, media_type: str, source_url: str) -> None:
    reference = refer_to(data, media_type, source_url)
    assert parse_blob_url(format_blob_url(reference)) == reference


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "blob:sha256-",
        "https://example.com/blob:sha256-",
        "data:image/png;base64,AAAA",
        URLS[0].upper(),
        URLS[0] + ";ftp://x",
        URLS[0] + "\n",
        " " + URLS[0],
        URLS[0].replace("image/png", "image/png;charset=x"),
        URLS[0].replace("image/png", "png"),
        URLS[0].replace(";7", ";-7"),
        URLS[0].replace(";7", ";" + "9" * 16),
        URLS[0][:-10],
    ],
)
def test_other_texts_are_no_blob_urls(url: str | None) -> None:
    assert parse_blob_url(url) is None


@pytest.mark.parametrize(
    ("media_type", "kept"),
    [
        ("Image/PNG", "image/png"),
        *((each, "application/octet-stream") for each in ("image", "a/b;x", "a/b/c", " a/b", "a/", "a" * 64 + "/b")),
    ],
)
def test_media_type_is_one_or_unknown(media_type: str, kept: str) -> None:
    assert refer_to(b"", media_type).media_type == kept


def test_content_is_given_back_as_it_was_sent() -> None:
    sent = "data:image/png;base64," + base64.b64encode(b"picture").decode()
    assert msgspec.json.decode(encode_content(PICTURE, b"picture")) == sent
    assert msgspec.json.decode(encode_content(BlobReference(b"", "", 1), b"a")) == "YQ=="


def test_references_of_items_are_found_in_every_place() -> None:
    parts = (InputText(text=URLS[0]), InputImage(image_url=URLS[0]), InputFile(file_data=URLS[1], filename="a.pdf"))
    screenshot = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": URLS[2]}}
    items = (
        InputMessage(role="user", content=URLS[0]),
        InputMessage(role="user", content=parts),
        InputFunctionOutput(call_id="a", output=parts[1:]),
        InputCustomOutput(call_id="b", output=(InputImage(image_url="https://example.com/x.png", detail="low"),)),
        HostedInput(kind="computer_call_output", payload=screenshot),
        HostedInput(kind="computer_call_output", payload={"output": {"type": "computer_screenshot", "image_url": ""}}),
        HostedInput(kind="computer_call_output", payload={"output": [URLS[0]]}),
        HostedInput(kind="program_output", payload=screenshot),
    )
    assert list(find_blobs(items)) == [PICTURE, DOCUMENT, PICTURE, DOCUMENT, FETCHED]


def test_references_of_messages_are_found_in_every_place() -> None:
    messages = msgspec.json.decode(
        msgspec.json.encode(
            [
                {"role": "user", "content": URLS[0]},
                {"role": "user"},
                {
                    "role": "tool",
                    "content": [
                        {"type": "text", "text": URLS[0]},
                        {"type": "image_url", "image_url": {"url": URLS[0], "detail": "low"}},
                        {"type": "image_url", "image_url": URLS[2]},
                        {"type": "image_url", "image_url": {"detail": "low"}},
                        {"type": "file", "file": {"file_data": URLS[1]}},
                        {"type": "file", "file": {"file_id": "file-1"}},
                        "text",
                        None,
                    ],
                },
            ]
        )
    )
    assert list(find_message_blobs(messages)) == [PICTURE, FETCHED, DOCUMENT]
