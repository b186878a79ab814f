"""Decodes a picture to plain RGB: the first frame, upright, on white, without metadata.

Every reader of the picture after this one sees the same pixels, whatever the file says about profiles, orientation or
transparency.
"""

import warnings
from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image, ImageFile

from antiphon.app.sandbox.media.image_headers import MediaFaultError, check_size, find_format, read_facts
from antiphon.app.sandbox.media.messages import FaultReply, ImageLimits

ORIENTATION_TAG = 0x0112
WHITE = (255, 255, 255)
BAND_HEIGHT = 256
"""Rows that are converted at a time."""
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Orientation in EXIF → what makes the picture upright."""
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_GRAY_STEPS = {1: 255, 2: 85, 4: 17}
"""Bits of a gray PNG → difference of two neighbouring grays, of 255."""


def prepare_pillow() -> None:
    """Makes Pillow strict: what it would warn of is an error, and no cut file is completed."""
    warnings.simplefilter("error")
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.preinit()


def decode_rgb(data: bytes, limits: ImageLimits) -> Image.Image:
    """Returns a picture as RGB. Raises `MediaFaultError`; memory that runs out is a MemoryError."""
    read_facts(data, limits)
    Image.MAX_IMAGE_PIXELS = limits.max_pixels  # of frames, too, whose size may differ
    try:
        with Image.open(BytesIO(data), formats=(find_format(data),)) as image:
            check_size(*image.size, limits)
            image.load()
            transposition = _find_transposition(image)
            rgb = _flatten(image, data)
            if rgb is image:
                rgb = rgb.copy()  # a plain image, which has no metadata
    except (MediaFaultError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  Pillow's decoders raise many types, and their texts may show addresses
        raise MediaFaultError(FaultReply("unreadable")) from None
    del image  # its pixels, before the others are copied
    rgb.info = {}
    return rgb if transposition is None else rgb.transpose(transposition)


def _find_transposition(image: Image.Image) -> Image.Transpose | None:
    """Returns what turns a picture upright; None if it is so."""
    try:
        orientation = image.getexif().get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  damaged EXIF is no EXIF
        return None
    return _TRANSPOSITIONS.get(orientation) if isinstance(orientation, int) else None


def _flatten(image: Image.Image, data: bytes) -> Image.Image:
    """Returns a picture of any mode as RGB, with white where it is transparent."""
    transparency = image.info.get("transparency")
    if image.mode in _ALPHA_MODES or (image.mode == "P" and transparency is not None):
        return _compose(image if image.mode == "RGBA" else image.convert("RGBA"))
    if image.mode.startswith("I"):
        return _map_bands(image, lambda band: _flatten_deep(band, transparency))
    if transparency is not None and image.mode in ("1", "L", "RGB"):
        key = _find_key(transparency, data)
        return _map_bands(image, lambda band: _flatten_keyed(band, key))
    return image if image.mode == "RGB" else image.convert("RGB")


def _map_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Converts a picture band by band: as arrays of numbers, a whole one would take several times its memory."""
    converted = Image.new("RGB", image.size)
    for top in range(0, image.height, BAND_HEIGHT):
        bottom = min(top + BAND_HEIGHT, image.height)
        converted.paste(convert(image.crop((0, top, image.width, bottom))), (0, top))
    return converted


def _compose(image: Image.Image) -> Image.Image:
    composed = Image.new("RGB", image.size, WHITE)
    composed.paste(image, mask=image.getchannel("A"))
    return composed


def _flatten_deep(image: Image.Image, transparency: object) -> Image.Image:
    """Returns a picture with 16 bits of gray as RGB. The values are scaled, not cut off."""
    values = np.asarray(image, dtype=np.int64).clip(0, 65535)
    gray = ((values + 128) // 257).astype(np.uint8)
    if isinstance(transparency, int):
        gray[values == transparency] = 255
    return Image.fromarray(gray).convert("RGB")


def _find_key(transparency: object, data: bytes) -> tuple[int, ...]:
    """Returns the transparent colour in 8 bits. The file has it in its own depth."""
    depth = data[24] if find_format(data) == "PNG" and len(data) > 24 else 8
    if isinstance(transparency, int):
        return (transparency * _GRAY_STEPS.get(depth, 1) & 0xFF,) * 3
    if isinstance(transparency, tuple) and len(transparency) == 3:
        return tuple(int(value) >> 8 if depth == 16 else int(value) for value in transparency)
    return ()


def _flatten_keyed(image: Image.Image, key: tuple[int, ...]) -> Image.Image:
    rgb = np.array(image.convert("RGB"))
    if key:
        rgb[(rgb == np.array(key)).all(axis=-1)] = 255
    return Image.fromarray(rgb)
