"""The process that decodes pictures. Run with `python -P -m antiphon.app.sandbox.media.image_worker`."""

import json
import signal
from collections import OrderedDict
from io import BytesIO

from antiphon.app.sandbox.media import array_file, image_decoding, image_headers, image_preparation, image_processors
from antiphon.app.sandbox.media.messages import (
    DescribeRequest,
    EncodedReply,
    EncodeRequest,
    FaultReply,
    InspectRequest,
    MediaRequest,
    PreparedReply,
    PrepareRequest,
    ProcessorFacts,
    ProcessorFiles,
)
from antiphon.app.sandbox.media.serving import HandleMedia, MediaResult, serve_media

MAX_PROCESSORS = 8
"""Processors that stay loaded: one for each model that gets pictures."""
PNG_COMPRESSION = 1
"""Larger values take several times as long and save a tenth."""


class ImageHandler:
    """Answers messages about pictures."""

    def __init__(self) -> None:
        image_decoding.prepare_pillow()
        self._loaded: OrderedDict[bytes, image_processors.LoadedProcessor | str] = OrderedDict()

    def answer(self, request: MediaRequest, payload: bytes) -> MediaResult:
        """Returns the answer to a message; every fault of a picture is a `FaultReply`."""
        try:
            if isinstance(request, InspectRequest):
                return image_headers.read_facts(payload, request.limits), b"", None
            if isinstance(request, DescribeRequest):
                return self._describe(request.files), b"", None
            if isinstance(request, PrepareRequest):
                return self._prepare(request, payload)
            if isinstance(request, EncodeRequest):
                return self._encode(request, payload)
        except image_headers.MediaFaultError as fault:
            return fault.reply, b"", None
        except image_processors.ProcessorUnavailableError:
            return FaultReply("unavailable"), b"", None
        except MemoryError:
            return FaultReply("too_slow"), b"", None
        return FaultReply("unavailable"), b"", None

    def _describe(self, files: ProcessorFiles) -> ProcessorFacts:
        try:
            return self._load(files).facts
        except image_processors.ProcessorUnavailableError as error:
            return ProcessorFacts(error=str(error))

    def _load(self, files: ProcessorFiles) -> image_processors.LoadedProcessor:
        loaded = self._loaded.get(files.fingerprint)
        if loaded is None:
            loaded = _load_untimed(files)
            self._loaded[files.fingerprint] = loaded
            if len(self._loaded) > MAX_PROCESSORS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(files.fingerprint)
        if isinstance(loaded, str):
            raise image_processors.ProcessorUnavailableError(loaded)
        return loaded

    def _prepare(self, request: PrepareRequest, payload: bytes) -> MediaResult:
        loaded = self._load(request.files)
        image = image_decoding.decode_rgb(payload, request.limits)
        image, changes, arrays, replacement = image_preparation.prepare_image(
            loaded, image, request.budget, request.num_images
        )
        width, height = image.size
        del image
        grid = next((arrays[name] for name in image_preparation.PATCH_NAMES if name in arrays), None)
        places, converted, size = array_file.lay_out(arrays)
        del arrays
        reply = PreparedReply(
            rows=replacement.count(loaded.facts.soft_token),
            replacement=replacement,
            grid=() if grid is None else tuple(int(value) for value in grid.reshape(-1)),
            width=width,
            height=height,
            variant=json.dumps(changes, sort_keys=True) if changes else "",
            arrays=places,
            size=size,
        )
        descriptor = array_file.write_memory_file(places, converted, size)
        payload = array_file.join_arrays(places, converted, size) if descriptor is None else b""
        return reply, payload, descriptor

    def _encode(self, request: EncodeRequest, payload: bytes) -> MediaResult:
        loaded = None if request.files is None else self._load(request.files)
        image = image_decoding.decode_rgb(payload, request.limits)
        size, changes = image_preparation.plan_size(loaded, image.size, request.budget)
        if size != image.size:
            image = image_preparation.scale_image(image, size)
        tokens = 0 if loaded is None else image_preparation.count_tokens(loaded, size, changes)
        file = BytesIO()
        image.save(file, "PNG", compress_level=PNG_COMPRESSION)
        return EncodedReply(*size, tokens), file.getvalue(), None


def _load_untimed(files: ProcessorFiles) -> image_processors.LoadedProcessor | str:
    """Loads a processor outside the CPU time of the message: the picture is not at fault for what this takes."""
    left_s, _ = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        return _load_processor(files)
    finally:
        signal.setitimer(signal.ITIMER_PROF, left_s)


def _load_processor(files: ProcessorFiles) -> image_processors.LoadedProcessor | str:
    """Returns the processor, or why there is none."""
    try:
        return image_processors.LoadedProcessor(files)
    except image_processors.ProcessorUnavailableError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  transformers raises many types; the operator, not a client, reads it
        return f"its processor cannot be loaded ({type(error).__name__}: {str(error)[:200]})"


def _prepare_handler() -> HandleMedia:
    image_processors.hide_packages()
    return ImageHandler().answer


if __name__ == "__main__":
    serve_media(_prepare_handler)
