"""Reads the images and files of a turn before its prompt is rendered.

1. Files and URLs that the request names are read: from here on, items hold blob URLs only.
2. Files become text, and images of their pages for a model that sees.
3. Images are prepared by the model's processor, which counts their tokens.

A request is checked to its end here, so that a fault is an error and not an event.
"""

import asyncio
import mimetypes
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct, structs

from antiphon.app.base.blob_urls import BlobContents, BlobReference, format_blob_url, parse_blob_url, refer_to
from antiphon.app.base.settings import Settings
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.prepared_image import PreparedImage
from antiphon.app.model_registry import ServedModel
from antiphon.app.requests.batches.body import FILE_ID
from antiphon.app.requests.media.errors import (
    MediaPlace,
    file_not_found,
    mismatched_image,
    refused_url,
    too_many_images,
)
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.requests.media.vision import sees_images
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.batches.records import PIECE_BYTES, StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.app.turns.media.faults import check_messages_size, explain_image_fault
from antiphon.app.turns.media.image_source import ImageRecipe, ImageSource
from antiphon.app.turns.media.parts import MediaPart, find_media, replace_media
from antiphon.events.inputs import InputImage, InputPart
from antiphon.harmony.images import PromptImage

ImageKey = tuple[str, str | None]
"""Blob URL and `detail` of an image."""


class TurnMedia(Struct, frozen=True):
    """The images and files of a turn. The turn holds it while it runs."""

    blobs: BlobContents = {}
    """Contents that the items of this request refer to."""
    recipes: tuple[ImageRecipe, ...] = ()


NO_MEDIA = TurnMedia()


class MediaResolver:
    """Resolves the media of turns. Without a `preparer`, no model sees images and no PDF is read."""

    def __init__(self, store: ResponseStore, preparer: MediaPreparer | None, settings: Settings) -> None:
        self._store, self._preparer, self._settings = store, preparer, settings
        self.source = None if preparer is None else ImageSource(preparer, store)

    async def close(self) -> None:
        """Ends the processes that read images and files."""
        if self._preparer is not None:
            await self._preparer.close()

    async def resolve(self, model: ServedModel, spec: TurnSpec, owner: str) -> tuple[TurnSpec, TurnMedia]:
        """Returns the turn with its images. Raises `ApiError`."""
        if not spec.media and next(find_media(spec.prompt_input.items), None) is None:
            return spec, NO_MEDIA
        reading = _MediaReading(spec, owner, self._store)
        sees = self._preparer is not None and sees_images(model, self._settings)
        spec = await reading.read_sources(spec, fetches_images=sees, fetches_files=self._preparer is not None)
        if self._preparer is None or self.source is None or not sees:
            return spec, TurnMedia(reading.blobs)
        images = _list_images(spec)
        if len(images) > self._settings.max_images:
            raise too_many_images(spec.prompt_param, len(images), self._settings.max_images)
        preparing = _Preparing(self._preparer, self.source, model, owner, reading, num_images=len(images))
        prompt_images = await preparing.prepare_all(images)
        prompt_input = structs.replace(spec.prompt_input, images=prompt_images)
        return structs.replace(spec, prompt_input=prompt_input), TurnMedia(reading.blobs, tuple(preparing.recipes))


def _list_images(spec: TurnSpec) -> list[ImageKey]:
    """Returns the images of a conversation that have their bytes here, in order, repeated ones too."""
    return [
        (part.image_url, part.detail)
        for part in find_media(spec.prompt_input.items)
        if isinstance(part, InputImage) and part.image_url and parse_blob_url(part.image_url) is not None
    ]


