"""Reads and prepares the pictures of requests: the front end's side of the sandbox's processes.

A picture is decoded once for each owner, model and budget. What the prompt needs of it is kept for long; its arrays
are kept while there is memory. Two owners share nothing, even if they send the same bytes.
"""

import asyncio
from pathlib import Path

import structlog

from antiphon.app.media.array_checks import take_arrays
from antiphon.app.media.budget import MediaLimits, find_budget
from antiphon.app.media.media_client import MediaClient, refuse
from antiphon.app.media.media_event import MediaEvent, Observe, ignore_event, observe_reading
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.prepared_image import (
    CompactImage,
    EncodedImage,
    KnownImages,
    MediaMemory,
    PreparedImage,
    derive_key,
)
from antiphon.app.media.processor_files import read_processor_files
from antiphon.app.media.shared_work import SharedWork
from antiphon.app.sandbox.media.media_process import IMAGE_MODULE, MediaAnswer, MediaProcess
from antiphon.app.sandbox.media.messages import (
    DescribeRequest,
    EncodedReply,
    EncodeRequest,
    ImageFacts,
    InspectRequest,
    MediaRequest,
    PreparedReply,
    PrepareRequest,
    ProcessorFacts,
    ProcessorFiles,
    TokenBudget,
)
from antiphon.app.sandbox.sandbox_process import SandboxError
from antiphon.engine.media_messages import MediaArrays

_log = structlog.get_logger(__name__)


