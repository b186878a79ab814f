"""Images and files in requests: their bytes become references, and their URLs must not lead to a private address."""

import base64
import hashlib
import re
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.options.settings import Settings
from antiphon.app.requests.media.errors import INVALID_IMAGE, UNSUPPORTED_IMAGE, MediaApi
from antiphon.app.requests.media.sent_media import MediaTaker
from antiphon.app.turn_types.blob_urls import parse_blob_url

VALID_URLS = [
    "https://example.com/a.png",
    "http://example.com:8080/a?b=c#d",
    "https://93.184.216.34/a.png",
    "https://[2606:2800:220:1:248:1893:25c8:1946]/a.png",
    "https://xn--bcher-kva.example/a.png",
]
INVALID_URLS = [
    "file:///etc/passwd",
    "ftp://example.com/a.png",
    "gopher://example.com",
    "//example.com/a.png",
    "example.com/a.png",
    "",
    "http://",
    "http://localhost/a.png",
    "http://LOCALHOST./a.png",
    "http://db.internal/a.png",
    "http://printer.local/a.png",
    "http://127.0.0.1/a.png",
    "http://127.1/a.png",
    "http://2130706433/a.png",
    "http://0x7f000001/a.png",
    "http://0177.0.0.1/a.png",
    "http://0/a.png",
    "http://10.0.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1%25eth0]/",
    "http://[fd00::1]/",
    "http://[::]/",
    "http://127。0。0。1/",
    "http://[64:ff9b::7f00:1]/",
    "http://user:pass@example.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com/\r\nHost: evil",
    "http://exa mple.com/",
    "http://example.com:99999/",
    "http://[::1/",
]
DATA_URLS = {
    "data:image/png;base64,iVBORw0KGgo=": "image/png",
    "DATA:image/JPEG;base64,/9j/": "image/jpeg",
    "data:image/PNG;charset=x;base64,iVBORw0KGgo=": "image/png",
    "data:image/jpg;base64,/9j/": "image/jpeg",
    "data:image/png;base64,iVBOR\nw0KGgo=": "image/png",
    "data:image/png;base64,iVBO\r\nRw0K\r\nGgo=\r\n": "image/png",
    "data:image/png;base64,\niVBORw0KGgo\n=\n": "image/png",
}
INVALID_DATA_URLS = {
    "data:,": "invalid base64",
    "data:image/png;base64": "invalid base64",
    "data:image/png;base64,": "empty base64-encoded bytes",
    "data:text/html;base64,PGI+": "the MIME type 'text/html'",
    "data:image/svg+xml;base64,PHN2Zz4=": "the MIME type 'image/svg+xml'",
    "data:application/pdf;base64,JVBERg==": "the MIME type 'application/pdf'",
    "data:image/png,iVBORw0KGgo=": "invalid base64",
    "data:image/png;base64,iVBOR w0KGgo=": "invalid base64",
    "data:image/png;base64,QQ==\nQQ==": "invalid base64",
    "data:image/png;base64,Q\nQ\r=\n=\nA": "invalid base64",
    "data:image/png;base64,%%%%": "invalid base64",
    "data:image/png;base64,iVBORw0KGg": "invalid base64",
    "data:image/png;base64,iVBORw0KGgo%3D": "invalid base64",
    "data:image/png;base64,QQ==QQ==": "invalid base64",
    "data:image/png;base64,data:image/png;base64,QQ==": "invalid base64",
    "data:image/png;base64,__-_": "invalid base64",
}
CLAUDE_CODE_PATH = re.compile(
    r"messages[.[](\d+)[\].]+content[.[](\d+)[\].]+(?:tool_result[.[]content[.[](\d+)[\].]+)?(image|document|pdf)"
)
"""Expression by which Claude Code finds the block to remove in an error message."""
PNG = base64.b64encode(b"\x89PNG").decode()
PDF = base64.b64encode(b"%PDF-1.7").decode()


def take(
    api: MediaApi, entries: list[Any], *, param: str = "", refused: bool = False, settings: Settings | None = None
) -> tuple[list[Any], MediaTaker]:
    taker = MediaTaker(
        api,
        param or ("input" if api == "responses" else "messages"),
        settings or Settings(),
        refused=refused,
    )
    return taker.take_entries(entries), taker


def fault(api: MediaApi, entries: list[Any], *, settings: Settings | None = None, refused: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        take(api, entries, settings=settings, refused=refused)
    return caught.value


def make_input(part: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}]


