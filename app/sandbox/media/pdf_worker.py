"""The process that reads PDFs. Run with `python -P -m antiphon.app.sandbox.media.pdf_worker`.

PDFium reads the text of each page and renders it. Forms and scripts are never started, attachments never opened.
"""

import math
from io import BytesIO

import pypdfium2
from PIL import Image

from antiphon.app.sandbox.media.image_headers import MediaFaultError
from antiphon.app.sandbox.media.messages import FaultReply, MediaRequest, PageFacts, PdfReply, PdfRequest
from antiphon.app.sandbox.media.serving import HandleMedia, MediaResult, serve_media

PDF_MAGIC = b"%PDF-"
MAGIC_WITHIN = 1024
"""Readers look for the magic bytes in this many first bytes."""
PASSWORD_ERROR = 4
"""PDFium's code of a document that needs a password."""
MAX_SCALE = 4.0
"""Pixels for each point. A page has 72 points an inch."""
MAX_SIDE = 8_000
"""Pixels of the longer side of a rendered page."""
PNG_COMPRESSION = 1
_CONTROLS = dict.fromkeys(code for code in range(32) if code not in (9, 10)) | {0x7F: None, 0xFFFE: "-", 0xFFFF: None}
"""Control characters are dropped from texts. PDFium writes U+FFFE for a hyphen at the end of a line."""


def answer_pdf(request: MediaRequest, payload: bytes) -> MediaResult:
    """Returns the pages that a message asks for; every fault of the file is a `FaultReply`."""
    if not isinstance(request, PdfRequest):
        return FaultReply("unavailable"), b"", None
    try:
        num_pages, pages, pngs = _read_pages(request, payload)
    except MediaFaultError as fault:
        return fault.reply, b"", None
    except MemoryError:
        return FaultReply("too_slow"), b"", None
    except Exception:  # noqa: BLE001  the library raises several types, and its texts are not shown
        return FaultReply("pdf_damaged"), b"", None
    return PdfReply(num_pages, tuple(pages)), b"".join(pngs), None


def _read_pages(request: PdfRequest, payload: bytes) -> tuple[int, list[PageFacts], list[bytes]]:
    if PDF_MAGIC not in payload[:MAGIC_WITHIN]:
        raise MediaFaultError(FaultReply("pdf_damaged"))
    try:
        document = pypdfium2.PdfDocument(payload)
    except pypdfium2.PdfiumError as error:
        is_locked = error.err_code == PASSWORD_ERROR
        raise MediaFaultError(FaultReply("pdf_password" if is_locked else "pdf_damaged")) from None
    try:
        num_pages = len(document)
        if num_pages < 1:
            raise MediaFaultError(FaultReply("pdf_damaged"))
        if num_pages > request.max_pages:
            raise MediaFaultError(FaultReply("pdf_pages", "pages", num_pages, request.max_pages))
        pages, pngs = [], []
        for index in range(request.first, min(request.first + request.count, num_pages)):
            page, png = _read_page(document, index, request)
            pages.append(page)
            pngs.append(png)
        return num_pages, pages, pngs
    finally:
        document.close()


def _read_page(document: pypdfium2.PdfDocument, index: int, request: PdfRequest) -> tuple[PageFacts, bytes]:
    """Returns a page and its picture. A damaged page is empty: the others can still be read."""
    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        return PageFacts(index + 1, ""), b""
    try:
        text, is_cut = _read_text(page, request.max_page_chars)
        png = _render(page, request.max_pixels) if request.max_pixels else b""
    except pypdfium2.PdfiumError:
        return PageFacts(index + 1, ""), b""
    finally:
        page.close()
    return PageFacts(index + 1, text, is_cut, len(png)), png


def _read_text(page: pypdfium2.PdfPage, max_chars: int) -> tuple[str, bool]:
    text_page = page.get_textpage()
    try:
        count = text_page.count_chars()
        text = text_page.get_text_range(0, min(count, max_chars)) if count > 0 else ""
    finally:
        text_page.close()
    return text.replace("\r\n", "\n").translate(_CONTROLS).strip(), count > max_chars


def _render(page: pypdfium2.PdfPage, max_pixels: int) -> bytes:
    """Returns a page as PNG. The scale follows from its size, so that no page is rendered large first."""
    width, height = (side if math.isfinite(side) and side > 0 else 1.0 for side in page.get_size())
    scale = min(math.sqrt(max_pixels / (width * height)), MAX_SIDE / max(width, height), MAX_SCALE)
    bitmap = page.render(scale=scale, may_draw_forms=False)
    try:
        image = bitmap.to_pil().convert("RGB")
    finally:
        bitmap.close()
    file = BytesIO()
    image.save(file, "PNG", compress_level=PNG_COMPRESSION)
    return file.getvalue()


def _prepare_handler() -> HandleMedia:
    Image.preinit()
    return answer_pdf


if __name__ == "__main__":
    serve_media(_prepare_handler)
