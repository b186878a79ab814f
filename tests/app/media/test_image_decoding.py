"""Decoding: every mode and orientation, compared with a plain reading of the samples."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from antiphon.app.sandbox.media.image_decoding import decode_rgb
from antiphon.app.sandbox.media.image_headers import read_facts
from antiphon.app.sandbox.media.messages import ImageFacts, ImageLimits
from tests.app.media.pictures import make_exif, make_gif, make_png, png_chunk

LIMITS = ImageLimits()
WIDTH, HEIGHT = 6, 4
RANDOM = np.random.default_rng(1)
PALETTE = RANDOM.integers(0, 256, (256, 3), dtype=np.uint8)

UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda picture: picture,
    2: lambda picture: picture[:, ::-1],
    3: lambda picture: picture[::-1, ::-1],
    4: lambda picture: picture[::-1],
    5: lambda picture: picture.transpose(1, 0, 2),
    6: lambda picture: picture.transpose(1, 0, 2)[:, ::-1],
    7: lambda picture: picture.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda picture: picture.transpose(1, 0, 2)[::-1],
}
"""Orientation in EXIF → what turns the stored samples upright."""


def _pack_rows(samples: np.ndarray, depth: int) -> bytes:
    """Returns rows of samples as PNG stores them."""
    rows = samples.reshape(HEIGHT, -1)
    if depth == 16:
        return rows.astype(">u2").tobytes()
    if depth == 8:
        return rows.astype(np.uint8).tobytes()
    bits = (rows[:, :, None] >> np.arange(depth - 1, -1, -1)) & 1
    return np.packbits(bits.reshape(HEIGHT, -1).astype(np.uint8), axis=1).tobytes()


def _scale(samples: np.ndarray, depth: int) -> np.ndarray:
    return samples.astype(np.float64) * 255 / (2**depth - 1)


def _over_white(color: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return color * alpha / 255 + 255 * (1 - alpha / 255)


def _make_case(color: int, depth: int, *, transparent: bool) -> tuple[bytes, bytes, np.ndarray]:
    """Returns the rows, chunks before them and the picture as RGB."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    samples = RANDOM.integers(0, 2**depth, (HEIGHT, WIDTH, channels))
    chunks = b""
    if color == 3:
        chunks = png_chunk(b"PLTE", PALETTE[: 2**depth].tobytes())
        rgb = PALETTE[samples[:, :, 0]].astype(np.float64)
        if transparent:
            alphas = RANDOM.integers(0, 256, 2**depth).astype(np.uint8)
            chunks += png_chunk(b"tRNS", alphas.tobytes())
            rgb = _over_white(rgb, alphas[samples[:, :, 0]][:, :, None].astype(np.float64))
    elif color in (4, 6):
        scaled = _scale(samples, depth)
        rgb = _over_white(np.repeat(scaled[:, :, :-1], 3 if color == 4 else 1, axis=2), scaled[:, :, -1:])
    else:
        rgb = np.repeat(_scale(samples, depth), 3 if color == 0 else 1, axis=2)
        if transparent:
            key = samples[1, 2]
            chunks = png_chunk(b"tRNS", np.array(key).astype(">u2").tobytes())
            rgb[(samples == key).all(axis=2)] = 255
    return _pack_rows(samples, depth), chunks, rgb


MODES = [
    *((0, depth, transparent) for depth in (1, 2, 4, 8, 16) for transparent in (False, True)),
    *((2, depth, transparent) for depth in (8, 16) for transparent in (False, True)),
    *((3, depth, transparent) for depth in (1, 2, 4, 8) for transparent in (False, True)),
    *((color, depth, False) for color in (4, 6) for depth in (8, 16)),
]


@pytest.mark.parametrize(("color", "depth", "transparent"), MODES)
def test_modes_and_orientations(color: int, depth: int, *, transparent: bool) -> None:
    rows, chunks, rgb = _make_case(color, depth, transparent=transparent)
    for orientation, turn in UPRIGHT.items():
        data = make_png(
            WIDTH, HEIGHT, rows, depth=depth, color=color, extra=png_chunk(b"eXIf", make_exif(orientation)) + chunks
        )
        image = decode_rgb(data, LIMITS)
        assert (image.mode, image.info) == ("RGB", {})
        # Colour and opacity may each be rounded down, and their blend with white up or down.
        assert np.abs(np.asarray(image) - turn(rgb)).max() <= (2.01 if depth == 16 and color in (4, 6) else 1.01)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_unknown_orientation_changes_nothing(orientation: int) -> None:
    plain = make_png(WIDTH, HEIGHT)
    turned = make_png(WIDTH, HEIGHT, extra=png_chunk(b"eXIf", make_exif(orientation)))
    assert decode_rgb(turned, LIMITS).tobytes() == decode_rgb(plain, LIMITS).tobytes()