def image_block(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


@pytest.mark.parametrize("url", VALID_URLS)
def test_public_urls_stay_as_they_are(url: str) -> None:
    entries = make_input({"type": "input_image", "image_url": url})
    assert take("responses", entries)[0] == entries
    entries = make_input({"type": "image_url", "image_url": {"url": url}})
    taken, taker = take("chat", entries)
    assert taken == entries
    assert [(each.place.path, each.source) for each in taker.taken] == [("messages[1].content[1].image_url.url", url)]


@pytest.mark.parametrize("url", INVALID_URLS, ids=ascii)
def test_private_or_invalid_image_urls_are_rejected(url: str) -> None:
    error = fault("responses", make_input({"type": "input_image", "image_url": url}))
    assert (error.status, error.code, error.param) == (400, "invalid_image_url", "input[1].content[1].image_url")
    assert not url or url not in error.message, "the URL is not repeated"
    error = fault("chat", make_input({"type": "image_url", "image_url": {"url": url}}))
    assert error.param == "messages[1].content[1].image_url.url"


@pytest.mark.parametrize("url", [*INVALID_URLS, "data:application/pdf;base64,JVBERg=="], ids=ascii)
def test_private_or_invalid_file_urls_are_rejected(url: str) -> None:
    error = fault("responses", make_input({"type": "input_file", "file_url": url}))
    assert (error.code, error.param) == ("invalid_file_url", "input[1].content[1].file_url")


@pytest.mark.parametrize(("url", "media_type"), DATA_URLS.items())
def test_the_bytes_of_an_image_become_a_reference(url: str, media_type: str) -> None:
    taken, taker = take("responses", make_input({"type": "input_image", "image_url": url, "detail": "low"}))
    data = base64.b64decode(url.partition(",")[2])
    reference = parse_blob_url(taken[1]["content"][1]["image_url"])
    assert reference is not None
    assert (reference.media_type, reference.size) == (media_type, len(data))
    assert reference.sha256 == hashlib.sha256(data).digest()
    [media] = taker.taken
    assert media.sent is not None
    assert media.sent.data == data
    for image in (url, {"url": url, "detail": "high"}):
        chat, _ = take("chat", make_input({"type": "image_url", "image_url": image}))
        part = chat[1]["content"][1]["image_url"]
        assert (part if isinstance(part, str) else part["url"]) == taken[1]["content"][1]["image_url"]


@pytest.mark.parametrize(("url", "found"), INVALID_DATA_URLS.items(), ids=ascii)
def test_invalid_data_urls_are_told_in_the_words_of_openai(url: str, found: str) -> None:
    path = "input[1].content[1].image_url"
    example = "data:image/png;base64,aW1nIGJ5dGVzIGhlcmU="
    text = (
        f"Invalid '{path}'. Expected a base64-encoded data URL with an image MIME type (e.g. '{example}'), "
        f"but got {found}."
    )
    error = fault("responses", make_input({"type": "input_image", "image_url": url}))
    assert (error.status, error.code, error.param) == (400, "invalid_value", path)
    assert error.message == f"{INVALID_IMAGE} {text}"
    error = fault("chat", make_input({"type": "image_url", "image_url": {"url": url}}))
    if "image/svg" in found:
        assert (error.code, error.message) == ("invalid_image_format", UNSUPPORTED_IMAGE)
    else:
        assert error.message == text.replace(path, "messages[1].content[1].image_url.url")


def test_screenshots_and_outputs_of_tools_have_images() -> None:
    url = f"data:image/png;base64,{PNG}"
    entries = [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_file", "file_data": PDF}]},
        {"type": "computer_call_output", "call_id": "e", "output": {"type": "computer_screenshot", "image_url": url}},
    ]
    taken, taker = take("responses", entries)
    assert [each.place.path for each in taker.taken] == [
        "input[0].output[0].image_url",
        "input[1].output[0].file_data",
        "input[2].output.image_url",
    ]
    assert taken[2]["output"]["image_url"] == taken[0]["output"][0]["image_url"]
    assert parse_blob_url(taken[1]["output"][0]["file_data"]) is not None


def test_images_and_documents_of_messages_are_named_as_claude_code_expects() -> None:
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    content = {"type": "document", "source": {"type": "content", "content": [image_block(PNG)]}}
    entries = [
        {"role": "user", "content": [{"type": "text", "text": "x"}, image_block(PNG), document, content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [image_block(PNG)]}]},
    ]
    taken, taker = take("messages", entries)
    paths = [each.place.path for each in taker.taken]
    assert paths[:2] == ["messages.0.content.1.image.source.base64", "messages.0.content.2.document.source.base64"]
    assert paths[3] == "messages.1.content.0.tool_result.content.0.image.source.base64"
    for each in taker.taken:
        error = each.place.fault("x", "Could not process image")
        assert CLAUDE_CODE_PATH.search(error.message)
    assert parse_blob_url(taken[0]["content"][1]["source"]["data"]) is not None
    assert (taker.taken[0].media_type, taker.taken[1].media_type) == ("image/png", None)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (image_block(""), "messages.0.content.0.image.source.base64.data: image cannot be empty"),
        (image_block("%%%"), "messages.0.content.0.image.source.base64.data: Could not process image"),
        (
            image_block("A" * 6_521_204),
            "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6521204 bytes > 5242880 bytes",
        ),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
            "messages.0.content.0.document.source.base64.data: PDF cannot be empty",
        ),
    ],
    ids=["empty", "no base64", "large", "empty PDF"],
)
def test_faults_of_messages_begin_with_the_path(block: dict[str, Any], message: str) -> None:
    assert fault("messages", [{"role": "user", "content": [block]}]).message == message


