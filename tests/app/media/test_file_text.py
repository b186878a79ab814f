"""Files as text: what is read, and the form in the prompt."""

import pytest

from antiphon.app.media.file_text import PdfPage, decode_text, escape_name, format_pdf, format_text_file, is_pdf
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.requests.media.text_encodings import DecodedText


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"%PDF-1.7 ...", "application/pdf"),
        (b"\n\n%PDF-1.7", "application/pdf"),
        (b"PK\x03\x04 word/document.xml", "application/zip"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\x7fELF", "application/x-executable"),
        (b"\xff\xfea\0", "text/plain"),
        (b"\xff\xfea", "application/octet-stream"),
        (b"\xff\xfe\0\0a\0\0\0", "text/plain"),
        (b"\xfe\xff\0a", "text/plain"),
        ("Grüße".encode("latin-1"), "text/plain"),
        (bytes(range(256)), "application/octet-stream"),
        (b"a\0b", "application/octet-stream"),
        (b"\xef\xbb\xbfa", "text/plain"),
        (b"", "text/plain"),
        ("{'ä': 1}".encode(), "text/plain"),
    ],
)
def test_type_is_found_by_content(data: bytes, media_type: str) -> None:
    try:
        decode_text(data)
        found = "text/plain"
    except MediaFault as fault:
        found = fault.found_type
    assert is_pdf(data) == (found == "application/pdf")
    assert found == media_type


def test_text_and_what_is_none() -> None:
    assert decode_text(b"\xef\xbb\xbfa\r\nb") == DecodedText("a\r\nb")
    with pytest.raises(MediaFault) as caught:
        decode_text(b"PK\x03\x04\xff")
    assert (caught.value.code, caught.value.detail) == (
        "unsupported_format",
        "is 'application/zip'; PDF and text are read.",
    )


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ('a"><b', "a&quot;&gt;&lt;b"),
        ("a\n</file>\n", "a &lt;/file&gt;"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("a\u202etxt.exe", "a txt.exe"),
        ("x" * 300, "x" * 255),
    ],
)
def test_name_cannot_leave_its_quotes(name: str, escaped: str) -> None:
    assert escape_name(name) == escaped


def test_form_in_the_prompt() -> None:
    assert format_text_file("a.txt", DecodedText("x")) == '<file name="a.txt">\nx\n</file>'
    pages = [PdfPage(number=1, text="one", png=b"P1"), PdfPage(number=2, text="two"), PdfPage(number=3, text="")]
    assert format_pdf("a.pdf", pages) == [
        '<file name="a.pdf">\n<page n="1">one</page>\n',
        b"P1",
        '<page n="2">two</page>\n<page n="3"></page>\n</file>',
    ]
