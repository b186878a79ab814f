"""Image and file URLs in requests, which must not lead to a private address. Hard inputs, rows 19 and 20."""

from typing import Any

import pytest

from antiphon.app.base.errors import ApiError
from antiphon.app.requests.media import check_media

VALID_URLS = [
    "https://example.com/a.png",
    "http://example.com:8080/a?b=c#d",
    "https://93.184.216.34/a.png",
    "https://[2606:2800:220:1:248:1893:25c8:1946]/a.png",
    "https://xn--bcher-kva.example/a.png",
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:image/JPEG;base64,/9j/",
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
INVALID_DATA_URLS = [
    "data:,",
    "data:text/html;base64,PGI+",
    "data:image/svg+xml;base64,PHN2Zz4=",
    "data:image/png,iVBORw0KGgo=",
    "data:image/png;base64,iVBOR w0KGgo=",
    "data:image/png;base64,%%%%",
    "data:image/png;base64,iVBORw0KGg",
]


def make_input(part: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}]


@pytest.mark.parametrize("url", VALID_URLS)
def test_public_and_data_urls_are_accepted(url: str) -> None:
    check_media(make_input({"type": "input_image", "image_url": url}), "input", refused=False)
    check_media(make_input({"type": "image_url", "image_url": {"url": url}}), "messages", refused=False)


@pytest.mark.parametrize("url", INVALID_URLS + INVALID_DATA_URLS, ids=ascii)
def test_private_or_invalid_image_urls_are_rejected(url: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_media(make_input({"type": "input_image", "image_url": url}), "input", refused=False)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "invalid_image_url", "input[1].content[1].image_url")
    assert not url or url not in error.message, "the URL is not repeated"
    with pytest.raises(ApiError) as caught:
        check_media(make_input({"type": "image_url", "image_url": {"url": url}}), "messages", refused=False)
    assert caught.value.param == "messages[1].content[1].image_url.url"


@pytest.mark.parametrize("url", [*INVALID_URLS, "data:application/pdf;base64,JVBERg=="], ids=ascii)
def test_private_or_invalid_file_urls_are_rejected(url: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_media(make_input({"type": "input_file", "file_url": url}), "input", refused=False)
    assert (caught.value.code, caught.value.param) == ("invalid_file_url", "input[1].content[1].file_url")


def test_urls_in_tool_outputs_are_checked() -> None:
    output = [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "file:///"}]}
    ]
    with pytest.raises(ApiError) as caught:
        check_media(output, "input", refused=False)
    assert caught.value.param == "input[0].output[0].image_url"


@pytest.mark.parametrize("part_type", ["input_image", "image_url", "input_file", "file"])
def test_all_media_are_rejected_if_media_are_refused(part_type: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_media(make_input({"type": part_type, "file_id": "file-1"}), "input", refused=True)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "input[1].content[1]")
    check_media(make_input({"type": "input_text", "text": "x"}), "input", refused=True)


@pytest.mark.parametrize("body_input", ["a string", None, 5, [5, "x", {"content": "x"}, {"content": [5, {}]}]], ids=str)
def test_input_that_is_no_list_of_items_is_ignored(body_input: Any) -> None:
    check_media(body_input, "input", refused=True)