METADATA = {
    "EXIF of garbage": png_chunk(b"eXIf", bytes(range(256)) * 240),
    "EXIF cut": png_chunk(b"eXIf", make_exif(6)[:12]),
    "EXIF with an identity": png_chunk(
        b"eXIf", b"II*\0\x08\0\0\0\x01\0\x00\xa4\x02\0\x05\0\0\0\x1a\0\0\0\0\0\0\0" + b"abcd\0"
    ),
    "gamma": png_chunk(b"gAMA", (45455 * 3).to_bytes(4, "big")),
    "profile": png_chunk(b"iCCP", b"x\0\0" + b"not a profile"),
    "comment": png_chunk(b"tEXt", b"Comment\0<image_soft_token>"),
    "unknown chunk": png_chunk(b"zzZz", b"1"),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_have_no_effect(name: str) -> None:
    plain = decode_rgb(make_png(WIDTH, HEIGHT), LIMITS)
    image = decode_rgb(make_png(WIDTH, HEIGHT, extra=METADATA[name]), LIMITS)
    assert (image.tobytes(), image.info, dict(image.getexif())) == (plain.tobytes(), {}, {})


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_of_one_colour(mode: str) -> None:
    gray = Image.new("RGB", (16, 8), (200, 200, 200))
    for orientation, size in ((1, (16, 8)), (6, (8, 16))):
        data = _encode(gray.convert(mode), "JPEG", quality=95, exif=b"Exif\0\0" + make_exif(orientation))
        image = decode_rgb(data, LIMITS)
        assert image.size == size
        assert np.abs(np.asarray(image, dtype=np.int64) - 200).max() <= 3


@pytest.mark.parametrize("transform", [0, 2], ids=["CMYK", "YCCK"])
@pytest.mark.parametrize("black", [0, 55])
def test_jpeg_of_four_components(transform: int, black: int) -> None:
    """Adobe stores the complements of inks: 100 is what 155 of each lets through; 128 is no colour difference."""
    stored = (100, 100, 100, 255 - black) if transform == 0 else (155, 128, 128, 255 - black)
    inks = Image.new("CMYK", (16, 8), tuple(255 - part for part in stored))  # Pillow writes complements, too
    data = _encode(inks, "JPEG", quality=95)
    marker = data.index(b"Adobe") + 11
    data = data[:marker] + bytes([transform]) + data[marker + 1 :]
    expected = 100 * (255 - black) / 255
    assert np.abs(np.asarray(decode_rgb(data, LIMITS), dtype=np.int64) - expected).max() <= 4


def test_second_picture_of_a_jpeg_is_ignored() -> None:
    frames = [Image.new("RGB", (16, 8), color) for color in ((10, 200, 10), (200, 10, 10))]
    image = decode_rgb(_encode(frames[0], "MPO", save_all=True, append_images=frames[1:]), LIMITS)
    assert image.size == (16, 8) and np.asarray(image)[4, 8, 1] > 150


def test_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ((0, 255, 0), (255, 0, 0))]
    for kind in ("GIF", "WEBP", "PNG"):
        data = _encode(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        image = decode_rgb(data, LIMITS)
        assert tuple(np.asarray(image)[4, 4]) == (0, 255, 0), kind


@pytest.mark.parametrize("lossless", [False, True])
def test_transparent_webp_is_on_white(*, lossless: bool) -> None:
    image = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    decoded = decode_rgb(_encode(image, "WEBP", lossless=lossless, exact=True), LIMITS)
    assert np.asarray(decoded).min() == 255


def test_transparent_gif_is_on_white() -> None:
    data = make_gif(4, 4)
    data = data[:19] + b"!\xf9\x04\x01\0\0\x01\0" + data[19:]  # colour 1 is transparent
    assert np.asarray(decode_rgb(data, LIMITS)).min() == 255
    assert tuple(np.asarray(decode_rgb(make_gif(4, 4), LIMITS))[0, 0]) == (255, 128, 64)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_header_alone_gives_the_size(kind: str) -> None:
    image = Image.new("RGB", (37, 11))
    expected = ImageFacts(f"image/{kind.lower()}", 37, 11)
    assert read_facts(_encode(image, kind), LIMITS) == expected
    if kind == "WEBP":
        assert read_facts(_encode(image, kind, lossless=True), LIMITS) == expected
        assert read_facts(_encode(image.convert("RGBA"), kind, exif=make_exif(1)), LIMITS) == expected
