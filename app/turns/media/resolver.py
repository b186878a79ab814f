"""Reads the images and files of a turn before its prompt is rendered.

1. Files that the request names are read: from here on, items refer to bytes only.
2. Files become text, and images of their pages for a model that sees.
3. Images are prepared by the model's processor, which counts their tokens.

A request is checked to its end here, so that a fault is an error and not an event.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from antiphon.app.http.request_body import BodyMemory, BodyReservation
from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.pdf_reader import PdfReader
from antiphon.app.options.settings import Settings
from antiphon.app.outbound.fetcher import UrlFetcher, create_fetch_policy
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.errors import media_busy, refused_media, too_many_images
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.requests.media.vision import sees_images
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.blob_urls import BlobContents, parse_blob_url
from antiphon.app.turns.media.files import FileReading
from antiphon.app.turns.media.image_source import ImageRecipe, ImageSource
from antiphon.app.turns.media.parts import find_media
from antiphon.app.turns.media.preparing import ImageKey, ImagePreparation
from antiphon.app.turns.media.reading import MediaReading
from antiphon.app.turns.media.result_images import ResultImages, limit_results
from antiphon.events.hosted_inputs import InputMcpCall
from antiphon.events.inputs import AnyInput, InputImage
from antiphon.harmony.prompt.shown_items import list_images


class TurnMedia(Struct, frozen=True):
    """The images and files of a turn. The turn holds it while it runs."""

    blobs: BlobContents = {}
    """Contents that the items of this request refer to."""
    recipes: tuple[ImageRecipe, ...] = ()
    items: tuple[AnyInput, ...] | None = None
    """The conversation before its files became text and pages; None if it has no images and no files."""


NO_MEDIA = TurnMedia()


class MediaResolver:
    """Resolves the media of turns. Without a `preparer`, no model sees images; without a `reader`, no PDF is read.

    `secret`: see `ImageSource`. `memory`: that of the bodies of all requests, which named files take, too, while they
    are read and prepared.
    """

    def __init__(
        self,
        store: ResponseStore,
        settings: Settings,
        preparer: MediaPreparer | None = None,
        reader: PdfReader | None = None,
        fetcher: UrlFetcher | None = None,
        *,
        secret: bytes = b"",
        memory: BodyMemory | None = None,
    ) -> None:
        self._store, self._settings, self._preparer, self._reader = store, settings, preparer, reader
        self._fetcher = fetcher or UrlFetcher(create_fetch_policy(()))
        self._memory = memory or BodyMemory(settings.max_body_bytes)
        limits = MediaLimits() if preparer is None else preparer.limits
        self._max_bytes = max(limits.max_image_bytes, limits.max_pdf_bytes)
        self.source = None if preparer is None else ImageSource(preparer, store, secret)

    async def close(self) -> None:
        """Ends the processes that read images and files."""
        for each in (self._preparer, self._reader):
            if each is not None:
                await each.close()

    async def resolve(self, model: ServedModel, spec: TurnSpec, owner: str) -> tuple[TurnSpec, TurnMedia]:
        """Returns the turn with its images. Raises `ApiError`."""
        if not spec.media and next(find_media(spec.prompt_input.items), None) is None:
            return spec, NO_MEDIA
        memory = BodyReservation(self._memory)
        try:
            return await self._resolve(model, spec, owner, memory)
        finally:
            memory.release()

    async def _resolve(
        self, model: ServedModel, spec: TurnSpec, owner: str, memory: BodyReservation
    ) -> tuple[TurnSpec, TurnMedia]:
        items = spec.prompt_input.items
        preparer = await self._find_preparer(model, spec)
        reading = MediaReading(spec.media, owner, self._store, spec.prompt_param, memory)
        await reading.read_sources(self._fetcher, self._max_bytes, reads_images=preparer is not None)
        items = reading.refer(items)
        items = items if preparer is None else limit_results(items, self._settings.max_images)
        num_images = len(_list_images(items))
        if preparer is not None and num_images > self._settings.max_images:
            raise too_many_images(spec.prompt_param, num_images, self._settings.max_images)
        page_tokens = 0 if preparer is None else preparer.limits.image_tokens
        refuses = self._settings.unsupported_media == "refuse"
        files = FileReading(reading, owner, self._reader, page_tokens=page_tokens, refuses=refuses)
        referring, items = items, await files.show(items)
        prompt_input = structs.replace(spec.prompt_input, items=items)
        recipes: tuple[ImageRecipe, ...] = ()
        if preparer is not None and self.source is not None:
            images = _list_images(items)
            results = frozenset(url for url, _ in _list_images([each for each in items if _is_result(each)]))
            preparation = ImagePreparation(
                preparer, self.source, model, owner, reading, num_images=len(images), result_urls=results
            )
            prompt_input = structs.replace(prompt_input, images=await preparation.prepare_all(images))
            recipes = tuple(preparation.recipes)
        resolved = structs.replace(spec, prompt_input=prompt_input, input_items=reading.refer(spec.input_items))
        return resolved, TurnMedia(reading.blobs, recipes, referring)

    def open_results(self, model: ServedModel, spec: TurnSpec, owner: str) -> ResultImages | None:
        """Returns what takes the pictures in results of the tools of a resolved turn; None for a blind model."""
        if self._preparer is None or self.source is None or not sees_images(model, self._settings):
            return None
        return ResultImages(
            self._preparer,
            self.source,
            model,
            owner,
            self._store,
            num_images=len(_list_images(spec.prompt_input.items)),
            max_images=self._settings.max_images,
        )

    async def _find_preparer(self, model: ServedModel, spec: TurnSpec) -> MediaPreparer | None:
        """Returns what prepares images for a model; None if it sees none.

        Raises `ApiError` if the model's processor cannot be used here, and images must not become placeholders.
        """
        if self._preparer is None or not sees_images(model, self._settings):
            return None
        try:
            if model.folder is None or not (await self._preparer.describe(model.folder)).error:
                return self._preparer
        except MediaFault:
            raise media_busy() from None
        sent = [item for item in spec.prompt_input.items if not _is_result(item)]
        has_images = any(isinstance(part, InputImage) for part in find_media(sent))
        if has_images and self._settings.unsupported_media == "refuse":
            raise refused_media(
                next((each.place.path for each in spec.media if each.place.is_image), spec.prompt_param)
            )
        return None

    async def read_items(
        self, items: Iterable[AnyInput], media: Iterable[SentMedia], owner: str
    ) -> tuple[tuple[AnyInput, ...], BlobContents]:
        """Returns the items of a conversation, and the contents that they refer to. Raises `ApiError`.

        What they hold is checked when a turn shows them to a model.
        """
        memory = BodyReservation(self._memory)
        reading = MediaReading(tuple(media), owner, self._store, "items", memory)
        try:
            await reading.read_sources(self._fetcher, self._max_bytes, reads_images=self._preparer is not None)
        finally:
            memory.release()
        return reading.refer(items), reading.blobs


def _is_result(item: AnyInput) -> bool:
    """Tells whether the pictures of an item are those of a result, which no client has sent."""
    return isinstance(item, InputMcpCall)


def _list_images(items: Sequence[AnyInput]) -> list[ImageKey]:
    """Returns the images that a prompt shows and that have their bytes here, in order, repeated ones too."""
    return [
        (part.image_url, part.detail)
        for part in list_images(items)
        if part.image_url and parse_blob_url(part.image_url) is not None
    ]
