"""PDFs: the text and the picture of each page, and files that do harm elsewhere."""

import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import msgspec
import pytest
import pytest_asyncio

from antiphon.app.media import pdf_reader
from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_event import MediaEvent
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.pdf_reader import PdfDocument, PdfReader
from antiphon.app.sandbox.media.image_headers import read_facts
from antiphon.app.sandbox.media.messages import ImageLimits
from tests.app.media.documents import join_objects, make_pdf, make_pdf_objects, make_stream, write_text

LIMITS = MediaLimits(max_pdf_pages=100, max_pdf_bytes=4 << 20)


@pytest.fixture(scope="module")
def events() -> list[MediaEvent]:
    """What the reader has reported."""
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader(events: list[MediaEvent]) -> AsyncIterator[PdfReader]:
    """A reader that all tests share, so that each hostile file meets the process that the others left."""
    reader = PdfReader(LIMITS, events.append)
    yield reader
    await reader.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXTS = {"kept", "script", "end", ""}


async def read(reader: PdfReader, data: bytes, page_tokens: int = 0) -> PdfDocument:
    return await reader.read("a", sha256(data).digest(), data, page_tokens=page_tokens)


async def test_text_and_picture_of_each_page(reader: PdfReader) -> None:
    data = make_pdf("one", "two", "three", "four", "five")
    document = await read(reader, data, 256)
    assert [(page.number, page.text) for page in document.pages] == list(
        enumerate(["one", "two", "three", "four", "five"], 1)
    )
    for page in document.pages:
        assert page.png is not None
        facts = read_facts(page.png, ImageLimits())
        assert 0.8 * 256 * 1024 < facts.width * facts.height <= 1.02 * 256 * 1024


async def test_pages_are_not_rendered_for_models_that_do_not_see(reader: PdfReader, events: list[MediaEvent]) -> None:
    data = make_pdf("plain")
    document = await read(reader, data)
    assert [page.png for page in document.pages] == [None]
    assert await read(reader, data) is document
    assert [event.result for event in events[-2:]] == ["prepared", "known"]


async def test_long_texts_are_cut(reader: PdfReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_reader, "MAX_PAGE_CHARS", 10)
    monkeypatch.setattr(pdf_reader, "MAX_DOCUMENT_CHARS", 15)
    document = await read(reader, make_pdf("0123456789ABC", "0123456789", "xyz"))
    assert [page.text for page in document.pages] == ["0123456789… cut", "01234… cut", ""]


def _loop_of_pages() -> bytes:
    objects = make_pdf_objects([write_text("one")])
    objects[2] = b"<< /Type /Pages /Count 1000000 /Kids [2 0 R 10 0 R 2 0 R] >>"
    return join_objects(objects)


def _nested_forms(depth: int, content: bytes) -> bytes:
    objects = make_pdf_objects([b"/X1 Do"])
    for level in range(depth):
        entries = b"/Type /XObject /Subtype /Form /BBox [0 0 600 700] /Resources << /XObject << /X1 %d 0 R >> >>" % (
            100 + level + 1
        )
        objects[5 if not level else 100 + level] = make_stream(content, entries)
    return join_objects(objects)


def _flate_bomb() -> bytes:
    return join_objects(make_pdf_objects([b" " * (64 << 20) + write_text("end")], compress=True))


def _image_bomb(entries: bytes, data: bytes) -> bytes:
    objects = make_pdf_objects([b"600 0 0 700 0 0 cm /X1 Do"])
    objects[5] = make_stream(data, b"/Type /XObject /Subtype /Image /BitsPerComponent 1 " + entries)
    return join_objects(objects)


def _script() -> bytes:
    catalog = b"/OpenAction << /S /JavaScript /JS (while(true){}) >> /AcroForm << /XFA (x) /Fields [] >>"
    return join_objects(make_pdf_objects([write_text("script")], catalog=catalog))


