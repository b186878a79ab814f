"""Files of requests as text: what kind of file it is, its text, and the form of a file in the prompt. Pure."""

import html
import unicodedata
from collections.abc import Iterable, Iterator

from msgspec import Struct

from antiphon.app.media.media_fault import MediaFault
from antiphon.app.requests.media.text_encodings import DecodedText, decode_bytes
from antiphon.app.turn_types.blob_urls import UNKNOWN_TYPE

PDF_TYPE = "application/pdf"
FILE_CUT_MARK = "… cut"
MAX_FILE_NAME_CHARS = 255
_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"\x7fELF", "application/x-executable"),
    (b"{\\rtf", "application/rtf"),
)
"""First bytes of files that people send and that are not read, and what to call them."""
_PDF_WITHIN = 1024


class PdfPage(Struct, frozen=True, kw_only=True):
    """A page of a PDF."""

    number: int
    """Beginning with 1."""
    text: str
    png: bytes | None = None
    """The rendered page; None if pages are not rendered, or if this one is damaged."""


def is_pdf(data: bytes) -> bool:
    """Tells whether a file is a PDF, by its content."""
    return _find_binary_type(data) == PDF_TYPE


def _find_binary_type(data: bytes) -> str:
    for magic, media_type in _MAGICS:
        if data.startswith(magic):
            return media_type
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return PDF_TYPE if b"%PDF-" in data[:_PDF_WITHIN] else ""


def decode_text(data: bytes, charset: str = "") -> DecodedText:
    """Returns the text of a file, without a byte order mark. Raises `MediaFault` for other content."""
    binary_type = _find_binary_type(data)
    found = None if binary_type else decode_bytes(data, charset)
    if found is None:
        raise MediaFault("unsupported_format", found_type=binary_type or UNKNOWN_TYPE, charset=charset)
    return found


def escape_name(name: str) -> str:
    """Returns the name of a file as the value of an attribute. Control and format characters become spaces."""
    plain = "".join(" " if unicodedata.category(char)[0] == "C" else char for char in name)
    return html.escape(plain.strip()[:MAX_FILE_NAME_CHARS], quote=True)


def format_text_file(name: str, decoded: DecodedText) -> str:
    """Returns a text file as a part of the prompt. An encoding that was assumed is told."""
    assumed = f' encoding="{decoded.encoding} (assumed)"' if decoded.encoding else ""
    return f'<file name="{escape_name(name)}"{assumed}>\n{decoded.text}\n</file>'


def format_pdf(name: str, pages: Iterable[PdfPage]) -> list[str | bytes]:
    """Returns a PDF as parts of the prompt: texts, and between them the PNGs of the pages."""
    parts: list[str | bytes] = []
    for part in _list_parts(name, pages):
        if parts and isinstance(part, str) and isinstance(previous := parts[-1], str):
            parts[-1] = previous + part
        else:
            parts.append(part)
    return parts


def _list_parts(name: str, pages: Iterable[PdfPage]) -> Iterator[str | bytes]:
    yield f'<file name="{escape_name(name)}">\n'
    for page in pages:
        yield f'<page n="{page.number}">{page.text}</page>\n'
        if page.png is not None:
            yield page.png
    yield "</file>"
