"""Images and files: named in the prompt or refused, and no address that leads home. Hard inputs, rows 19 and 20."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.media import check_media

GOOD = [
    "https://example.com/a.png",
    "http://example.com:8080/a?b=c#d",
    "https://93.184.216.34/a.png",
    "https://[2606:2800:220:1:248:1893:25c8:1946]/a.png",
    "https://xn--bcher-kva.example/a.png",
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:image/JPEG;base64,/9j/",
]
BAD = [
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
BAD_DATA = [
    "data:,",
    "data:text/html;base64,PGI+",
    "data:image/svg+xml;base64,PHN2Zz4=",
    "data:image/png,iVBORw0KGgo=",
    "data:image/png;base64,iVBOR w0KGgo=",
    "data:image/png;base64,%%%%",
    "data:image/png;base64,iVBORw0KGg",
]


def item(part: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}]


@pytest.mark.parametrize("url", GOOD)
def test_addresses_that_anybody_may_name(url: str) -> None:
    check_media(item({"type": "input_image", "image_url": url}), "input", refused=False)
    check_media(item({"type": "image_url", "image_url": {"url": url}}), "messages", refused=False)


@pytest.mark.parametrize("url", BAD + BAD_DATA, ids=ascii)
def test_addresses_that_nobody_is_to_be_sent_to(url: str) -> None:
    with pytest.raises(ApiError) as raised:
        check_media(item({"type": "input_image", "image_url": url}), "input", refused=False)
    error = raised.value
    assert (error.status, error.code, error.param) == (400, "invalid_image_url", "input[1].content[1].image_url")
    assert not url or url not in error.message, "what was sent is not repeated"
    with pytest.raises(ApiError) as raised:
        check_media(item({"type": "image_url", "image_url": {"url": url}}), "messages", refused=False)
    assert raised.value.param == "messages[1].content[1].image_url.url"


@pytest.mark.parametrize("url", [*BAD, "data:application/pdf;base64,JVBERg=="], ids=ascii)
def test_files_are_looked_at_alike(url: str) -> None:
    with pytest.raises(ApiError) as raised:
        check_media(item({"type": "input_file", "file_url": url}), "input", refused=False)
    assert (raised.value.code, raised.value.param) == ("invalid_file_url", "input[1].content[1].file_url")


def test_what_a_tool_gave_is_looked_at_too() -> None:
    output = [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "file:///"}]}
    ]
    with pytest.raises(ApiError) as raised:
        check_media(output, "input", refused=False)
    assert raised.value.param == "input[0].output[0].image_url"


@pytest.mark.parametrize("kind", ["input_image", "image_url", "input_file", "file"])
def test_one_switch_refuses_them_all(kind: str) -> None:
    with pytest.raises(ApiError) as raised:
        check_media(item({"type": kind, "file_id": "file-1"}), "input", refused=True)
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", "input[1].content[1]")
    check_media(item({"type": "input_text", "text": "x"}), "input", refused=True)


@pytest.mark.parametrize("sent", ["a string", None, 5, [5, "x", {"content": "x"}, {"content": [5, {}]}]], ids=str)
def test_whatever_is_no_list_of_items_is_left_to_others(sent: Any) -> None:
    check_media(sent, "input", refused=True)