def test_a_client_cannot_name_a_blob() -> None:
    forged = f"blob:sha256-{'0' * 64};image/png;5"
    for part in ({"type": "input_image", "image_url": forged}, {"type": "input_file", "file_data": forged}):
        fault("responses", make_input(part))
    fault("chat", make_input({"type": "image_url", "image_url": {"url": forged}}))
    fault("messages", [{"role": "user", "content": [image_block(forged)]}])


def test_an_image_has_one_source() -> None:
    for part, code in (
        ({"type": "input_image", "image_url": "https://example.com/a.png", "file_id": "file-1"}, "mutually"),
        ({"type": "input_image"}, "missing"),
        ({"type": "input_image", "image_url": None, "file_id": None}, "missing"),
        ({"type": "input_file", "filename": "a.pdf"}, "missing"),
        ({"type": "input_file", "file_data": PDF, "file_id": "file-1"}, "mutually"),
    ):
        assert str(fault("responses", make_input(part)).code).startswith(code)
    _, taker = take("responses", make_input({"type": "input_image", "image_url": None, "file_id": "file-1"}))
    assert [(each.source, each.is_file_id) for each in taker.taken] == [("file-1", True)]


def test_limits_of_number_and_size() -> None:
    url = f"data:image/png;base64,{PNG}"
    entries = [{"role": "user", "content": [{"type": "input_image", "image_url": url}] * 3}]
    error = fault("responses", entries, settings=Settings(max_images=2))
    assert (error.code, error.message) == ("too_many_images", "Invalid 'input': 3 images, at most 2 are allowed.")
    large = make_input({"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 1_500_000}"})
    error = fault("responses", large, settings=Settings(max_image_mib=1))
    assert error.code == "image_file_too_large"
    assert error.message.startswith(INVALID_IMAGE)


def test_a_detail_is_one_of_the_known_ones() -> None:
    url = f"data:image/png;base64,{PNG}"
    error = fault("responses", make_input({"type": "input_image", "image_url": url, "detail": "huge"}))
    assert error.param == "input[1].content[1].detail"
    take("responses", make_input({"type": "input_image", "image_url": url, "detail": None}))


@pytest.mark.parametrize("part_type", ["input_image", "image_url"])
def test_images_are_rejected_if_they_are_refused(part_type: str) -> None:
    part = {"type": part_type, "file_id": "file-1"}
    error = fault("responses", make_input(part), refused=True)
    assert error.code == "unsupported_parameter"
    assert str(error.param).startswith("input[1].content[1]")
    take("responses", make_input({"type": "input_text", "text": "x"}), refused=True)


@pytest.mark.parametrize("entries", [[5, "x", {"content": "x"}, {"content": [5, {}, {"type": "input_image"}][:2]}]])
def test_entries_that_are_malformed_stay_as_they_are(entries: Any) -> None:
    for api in ("responses", "chat", "messages"):
        assert take(api, entries, refused=True)[0] == entries
