"""Prepares the images of one prompt with the model's processor."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.prepared_image import PreparedImage
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.errors import mismatched_image
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.turn_types.blob_urls import BlobReference, parse_blob_url
from antiphon.app.turns.media.faults import check_messages_size, explain_image_fault
from antiphon.app.turns.media.image_source import ImageRecipe, ImageSource
from antiphon.app.turns.media.reading import MediaReading
from antiphon.harmony.image_tokens import ImageForm, PromptImage

ImageKey = tuple[str, str | None]
"""Blob URL and `detail` of an image."""


class ImagePreparation:
    """Prepares the images of one prompt, each once. `result_urls` are those of pictures in results of tools."""

    def __init__(
        self,
        preparer: MediaPreparer,
        source: ImageSource,
        model: ServedModel,
        owner: str,
        reading: MediaReading,
        *,
        num_images: int,
        result_urls: frozenset[str] = frozenset(),
    ) -> None:
        self._preparer, self._source, self._model, self._owner = preparer, source, model, owner
        self._reading, self._num_images, self._result_urls = reading, num_images, result_urls
        self.recipes: list[ImageRecipe] = []

    async def prepare_all(self, images: Iterable[ImageKey]) -> dict[ImageKey, PromptImage]:
        """Returns what the prompt needs of each image. One whose bytes were deleted is left out. Raises `ApiError`."""
        keys = list(dict.fromkeys(images))
        tasks = [asyncio.ensure_future(self._prepare_checked(url, detail)) for url, detail in keys]
        try:
            prepared = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return {key: image for key, image in zip(keys, prepared, strict=True) if image is not None}

    async def _prepare_checked(self, url: str, detail: str | None) -> PromptImage | None:
        try:
            return await self.prepare(url, detail)
        except MediaFault as fault:
            if url in self._result_urls and fault.code not in ("busy", "unavailable"):
                return None  # another model has seen it, and the client cannot take it out
            raise explain_image_fault(fault, self._reading.find_place(url)) from None

    async def prepare(self, url: str, detail: str | None) -> PromptImage | None:
        """Returns what the prompt needs of an image; None if its bytes were deleted.

        Raises `MediaFault`, `ApiError`.
        """
        reference, folder = parse_blob_url(url), self._model.folder
        if reference is None or folder is None:
            return None
        image = await self._read(reference, folder, detail, self._reading.sent.get(url))
        if image is None:
            return None
        recipe = ImageRecipe(
            sha256=reference.sha256,
            folder=folder,
            detail=detail,
            num_images=self._num_images,
            data=self._reading.find(reference.sha256),
        )
        self.recipes.append(self._source.add_recipe(self._owner, image.key, recipe))
        return PromptImage(
            key=image.key, replacement=image.replacement, rows=image.rows, grid=image.grid, form=self._find_form()
        )

    def _find_form(self) -> ImageForm:
        """Returns how the model's engine takes images in prompts."""
        form = self._model.engine.info.image_form
        return "expanded" if form == "none" else form

    async def _read(
        self, reference: BlobReference, folder: Path, detail: str | None, media: SentMedia | None
    ) -> PreparedImage | None:
        """Returns an image as the model sees it; None if its bytes were deleted. Raises `MediaFault`, `ApiError`."""
        sha256, preparer = reference.sha256, self._preparer
        is_checked = media is not None and media.place.api == "messages"
        known = preparer.find(self._owner, sha256, folder=folder, detail=detail, num_images=self._num_images)
        if known is not None and not is_checked:  # the engine may ask for its bytes, but they were deleted
            return known if await self._reading.has(reference) else None
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
