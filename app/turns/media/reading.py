"""Reads the images and files that a request holds or names, so that its items refer to their bytes only."""

import mimetypes
import time
from collections.abc import Iterable, Sequence
from functools import partial
from urllib.parse import urlsplit

from msgspec import structs

from antiphon.app.base.blob_urls import BlobReference, format_blob_url, refer_to
from antiphon.app.requests.batches.body import FILE_ID
from antiphon.app.requests.media.errors import MediaPlace, file_not_found, refused_url
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.store.batches.records import PIECE_BYTES, StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.app.turns.media.parts import MediaPart, replace_media
from antiphon.events.inputs import AnyInput, InputImage, InputPart


class MediaReading:
    """The images and files of one request. `blobs` has the contents of all that were read.

    `param` is the field of the request that holds the conversation.
    """

    def __init__(self, media: Iterable[SentMedia], owner: str, store: ResponseStore, param: str) -> None:
        self._owner, self._store, self._param = owner, store, param
        self.blobs = {each.sent.reference.sha256: each.sent.data for each in media if each.sent is not None}
        self.pages: dict[bytes, bytes] = {}
        """Images of the pages of PDFs, by their SHA-256. They are made again for each turn, and not stored."""
        self.sent: dict[str, SentMedia] = {}
        """The first part of the request with each source."""
        self._references: dict[str, BlobReference] = {}
        self._filenames: dict[str, str] = {}
        for each in media:
            self.sent.setdefault(each.source, each)

    async def read_sources(self, *, reads_images: bool, reads_files: bool) -> None:
        """Reads the files and URLs that the request names. Raises `ApiError`.

        Those that are not read stay in the items as they are: the model gets placeholders of them.
        """
        for source, media in list(self.sent.items()):
            is_read = reads_images if media.place.is_image else reads_files
            if media.sent is not None or not is_read:
                continue
            if not media.is_file_id:
                raise refused_url(media.place, urlsplit(source).hostname or "")
            reference = self._references[source] = await self._read_file(media)
            self.sent.setdefault(format_blob_url(reference), media)

    def refer(self, items: Iterable[AnyInput]) -> tuple[AnyInput, ...]:
        """Returns items that refer to the bytes of the files that they name."""
        return replace_media(items, self._refer_part) if self._references else tuple(items)

    def _refer_part(self, part: MediaPart) -> Sequence[InputPart]:
        reference = self._references.get(part.file_id or "")
        if reference is None:
            return (part,)
        url = format_blob_url(reference)
        if isinstance(part, InputImage):
            return (structs.replace(part, image_url=url),)
        filename = part.filename or self._filenames.get(part.file_id or "")
        return (structs.replace(part, file_data=url, filename=filename),)

    async def _read_file(self, media: SentMedia) -> BlobReference:
        """Returns the reference to the content of a file of the owner. Raises `ApiError`."""
        load = partial(_load_file, self._owner, media.source, time.time())
        found = await self._store.read(load) if FILE_ID.fullmatch(media.source) else None
        if found is None:
            raise file_not_found(media.place, media.source)
        file, data = found
        self._filenames[media.source] = file.filename
        reference = refer_to(data, mimetypes.guess_type(file.filename)[0] or "")
        self.blobs[reference.sha256] = data
        return reference

    def find_place(self, source: str, *, is_image: bool = True) -> MediaPlace:
        """Returns the place of an image or a file in the request; for one of an earlier request, the whole input."""
        media = self.sent.get(source)
        return MediaPlace(api="responses", path=self._param, is_image=is_image) if media is None else media.place

    def find(self, sha256: bytes) -> bytes | None:
        """Returns bytes of this request; None for those of an earlier one."""
        return self.blobs.get(sha256) or self.pages.get(sha256)

    async def load(self, reference: BlobReference) -> bytes | None:
        """Returns bytes of this request or of an earlier one; None if they were deleted."""
        data = self.find(reference.sha256)
        return await self._store.read_blob(self._owner, reference.sha256) if data is None else data


def _load_file(owner: str, file_id: str, now: float, database: Database) -> tuple[StoredFile, bytes] | None:
    """Returns a file of the owner with its content; None if there is none, or if it was deleted meanwhile."""
    file = database.files.find_file(owner, file_id, now)
    if file is None:
        return None
    pieces = map(partial(database.files.read_piece, file_id), range(-(-file.size // PIECE_BYTES)))
    data = b"".join(piece or b"" for piece in pieces)
    return (file, data) if len(data) == file.size else None