class MediaPreparer:
    """Prepares pictures with the extra "vision". One for each server; it belongs to one event loop.

    All methods that read a picture raise `MediaFault`. `observe` is called with each picture that was asked for.
    """

    def __init__(
        self,
        limits: MediaLimits | None = None,
        observe: Observe = ignore_event,
        module: str = IMAGE_MODULE,
    ) -> None:
        self.limits = limits or MediaLimits()
        self.memory = MediaMemory(self.limits.memory_bytes)
        self._client = MediaClient(module, self.limits.num_workers, self.limits.cpu_limit_s)
        self._observe = observe
        self._known: KnownImages[CompactImage] = KnownImages()
        self._facts: KnownImages[ImageFacts] = KnownImages()
        self._processors: dict[bytes, ProcessorFacts] = {}
        self._folders: dict[Path, ProcessorFacts] = {}
        self._shared = SharedWork()

    @property
    def processes(self) -> tuple[MediaProcess, ...]:
        """The processes that decode pictures, running or not."""
        return self._client.processes

    @property
    def num_restarts(self) -> int:
        """Number of processes that ended during a message."""
        return self._client.num_restarts

    async def inspect(self, owner: str, sha256: bytes, data: bytes) -> ImageFacts:
        """Returns format and size of a picture from its first bytes, without decoding it."""
        place = derive_key(b"inspect", owner.encode(), sha256)
        if (facts := self._facts.get(place)) is not None:
            return facts
        self._check_bytes(data)
        answer = await self._client.ask(owner, place, InspectRequest(self.limits.image), data)
        if not isinstance(answer.reply, ImageFacts):
            raise MediaFault("unavailable")
        self._facts.put(place, answer.reply)
        return answer.reply

    async def describe(self, folder: Path) -> ProcessorFacts:
        """Returns what the processor of a model takes, or in `error` why pictures can never be prepared for it.

        The first time, it logs the error.
        """
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = await self._find_facts(folder)
            if known.error:
                _log.error(f"Media   : no pictures for the model in {folder.name}: {known.error}")
        return known

    async def _find_facts(self, folder: Path) -> ProcessorFacts:
        try:
            files = await asyncio.to_thread(read_processor_files, folder)
        except (OSError, ValueError) as error:
            return ProcessorFacts(error=f"the files of its processor cannot be read ({error})")
        return await self._describe(files)

    async def _describe(self, files: ProcessorFiles) -> ProcessorFacts:
        facts = self._processors.get(files.fingerprint)
        if facts is None:
            answer = await self._client.ask("", derive_key(files.fingerprint), DescribeRequest(files), b"")
            if not isinstance(answer.reply, ProcessorFacts):
                raise refuse("image_worker said nothing of a processor")
            facts = self._processors[files.fingerprint] = answer.reply
        return facts

    def find(
        self, owner: str, sha256: bytes, *, folder: Path, detail: str | None, num_images: int = 1
    ) -> PreparedImage | None:
        """Returns a picture that is already known, without its bytes; None if it has to be prepared."""
        files = read_processor_files(folder)
        facts = self._processors.get(files.fingerprint)
        if facts is None:
            return None
        known = self._known.get(self._place(owner, sha256, files, facts, detail, num_images))
        return None if known is None else known.expand()

    async def prepare(
        self,
        owner: str,
        sha256: bytes,
        data: bytes,
        *,
        folder: Path,
        detail: str | None,
        num_images: int = 1,
        with_arrays: bool = False,
    ) -> PreparedImage:
        """Returns a picture as the model in `folder` sees it, decoded only if it is not known yet.

        `num_images` is the number of pictures in the prompt. `with_arrays`: it is decoded again if its arrays were
        dropped; else they may be missing.
        """
        files = await self._read_files(folder)
        facts = await self._describe(files)
        if facts.error:
            raise refuse(facts.error)
        place = self._place(owner, sha256, files, facts, detail, num_images)
        known = self._known.get(place)
        if known is not None and (not with_arrays or self.memory.has(owner, known.image.key)):
            self._observe(MediaEvent(kind="image", result="known", elapsed_s=0.0))
            return known.expand()
        self._check_bytes(data)
        count = (1 if num_images == 1 else 2) if facts.depends_on_count else 1
        request = PrepareRequest(self.limits.image, files, find_budget(detail, self.limits), count)
        return await self._shared.run(place, lambda: self._prepare(owner, sha256, place, request, data))

    async def _prepare(
        self, owner: str, sha256: bytes, place: bytes, request: PrepareRequest, data: bytes
    ) -> PreparedImage:
        answer = await self._ask(owner, place, request, data)
        reply = answer.reply
        if not isinstance(reply, PreparedReply) or reply.rows < 1:
            raise refuse("image_worker sent a picture without tokens")
        size = reply.width.to_bytes(4, "big") + reply.height.to_bytes(4, "big")
        variant = reply.variant.encode() + bytes([request.num_images])
        key = derive_key(sha256, request.files.fingerprint, size, variant)
        try:
            arrays = take_arrays(reply, answer)
        except SandboxError as error:
            raise refuse(str(error)) from error
        self.memory.keep(owner, arrays, key)
        image = PreparedImage(
            key=key,
            rows=reply.rows,
            replacement=reply.replacement,
            grid=reply.grid,
            width=reply.width,
            height=reply.height,
            arrays=reply.arrays,
            size=reply.size,
        )
        self._known.put(place, CompactImage.compress(image))
        return image

    async def encode_png(
        self, owner: str, sha256: bytes, data: bytes, *, folder: Path | None, detail: str | None
    ) -> EncodedImage:
        """Returns a picture as PNG, scaled to its budget. Without a `folder`, the budget's pixels alone count."""
        files = None if folder is None else await self._read_files(folder)
        budget = find_budget(detail, self.limits)
        if files is None and not budget.max_pixels:
            budget = TokenBudget(budget.max_tokens, budget.max_side, budget.max_tokens * 32 * 32)
        fingerprint = b"" if files is None else files.fingerprint
        place = derive_key(b"png", owner.encode(), sha256, fingerprint, repr(budget).encode())
        if (known := self.memory.load_png(owner, place)) is not None:
            return known
        self._check_bytes(data)
        request = EncodeRequest(self.limits.image, budget, files)
        return await self._shared.run(place, lambda: self._encode(owner, sha256, place, request, data))

    async def _encode(
        self, owner: str, sha256: bytes, place: bytes, request: EncodeRequest, data: bytes
    ) -> EncodedImage:
        answer = await self._ask(owner, place, request, data)
        reply = answer.reply
        if not isinstance(reply, EncodedReply):
            raise refuse("image_worker sent no picture")
        size = reply.width.to_bytes(4, "big") + reply.height.to_bytes(4, "big")
        encoded = EncodedImage(
            key=derive_key(b"png", sha256, size),
            png=answer.payload,
            width=reply.width,
            height=reply.height,
            tokens=reply.tokens,
        )
        self.memory.keep(owner, encoded, place)
        return encoded

    def load_arrays(self, owner: str, key: bytes) -> MediaArrays | None:
        """Returns the arrays of a prepared picture; the caller closes the descriptor. None if they were dropped."""
        return self.memory.load_arrays(owner, key)

    async def close(self) -> None:
        """Ends the processes and drops all pictures."""
        self._shared.cancel()
        await self._client.close()
        self.memory.clear()

    async def _read_files(self, folder: Path) -> ProcessorFiles:
        try:
            return await asyncio.to_thread(read_processor_files, folder)
        except (OSError, ValueError) as error:
            raise refuse(f"the processor of {folder.name} cannot be read: {error}") from error

    def _place(
        self,
        owner: str,
        sha256: bytes,
        files: ProcessorFiles,
        facts: ProcessorFacts,
        detail: str | None,
        num_images: int,
    ) -> bytes:
        """Returns under what a picture is known."""
        budget = repr(find_budget(detail, self.limits)).encode()
        is_one_of_many = bytes([facts.depends_on_count and num_images > 1])
        return derive_key(owner.encode(), sha256, files.fingerprint, budget, is_one_of_many)

    def _check_bytes(self, data: bytes) -> None:
        if len(data) > self.limits.max_image_bytes:
            raise MediaFault("too_large", "bytes", found=len(data), allowed=self.limits.max_image_bytes)

    async def _ask(self, owner: str, place: bytes, request: MediaRequest, data: bytes) -> MediaAnswer:
        """Returns the answer to a message about a picture, and reports what became of it."""
        with observe_reading("image", self._observe):
            return await self._client.ask(owner, place, request, data)
