"""Reads the images and files that a request holds or names, so that its items refer to their bytes only."""

import asyncio
import mimetypes
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import structs

from antiphon.app.http.request_body import BodyReservation
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.outbound.faults import FetchFault
from antiphon.app.outbound.fetcher import UrlFetcher
from antiphon.app.requests.media.errors import MediaPlace, file_not_found, too_many_bytes
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.blob_urls import BlobReference, format_blob_url, refer_to
from antiphon.app.turns.media.faults import explain_fetch_fault, explain_file_fault, explain_image_fault
from antiphon.app.turns.media.parts import replace_media
from antiphon.events.inputs import AnyInput, InputImage, InputPart
from antiphon.events.media_parts import MediaPart

MAX_NAMED_FILE_BYTES = 32 << 20
"""Largest file that a request may name by its id. Images and PDFs have smaller limits or the same one."""
MAX_NAMED_BYTES = 128 << 20
"""Size of all files and URLs together that a request names. All of them are in memory at once."""


class MediaReading:
    """The images and files of one request. `blobs` has the contents of all that were read.

    `param` is the field of the request that holds the conversation. `memory` counts what the request only names; the
    rest is part of its body.
    """

    def __init__(
        self,
        media: Iterable[SentMedia],
        owner: str,
        store: ResponseStore,
        param: str,
        memory: BodyReservation | None = None,
    ) -> None:
        media = tuple(media)
        self._memory, self._named_bytes = memory, 0
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

    async def read_sources(self, fetcher: UrlFetcher, max_bytes: int, *, reads_images: bool) -> None:
        """Reads the files and URLs that the request names, each of at most `max_bytes`. Raises `ApiError`.

        Images that are not read stay in the items as they are: the model gets placeholders of them. Their files must
        exist all the same.
        """
        for source, media in list(self.sent.items()):
            if media.sent is not None:
                continue
            if media.place.is_image and not reads_images:
                if media.is_file_id and not await self._has_file(source):
                    raise file_not_found(media.place, source)
                continue
            if media.is_file_id:
                reference = await self._read_file(media)
            else:
                reference = await self._fetch(media, fetcher, max_bytes)
            self._references[source] = reference
            self.sent.setdefault(format_blob_url(reference), media)

    def refer(self, items: Iterable[AnyInput]) -> tuple[AnyInput, ...]:
        """Returns items that refer to the bytes of the files that they name."""
        return replace_media(items, self._refer_part) if self._references else tuple(items)

    def _refer_part(self, part: MediaPart) -> Sequence[InputPart]:
        url = part.image_url if isinstance(part, InputImage) else part.file_url
        source = part.file_id or url or ""
        reference = self._references.get(source)
        if reference is None:
            return (part,)
        url = format_blob_url(reference)
        if isinstance(part, InputImage):
            return (structs.replace(part, image_url=url),)
        return (structs.replace(part, file_data=url, filename=part.filename or self._filenames.get(source)),)

    async def _has_file(self, file_id: str) -> bool:
        """Tells whether the owner has a file, whose content is not needed."""
        return await self._store.read_file_bytes(self._owner, file_id, time.time(), max_bytes=-1) is not None

    async def _read_file(self, media: SentMedia) -> BlobReference:
        """Returns the reference to the content of a file of the owner. Raises `ApiError`."""
        reserve = partial(self._count_bytes, media.place)
        found = await self._store.read_file_bytes(self._owner, media.source, time.time(), MAX_NAMED_FILE_BYTES, reserve)
        if found is None:
            raise file_not_found(media.place, media.source)
        file, data = found
        if data is None:
            fault = MediaFault("too_large", "bytes", found=file.size, allowed=MAX_NAMED_FILE_BYTES)
            explain = explain_image_fault if media.place.is_image else explain_file_fault
            raise explain(fault, media.place)
        self._filenames[media.source] = file.filename
        media_type = file.media_type or mimetypes.guess_type(file.filename)[0] or ""
        reference = await asyncio.to_thread(refer_to, data, media_type)
        self.blobs[reference.sha256] = data
        return reference

    def _count_bytes(self, place: MediaPlace, num_bytes: int) -> None:
        """Counts what the request names. Raises `ApiError`: 400 for too much, 429 while others take the memory."""
        self._named_bytes += num_bytes
        if self._named_bytes > MAX_NAMED_BYTES:
            raise too_many_bytes(place, self._named_bytes, MAX_NAMED_BYTES)
        if self._memory is not None:
            self._memory.add(num_bytes)

    async def _fetch(self, media: SentMedia, fetcher: UrlFetcher, max_bytes: int) -> BlobReference:
        """Returns the reference to the content of a URL. Raises `ApiError`."""
        url = media.source
        try:
            data = await fetcher.fetch(self._owner, url, max_bytes)
        except FetchFault as fault:
            raise explain_fetch_fault(fault, media.place) from None
        self._count_bytes(media.place, len(data))
        name = PurePosixPath(unquote(urlsplit(url).path)).name
        self._filenames[url] = name
        reference = await asyncio.to_thread(refer_to, data, mimetypes.guess_type(name)[0] or "", url)
        self.blobs[reference.sha256] = data
        return reference

    def find_place(self, source: str, *, is_image: bool = True) -> MediaPlace:
        """Returns the place of an image or a file in the request; for one of an earlier request, the whole input."""
        media = self.sent.get(source)
        return MediaPlace(api="responses", path=self._param, is_image=is_image) if media is None else media.place

    def find(self, sha256: bytes) -> bytes | None:
        """Returns bytes of this request; None for those of an earlier one."""
        return self.blobs.get(sha256) or self.pages.get(sha256)

    async def has(self, reference: BlobReference) -> bool:
        """Tells whether `load` finds the bytes, without reading them."""
        is_sent = self.find(reference.sha256) is not None
        return is_sent or await self._store.has_blob(self._owner, reference.sha256)

    async def load(self, reference: BlobReference) -> bytes | None:
        """Returns bytes of this request or of an earlier one; None if they were deleted."""
        data = self.find(reference.sha256)
        return await self._store.read_blob(self._owner, reference.sha256) if data is None else data
