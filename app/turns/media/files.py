"""Shows files to the model: their text, and for a model that sees the pages of PDFs as images, too."""

import asyncio
from collections.abc import Sequence

from antiphon.app.media.budget import LOW_TOKENS
from antiphon.app.media.file_text import PDF_TYPE, decode_text, format_pdf, format_text_file, is_pdf
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.pdf_reader import PdfReader
from antiphon.app.requests.media.errors import refused_media
from antiphon.app.turn_types.blob_urls import BlobReference, format_blob_url, parse_blob_url, refer_to
from antiphon.app.turns.media.faults import explain_file_fault
from antiphon.app.turns.media.parts import find_media, replace_media
from antiphon.app.turns.media.reading import MediaReading
from antiphon.events.inputs import AnyInput, InputFile, InputImage, InputPart, InputText
from antiphon.events.media_parts import MediaPart

DEFAULT_NAME = "file"


class FileReading:
    """Reads the files of one conversation, each once. Without a `reader`, PDFs stay as they are.

    `page_tokens`: tokens of the image of a page; 0: pages are text only. `refuses`: a PDF that is not read is an error.
    """

    def __init__(
        self, reading: MediaReading, owner: str, reader: PdfReader | None, *, page_tokens: int, refuses: bool
    ) -> None:
        self._reading, self._owner, self._reader = reading, owner, reader
        self._page_tokens, self._refuses = page_tokens, refuses
        self._parts: dict[MediaPart, Sequence[InputPart]] = {}

    async def show(self, items: tuple[AnyInput, ...]) -> tuple[AnyInput, ...]:
        """Returns the items with the content of their files. Raises `ApiError`."""
        for part in find_media(items):
            reference = parse_blob_url(part.file_data) if isinstance(part, InputFile) else None
            if isinstance(part, InputFile) and reference is not None and part not in self._parts:
                self._parts[part] = await self._read(part, reference)
        return replace_media(items, lambda part: self._parts.get(part, (part,))) if self._parts else items

    async def _read(self, part: InputFile, reference: BlobReference) -> Sequence[InputPart]:
        data = await self._reading.load(reference)
        if data is None:
            return (part,)
        name = part.filename or DEFAULT_NAME
        claims_pdf = reference.media_type == PDF_TYPE or name.lower().endswith(".pdf")
        try:
            if claims_pdf or is_pdf(data):
                return await self._read_pdf(part, name, reference.sha256, data)
            decoded = await asyncio.to_thread(decode_text, data, reference.charset)
            return (InputText(text=format_text_file(name, decoded)),)
        except MediaFault as fault:
            place = self._reading.find_place(part.file_data or "", is_image=False)
            raise explain_file_fault(fault, place) from None

    async def _read_pdf(self, part: InputFile, name: str, sha256: bytes, data: bytes) -> Sequence[InputPart]:
        if self._reader is None:
            if self._refuses:
                raise refused_media(self._reading.find_place(part.file_data or "", is_image=False).path)
            return (part,)
        if not is_pdf(data):
            raise MediaFault("pdf_damaged")
        tokens = min(self._page_tokens, LOW_TOKENS) if part.detail == "low" else self._page_tokens
        document = await self._reader.read(self._owner, sha256, data, page_tokens=tokens)
        return [self._add_piece(piece, part.detail) for piece in format_pdf(name, document.pages)]

    def _add_piece(self, piece: str | bytes, detail: str | None) -> InputPart:
        """Returns a part of a document: its text, or the image of a page."""
        if isinstance(piece, str):
            return InputText(text=piece)
        reference = refer_to(piece, "image/png")
        self._reading.pages[reference.sha256] = piece
        return InputImage(image_url=format_blob_url(reference), detail="low" if detail == "low" else None)
