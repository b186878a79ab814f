"""Pictures in results of tools that the server runs: prepared for the next round, and kept for later turns.

A fault of a picture is no error of the request: the model reads it in the place of the picture.
"""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec import structs

from antiphon.app.errors import ApiError
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.errors import media_busy
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.outcome import ResultImage
from antiphon.app.turn_types.blob_urls import format_blob_url
from antiphon.app.turns.media.image_source import ImageRecipe, ImageSource
from antiphon.app.turns.media.preparing import ImageKey, ImagePreparation
from antiphon.app.turns.media.reading import MediaReading
from antiphon.events.hosted_inputs import InputMcpCall
from antiphon.events.inputs import AnyInput, InputImage
from antiphon.events.media_parts import list_media
from antiphon.events.result_images import hide_images, split_output
from antiphon.harmony.image_tokens import PromptImage

_logger = structlog.get_logger(__name__)

MAX_RESULT_BYTES = 32 << 20
"""Size of all pictures in the results of one turn, which has them in memory while it runs."""
MAX_STORE_WAIT_S = 30.0
"""Time for which a turn waits until the store has a picture of a result. Without it, later turns have a placeholder."""
TOO_MANY = "the conversation has too many images"
TOO_LARGE_REASON = "the images of this response have too many bytes"
NO_ROOM = "the context has no room for it"
NO_BASE64 = "its data is not base64"
NO_PROCESSOR = "the processor of the model cannot be used"
BUSY_REASON = "the server is busy with other images"
UNREADABLE_REASON = "its data is not a readable image (png, jpeg, gif, webp)"


class ResultImages:
    """The pictures in the results of one turn, for a model that sees. The turn holds them while it runs.

    `num_images` is the number of pictures in its first prompt, `max_images` that of pictures in any prompt.
    """

    def __init__(
        self,
        preparer: MediaPreparer,
        source: ImageSource,
        model: ServedModel,
        owner: str,
        store: ResponseStore,
        *,
        num_images: int,
        max_images: int,
    ) -> None:
        self._preparer, self._source, self._model, self._owner, self._store = preparer, source, model, owner, store
        self._num_images, self._max_images, self._num_bytes = num_images, max_images, 0
        self._recipes: list[ImageRecipe] = []
        self.shown: dict[ImageKey, PromptImage] = {}
        """The pictures for prompts, as in `PromptInput.images`."""

    async def add(self, image: ResultImage, max_tokens: int, response_id: str | None) -> int | str:
        """Returns the number of tokens of a picture that the next prompt shows; in words why it is not shown.

        `response_id`: of the response that keeps the picture in the store; None if it is not stored.
        """
        if not image.data:
            return NO_BASE64
        if self._num_images >= self._max_images:
            return TOO_MANY
        key = format_blob_url(image.reference), None
        if (known := self.shown.get(key)) is not None and known.rows <= max_tokens:
            self._num_images += 1
            return known.rows
        if self._num_bytes + len(image.data) > MAX_RESULT_BYTES:
            return TOO_LARGE_REASON
        prepared = await self._prepare(key, image)
        if isinstance(prepared, str):
            return prepared
        if prepared.rows > max_tokens:
            return NO_ROOM
        self._num_images += 1
        self._num_bytes += len(image.data)
        self.shown[key] = prepared
        if response_id is not None:
            await self._keep(image, response_id)
        return prepared.rows

    async def restore(self, output: str) -> None:
        """Prepares the stored pictures of a result that another process has taken. Others stay placeholders.

        Raises `ApiError` 503 while the server is busy with other images.
        """
        parts = split_output(output)
        for url in (
            [part.image_url for part in parts if isinstance(part, InputImage)] if isinstance(parts, tuple) else ()
        ):
            key = url or "", None
            prepared = self.shown.get(key) or await self._prepare(key)
            if prepared == BUSY_REASON:
                raise media_busy()
            if not isinstance(prepared, str):
                self.shown[key] = prepared
            self._num_images += 1

    async def _prepare(self, key: ImageKey, image: ResultImage | None = None) -> PromptImage | str:
        reading = MediaReading((), self._owner, self._store, "")
        if image is not None:
            reading.blobs[image.reference.sha256] = image.data
        preparation = ImagePreparation(
            self._preparer, self._source, self._model, self._owner, reading, num_images=self._num_images + 1
        )
        folder = self._model.folder
        try:
            if folder is None or (await self._preparer.describe(folder)).error:
                return NO_PROCESSOR
            prepared = await preparation.prepare(*key)
        except MediaFault as fault:
            return _describe_fault(fault)
        except ApiError:
            return BUSY_REASON
        self._recipes += preparation.recipes
        return UNREADABLE_REASON if prepared is None else prepared

    async def _keep(self, image: ResultImage, response_id: str) -> None:
        """Stores a picture beside its response. Without it, later turns have its placeholder."""
        owner, reference, contents = self._owner, image.reference, {image.reference.sha256: image.data}
        try:
            async with asyncio.timeout(MAX_STORE_WAIT_S):
                await self._store.change(
                    lambda database: database.blobs.add_to_response(owner, response_id, (reference,), contents)
                )
        except (TimeoutError, ApiError):
            _logger.warning("a picture in the result of a tool was not stored", response=response_id)


async def add_images(
    results: ResultImages | None, text: str, images: Sequence[ResultImage], max_tokens: int, spec: TurnSpec
) -> tuple[str, int]:
    """Returns an output that tells which of its pictures the model does not see, and the tokens of the others.

    `results` is None for a model that sees none. The response of `spec` keeps the pictures if it is stored.
    """
    response, num_tokens, position = spec.base_response, 0, 0
    kept_by = response.id if response.store and spec.stored_chat is None else None
    for image in images:
        start = text.find(image.placeholder, position)
        if start < 0:  # cut off with the end of a long text
            break
        shown = image.placeholder
        if results is None:
            shown = f"[image: {image.label}]"
        elif isinstance(added := await results.add(image, max_tokens - num_tokens, kept_by), str):
            shown = f"[image: {image.label}, not shown: {added}]"
        else:
            num_tokens += added
        text = text[:start] + shown + text[start + len(image.placeholder) :]
        position = start + len(shown)
    return text, num_tokens


def limit_results(items: Sequence[AnyInput], max_images: int) -> tuple[AnyInput, ...]:
    """Returns items with the newest pictures of results only, so many that a prompt has at most `max_images`.

    Clients have not sent these pictures, so they are left out where too many sent ones are an error.
    """
    room = max_images - sum(len(list_media(item)) for item in items if not isinstance(item, InputMcpCall))
    limited: list[AnyInput] = []
    for item in reversed(items):
        count = len(list_media(item)) if isinstance(item, InputMcpCall) else 0
        if isinstance(item, InputMcpCall) and count > max(room, 0):
            limited.append(structs.replace(item, output=hide_images(item.output or "", f"not shown: {TOO_MANY}")))
        else:
            limited.append(item)
            room -= count
    return tuple(reversed(limited))


def _describe_fault(fault: MediaFault) -> str:
    """Returns in words why a picture cannot be used."""
    if fault.code in ("busy", "unavailable"):
        return BUSY_REASON
    if fault.code in ("too_large", "too_small"):
        return f"it {fault.detail}".rstrip(".")
    return UNREADABLE_REASON