class _MediaReading:
    """Reads what a request names. `blobs` has the contents of all its images and files."""

    def __init__(self, spec: TurnSpec, owner: str, store: ResponseStore) -> None:
        self._owner, self._store, self._param = owner, store, spec.prompt_param
        self.blobs = {media.sent.reference.sha256: media.sent.data for media in spec.media if media.sent is not None}
        self.sent: dict[str, SentMedia] = {}
        """The first part of the request with each source."""
        for media in spec.media:
            self.sent.setdefault(media.source, media)

    async def read_sources(self, spec: TurnSpec, *, fetches_images: bool, fetches_files: bool) -> TurnSpec:
        """Returns the turn whose items refer to the bytes of the files and URLs that they name. Raises `ApiError`.

        Images and files that are not fetched stay as they are: the model gets placeholders of them.
        """
        found: dict[str, BlobReference] = {}
        for source, media in self.sent.items():
            is_fetched = fetches_images if media.place.is_image else fetches_files
            if media.sent is not None or not is_fetched:
                continue
            if not media.is_file_id:
                raise refused_url(media.place, urlsplit(source).hostname or "")
            found[source] = await self._read_file(media)
        if not found:
            return spec

        def refer(part: MediaPart) -> Sequence[InputPart]:
            reference = found.get(part.file_id or "")
            if reference is None:
                return (part,)
            url = format_blob_url(reference)
            self.sent.setdefault(url, self.sent[part.file_id or ""])
            if isinstance(part, InputImage):
                return (structs.replace(part, image_url=url),)
            return (structs.replace(part, file_data=url),)

        items = replace_media(spec.prompt_input.items, refer)
        return structs.replace(
            spec,
            prompt_input=structs.replace(spec.prompt_input, items=items),
            input_items=replace_media(spec.input_items, refer),
        )

    async def _read_file(self, media: SentMedia) -> BlobReference:
        """Returns the reference to the content of a file of the owner. Raises `ApiError`."""
        load = partial(_load_file, self._owner, media.source, time.time())
        found = await self._store.read(load) if FILE_ID.fullmatch(media.source) else None
        if found is None:
            raise file_not_found(media.place, media.source)
        file, data = found
        media_type = mimetypes.guess_type(file.filename)[0] or ""
        reference = refer_to(data, media_type)
        self.blobs[reference.sha256] = data
        return reference

    def find_place(self, source: str) -> MediaPlace:
        """Returns the place of an image or a file in the request; for one of an earlier request, the whole input."""
        media = self.sent.get(source)
        return MediaPlace(api="responses", path=self._param) if media is None else media.place

    async def load(self, reference: BlobReference) -> bytes | None:
        """Returns bytes of this request or of an earlier one; None if they were deleted."""
        data = self.blobs.get(reference.sha256)
        return await self._store.read_blob(self._owner, reference.sha256) if data is None else data


def _load_file(owner: str, file_id: str, now: float, database: Database) -> tuple[StoredFile, bytes] | None:
    """Returns a file of the owner with its content; None if there is none, or if it was deleted meanwhile."""
    file = database.files.find_file(owner, file_id, now)
    if file is None:
        return None
    pieces = map(partial(database.files.read_piece, file_id), range(-(-file.size // PIECE_BYTES)))
    data = b"".join(piece or b"" for piece in pieces)
    return (file, data) if len(data) == file.size else None


class _Preparing:
    """Prepares the images of one prompt, each once."""

    def __init__(
        self,
        preparer: MediaPreparer,
        source: ImageSource,
        model: ServedModel,
        owner: str,
        reading: _MediaReading,
        *,
        num_images: int,
    ) -> None:
        self._preparer, self._source, self._model, self._owner = preparer, source, model, owner
        self._reading, self._num_images = reading, num_images
        self.recipes: list[ImageRecipe] = []

    async def prepare_all(self, images: Iterable[ImageKey]) -> dict[ImageKey, PromptImage]:
        """Returns what the prompt needs of each image. One whose bytes were deleted is left out. Raises `ApiError`."""
        keys = list(dict.fromkeys(images))
        tasks = [asyncio.ensure_future(self._prepare(url, detail)) for url, detail in keys]
        try:
            prepared = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return {key: image for key, image in zip(keys, prepared, strict=True) if image is not None}

    async def _prepare(self, url: str, detail: str | None) -> PromptImage | None:
        reference, folder = parse_blob_url(url), self._model.folder
        if reference is None or folder is None:
            return None
        place = self._reading.find_place(url)
        try:
            image = await self._read(reference, folder, detail, self._reading.sent.get(url))
        except MediaFault as fault:
            raise explain_image_fault(fault, place) from None
        if image is None:
            return None
        recipe = ImageRecipe(
            sha256=reference.sha256,
            folder=folder,
            detail=detail,
            num_images=self._num_images,
            data=self._reading.blobs.get(reference.sha256),
        )
        self.recipes.append(self._source.add_recipe(self._owner, image.key, recipe))
        return PromptImage(key=image.key, replacement=image.replacement, rows=image.rows, grid=image.grid)

    async def _read(
        self, reference: BlobReference, folder: Path, detail: str | None, media: SentMedia | None
    ) -> PreparedImage | None:
        """Returns an image as the model sees it; None if its bytes were deleted. Raises `MediaFault`, `ApiError`."""
        sha256, preparer = reference.sha256, self._preparer
        is_checked = media is not None and media.place.api == "messages"
        known = preparer.find(self._owner, sha256, folder=folder, detail=detail, num_images=self._num_images)
        if known is not None and not is_checked:
            return known
        data = await self._reading.load(reference)
        if data is None:
            return None
        if media is not None and is_checked:
            await self._check_messages(sha256, data, media)
        return await preparer.prepare(
            self._owner, sha256, data, folder=folder, detail=detail, num_images=self._num_images
        )

    async def _check_messages(self, sha256: bytes, data: bytes, media: SentMedia) -> None:
        """Checks an image by the rules of `/v1/messages`. Raises `MediaFault`, `ApiError`."""
        facts = await self._preparer.inspect(self._owner, sha256, data)
        if media.media_type is not None and facts.media_type != media.media_type:
            raise mismatched_image(media.place, media.media_type)
        if not media.downsize:
            check_messages_size(facts.width, facts.height, self._num_images, media.place)
