"""Reads PDFs of requests: the front end's side of the process that runs PDFium.

A document is read in messages of a few pages, so that several documents take turns. The pages are kept for their owner
while there is memory: agents send the same document with every turn.
"""

from collections.abc import Iterator

from msgspec import Struct

from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.file_text import FILE_CUT_MARK, PdfPage
from antiphon.app.media.media_client import MediaClient, refuse
from antiphon.app.media.media_event import MediaEvent, Observe, ignore_event, observe_reading
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.prepared_image import KnownImages, derive_key
from antiphon.app.media.shared_work import SharedWork
from antiphon.app.sandbox.media.media_process import PDF_MODULE, MediaAnswer
from antiphon.app.sandbox.media.messages import PageFacts, PdfReply, PdfRequest

MAX_PAGE_CHARS = 100_000
MAX_DOCUMENT_CHARS = 2_000_000
PAGES_PER_MESSAGE = 4
MAX_DOCUMENT_CPU_S = 30.0
"""CPU time that a document may take."""
PIXELS_PER_TOKEN = 32 * 32
"""Pixels of a rendered page for each token of its budget. The families' patches have 28 or 32 pixels a side."""


class PdfDocument(Struct, frozen=True, kw_only=True):
    """A document that was read."""

    pages: tuple[PdfPage, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return sum(2 * len(page.text) + len(page.png or b"") + 200 for page in self.pages)


class PdfReader:
    """Reads PDFs with the extra "vision". One for each server; it belongs to one event loop.

    All methods raise `MediaFault`.
    """

    def __init__(
        self,
        limits: MediaLimits | None = None,
        observe: Observe = ignore_event,
        module: str = PDF_MODULE,
    ) -> None:
        self.limits = limits or MediaLimits()
        self._client = MediaClient(module, 1, self.limits.cpu_limit_s)
        self._observe = observe
        self._documents: KnownImages[PdfDocument] = KnownImages(max_bytes=self.limits.memory_bytes)
        self._shared = SharedWork()

    @property
    def num_restarts(self) -> int:
        """Number of processes that ended during a message."""
        return self._client.num_restarts

    async def read(self, owner: str, sha256: bytes, data: bytes, *, page_tokens: int = 0) -> PdfDocument:
        """Returns the text of each page, and each page rendered for a budget of `page_tokens`; 0: not rendered."""
        place = derive_key(b"pdf", owner.encode(), sha256, page_tokens.to_bytes(4, "big"))
        known = self._documents.get(place)
        if known is not None:
            self._observe(MediaEvent(kind="pdf", result="known", elapsed_s=0.0))
            return known
        return await self._shared.run(place, lambda: self._read(owner, sha256, place, data, page_tokens))

    async def _read(self, owner: str, sha256: bytes, place: bytes, data: bytes, page_tokens: int) -> PdfDocument:
        with observe_reading("pdf", self._observe):
            pages = await self._read_pages(owner, sha256, data, page_tokens * PIXELS_PER_TOKEN)
        document = PdfDocument(pages=pages)
        self._documents.put(place, document, document.size)
        return document

    async def _read_pages(self, owner: str, sha256: bytes, data: bytes, max_pixels: int) -> tuple[PdfPage, ...]:
        pages: list[PdfPage] = []
        num_pages, cpu_s, left_chars = 1, 0.0, MAX_DOCUMENT_CHARS
        while len(pages) < num_pages:
            request = PdfRequest(len(pages), PAGES_PER_MESSAGE, self.limits.max_pdf_pages, MAX_PAGE_CHARS, max_pixels)
            reply, answer = await self._ask(owner, sha256, data, request)
            num_pages, cpu_s = reply.num_pages, cpu_s + answer.cpu_s
            if cpu_s > MAX_DOCUMENT_CPU_S:
                raise MediaFault("too_slow")
            for page, png in _split_payload(reply, answer.payload):
                pages.append(PdfPage(number=page.number, text=_cut_text(page, left_chars), png=png))
                left_chars = max(left_chars - len(page.text), 0)
            if not reply.pages:
                raise refuse("pdf_worker sent fewer pages than it said")
        return tuple(pages)

    async def _ask(self, owner: str, sha256: bytes, data: bytes, request: PdfRequest) -> tuple[PdfReply, MediaAnswer]:
        """Returns pages and the answer, whose payload has their pictures."""
        if len(data) > self.limits.max_pdf_bytes:
            raise MediaFault("too_large", "bytes", found=len(data), allowed=self.limits.max_pdf_bytes)
        answer = await self._client.ask(owner, derive_key(owner.encode(), sha256), request, data)
        if not isinstance(answer.reply, PdfReply):
            raise refuse("pdf_worker sent no pages")
        return answer.reply, answer

    async def close(self) -> None:
        """Ends the process."""
        self._shared.cancel()
        await self._client.close()


def _split_payload(reply: PdfReply, payload: bytes) -> Iterator[tuple[PageFacts, bytes | None]]:
    """Yields each page with its picture; None if it has none."""
    offset = 0
    for page in reply.pages:
        end = offset + page.png_bytes
        yield page, payload[offset:end] if page.png_bytes else None
        offset = end


def _cut_text(page: PageFacts, left_chars: int) -> str:
    """Returns the text of a page, cut where the document's limit is reached. Later pages have no text."""
    if len(page.text) > left_chars:
        return f"{page.text[:left_chars]}{FILE_CUT_MARK}" if left_chars else ""
    return f"{page.text}{FILE_CUT_MARK}" if page.is_cut else page.text