def _encrypted(key: bytes) -> bytes:
    encrypt = b"/Root 1 0 R /Encrypt << /Filter /Standard /V 1 /R 2 /O <%b> /U <%b> /P -4 >> /ID [<00> <00>]" % (
        key,
        key,
    )
    return join_objects(make_pdf_objects([write_text("secret")]), encrypt)


READABLE: dict[str, Callable[[], bytes]] = {
    "garbage instead of the table": lambda: make_pdf("kept").replace(b"xref\n0", b"xxxx\n9"),
    "bytes before and after": lambda: b"MZ junk" + make_pdf("kept") + b"\0" * 1000,
    "page of 14 400 inches": lambda: make_pdf("kept", box=b"[0 0 1036800 1036800]"),
    "page of 200 000 by 1 points": lambda: make_pdf("kept", box=b"[0 0 200000 1]"),
    "page without a size": lambda: make_pdf("kept", box=b"[0 0 0 0]"),
    "page with a size that is no number": lambda: make_pdf("kept", box=b"[0 0 nan 1e999]"),
    "scripts and forms": _script,
    "forms nested a thousand deep": lambda: _nested_forms(1000, b"/X1 Do"),
    "64 MB of spaces": _flate_bomb,
    "picture of 60 000 by 60 000": lambda: _image_bomb(
        b"/Width 60000 /Height 60000 /ColorSpace /DeviceGray /Filter /FlateDecode", b"x\x9c\x03\0\0\0\0\x01"
    ),
    "JBIG2 of 60 000 by 60 000": lambda: _image_bomb(
        b"/Width 60000 /Height 60000 /ColorSpace /DeviceGray /Filter /JBIG2Decode",
        b"\0\0\0\0\x30\0\x01\0\0\0\x13\0\0\xea\x60\0\0\xea\x60\0\0\0\0\0\0\0\0\0\0\0",
    ),
}
FAULTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "no bytes": (lambda: b"", "pdf_damaged"),
    "magic only": (lambda: b"%PDF-1.7", "pdf_damaged"),
    "a picture": (lambda: b"\x89PNG\r\n\x1a\n" + b"\0" * 2000 + b"%PDF-1.7", "pdf_damaged"),
    "cut in the middle": (lambda: make_pdf("kept")[:60], "pdf_damaged"),
    "10 000 pages": (lambda: make_pdf(*["x"] * 10_000), "pdf_pages"),
    "page tree that loops": (_loop_of_pages, "pdf_pages"),
    "password": (lambda: _encrypted(b"00" * 32), "pdf_password"),
    "too many bytes": (lambda: b"%PDF-" + b"\0" * (4 << 20), "too_large"),
}


@pytest.mark.parametrize("name", READABLE)
async def test_hostile_file_that_can_be_read(reader: PdfReader, name: str) -> None:
    document = await read(reader, READABLE[name](), 64)
    assert document.pages[0].text in TEXTS
    assert await _is_alive(reader)


@pytest.mark.parametrize("name", FAULTS)
async def test_hostile_file_is_refused(reader: PdfReader, name: str) -> None:
    make, code = FAULTS[name]
    with pytest.raises(MediaFault) as caught:
        await read(reader, make(), 64)
    assert caught.value.code == code
    assert await _is_alive(reader)


async def _is_alive(reader: PdfReader) -> bool:
    document = await read(reader, make_pdf(f"alive {time.monotonic()}"))
    return document.pages[0].text.startswith("alive")


async def test_file_that_costs_too_much_ends_only_itself() -> None:
    reader = PdfReader(msgspec.structs.replace(LIMITS, cpu_limit_s=0.5))
    try:
        with pytest.raises(MediaFault) as caught:
            await read(reader, _nested_forms(40, b"/X1 Do " * 100), 64)
        assert (caught.value.code, caught.value.detail) == ("too_slow", "takes too much time or memory to read.")
        assert reader.num_restarts == 1 and await _is_alive(reader)
    finally:
        await reader.close()


async def test_faults_say_what_is_allowed() -> None:
    assert MediaFault("pdf_pages", "pages", found=120, allowed=100).detail == "has 120 pages; at most 100 are read."
    assert MediaFault("pdf_password").detail == "is password protected."
