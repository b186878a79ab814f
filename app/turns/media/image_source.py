"""Gives the engine the arrays of images that it asks for, as long as a turn needs them."""

from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.store.store import ResponseStore
from antiphon.engine.media_messages import MediaArrays, MediaUnavailable
from antiphon.engine.protocol import Job

IMAGE_UNPREPARED_MESSAGE = "an image of the conversation cannot be prepared now"
IMAGE_GONE_MESSAGE = "an image of the conversation was deleted"


class ImageRecipe(msgspec.Struct, weakref=True, kw_only=True):
    """Prepares an image again after its arrays were dropped. Turns hold it while they run."""

    sha256: bytes
    folder: Path
    detail: str | None
    num_images: int
    data: bytes | None
    """The image as sent; None if it is in the store."""


class ImageSource:
    """The images of the turns that run. An engine's `MediaSource`.

    `secret` is that of the names by which engines on other servers know images.
    """

    def __init__(self, preparer: MediaPreparer, store: ResponseStore, secret: bytes) -> None:
        self._preparer, self._store, self.secret = preparer, store, secret
        self._recipes: WeakValueDictionary[tuple[str, bytes], ImageRecipe] = WeakValueDictionary()

    def add_recipe(self, owner: str, key: bytes, recipe: ImageRecipe) -> ImageRecipe:
        """Returns the recipe that is known from now on: another turn may have the same image."""
        known = self._recipes.get((owner, key))
        if known is None or known.data is None:
            self._recipes[owner, key] = recipe
            return recipe
        return known

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        """Returns the arrays of an image. Raises `MediaUnavailable`."""
        arrays = self._preparer.load_arrays(job.owner, key)
        if arrays is None:
            await self._prepare(job.owner, key)
            arrays = self._preparer.load_arrays(job.owner, key)
        if arrays is None:
            raise MediaUnavailable(IMAGE_UNPREPARED_MESSAGE)
        return arrays

    async def load_png(self, job: Job, key: bytes) -> bytes:
        """Returns an image as PNG without metadata. Raises `MediaUnavailable`."""
        recipe, data = await self._load(job.owner, key)
        try:
            encoded = await self._preparer.encode_png(
                job.owner, recipe.sha256, data, folder=recipe.folder, detail=recipe.detail
            )
        except (MediaFault, ApiError):
            raise MediaUnavailable(IMAGE_UNPREPARED_MESSAGE) from None
        return encoded.png

    async def _load(self, owner: str, key: bytes) -> tuple[ImageRecipe, bytes]:
        """Returns the recipe of an image and the image as sent. Raises `MediaUnavailable`."""
        recipe = self._recipes.get((owner, key))
        if recipe is None:
            raise MediaUnavailable(IMAGE_GONE_MESSAGE)
        try:
            data = recipe.data or await self._store.read_blob(owner, recipe.sha256)
        except ApiError:
            raise MediaUnavailable(IMAGE_UNPREPARED_MESSAGE) from None
        if data is None:
            raise MediaUnavailable(IMAGE_GONE_MESSAGE)
        return recipe, data

    async def _prepare(self, owner: str, key: bytes) -> None:
        recipe, data = await self._load(owner, key)
        try:
            await self._preparer.prepare(
                owner,
                recipe.sha256,
                data,
                folder=recipe.folder,
                detail=recipe.detail,
                num_images=recipe.num_images,
                with_arrays=True,
            )
        except (MediaFault, ApiError):
            raise MediaUnavailable(IMAGE_UNPREPARED_MESSAGE) from None
