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
            upright = _turn_upright(image)
            rgb = _flatten(upright, data)
    except (MediaFaultError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  Pillow's decoders raise many types, and their texts may show addresses
        raise MediaFaultError(FaultReply("unreadable")) from None
    if rgb is image:
        rgb = rgb.copy()
    rgb.info = {}
    return rgb


def _turn_upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  damaged EXIF is no EXIF
        orientation = None
    transposition = _TRANSPOSITIONS.get(orientation) if isinstance(orientation, int) else None
    if transposition is None:
        return image
    turned = image.transpose(transposition)
    turned.info = image.info
    return turned


def _flatten(image: Image.Image, data: bytes) -> Image.Image:
    """Returns a picture of any mode as RGB, with white where it is transparent."""
    transparency = image.info.get("transparency")
    if image.mode in _ALPHA_MODES or (image.mode == "P" and transparency is not None):
        return _compose(image.convert("RGBA"))
    if image.mode.startswith("I"):
        return _flatten_deep(image, transparency)
    if transparency is not None and image.mode in ("1", "L", "RGB"):
        return _flatten_keyed(image, transparency, data)
    return image if image.mode == "RGB" else image.convert("RGB")


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


def _flatten_keyed(image: Image.Image, transparency: object, data: bytes) -> Image.Image:
    """Returns a picture in which one colour is transparent as RGB. The key is in the file's own depth."""
    is_png = find_format(data) == "PNG"
    depth = data[24] if is_png and len(data) > 24 else 8
    adjust: Callable[[int], int] = lambda value: value * _GRAY_STEPS.get(depth, 1)  # noqa: E731
    rgb = np.array(image.convert("RGB"))
    if isinstance(transparency, int):
        rgb[(rgb == np.uint8(adjust(transparency) & 0xFF)).all(axis=-1)] = 255
    elif isinstance(transparency, tuple) and len(transparency) == 3:
        key = [value >> 8 if depth == 16 else value for value in transparency]
        rgb[(rgb == np.array(key, dtype=np.int64)).all(axis=-1)] = 255
    return Image.fromarray(rgb)
