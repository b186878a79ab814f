"""Pictures that a server refuses, each with the message."""

import random
import struct
import zlib
from collections.abc import Callable
from io import BytesIO

from PIL import Image

from tests.app.media.pictures import (
    PNG_MAGIC,
    make_gif,
    make_jpeg_segment,
    make_png,
    make_riff,
    png_chunk,
)


def save_image(kind: str, size: tuple[int, int] = (64, 48), **options: object) -> bytes:
    file = BytesIO()
    Image.effect_noise(size, 30).convert("RGB").save(file, kind, **options)
    return file.getvalue()


JPEG = save_image("JPEG")
WEBP = save_image("WEBP")
PNG = save_image("PNG")


def _huge_png(width: int, height: int) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return PNG_MAGIC + header + png_chunk(b"IDAT", zlib.compress(b"\0" * 100)) + png_chunk(b"IEND", b"")


def _bomb(kind: bytes, prefix: bytes) -> bytes:
    """Returns a chunk whose text grows to 200 MB."""
    packer = zlib.compressobj(9)
    text = b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(200)) + packer.flush()
    return png_chunk(kind, prefix + text)


def _resize_jpeg(width: int, height: int) -> bytes:
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


def _wrong_tables() -> bytes:
    at = JPEG.index(b"\xff\xc4") + 5
    return JPEG[:at] + b"\xff" * 16 + JPEG[at + 16 :]


def _vp8x(width: int, height: int, flags: int = 0) -> tuple[bytes, bytes]:
    return b"VP8X", bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")


FAULTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "no bytes": (lambda: b"", "unreadable"),
    "one byte": (lambda: b"\x89", "unsupported_format"),
    "PNG: magic only": (lambda: PNG_MAGIC, "unreadable"),
    "JPEG: magic only": (lambda: b"\xff\xd8\xff", "unreadable"),
    "GIF: magic only": (lambda: b"GIF89a", "unreadable"),
    "WebP: magic only": (lambda: b"RIFF\0\0\0\0WEBP", "unreadable"),
    "a random megabyte": (lambda: random.Random(1).randbytes(1 << 20), "unsupported_format"),
    "HTML": (lambda: b"<!doctype html><script>alert(1)</script>", "unsupported_format"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", "unsupported_format"),
    "PDF": (lambda: b"%PDF-1.7\n", "unsupported_format"),
    "ZIP": (lambda: b"PK\x03\x04" + b"\0" * 40, "unsupported_format"),
    "ELF": (lambda: b"\x7fELF" + b"\0" * 60, "unsupported_format"),
    "BMP": (lambda: save_image("BMP"), "unsupported_format"),
    "TIFF": (lambda: save_image("TIFF"), "unsupported_format"),
    "ICO": (lambda: save_image("ICO"), "unsupported_format"),
    "PSD": (lambda: b"8BPS\0\x01" + b"\0" * 20, "unsupported_format"),
    "EPS": (lambda: save_image("EPS"), "unsupported_format"),
    "FITS": (lambda: b"SIMPLE  =                    T" + b" " * 2850, "unsupported_format"),
    "HEIC": (lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported_format"),
    "AVIF": (lambda: b"\0\0\0\x18ftypavif\0\0\0\0mif1avif", "unsupported_format"),
    "PNG of 60 000 by 60 000": (lambda: _huge_png(60_000, 60_000), "too_large"),
    "PNG of 15 000 by 11 000, cut": (lambda: _huge_png(15_000, 11_000), "too_large"),
    "PNG of 16 001 by 1": (lambda: make_png(16_001, 1), "too_large"),
    "PNG of 6 000 by 6 000, cut": (lambda: _huge_png(6_000, 6_000), "unreadable"),
    "PNG without a side": (lambda: _huge_png(0, 5), "unreadable"),
    "PNG with a wrong sum": (lambda: PNG[:29] + b"\0\0\0\0" + PNG[33:], "unreadable"),
    "PNG with a bomb in zTXt": (lambda: make_png(64, 64, extra=_bomb(b"zTXt", b"k\0\0")), "unreadable"),
    "PNG with a bomb in iTXt": (lambda: make_png(64, 64, extra=_bomb(b"iTXt", b"k\0\1\0\0\0")), "unreadable"),
    "PNG cut": (lambda: PNG[: len(PNG) // 2], "unreadable"),
    "too many bytes": (lambda: PNG + b"\0" * (4 << 20), "too_large"),
    "GIF with a screen of 65 535 by 65 535": (lambda: make_gif(65_535, 65_535, (0, 0, 1, 1)), "too_large"),
    "GIF whose frame is larger than its screen": (
        lambda: make_gif(8, 8, (0, 0, 60_000, 60_000), data=b"\x84\x51"),
        "unreadable",
    ),
    "GIF without a frame": (lambda: make_gif(8, 8)[:19] + b";", "unreadable"),
    "JPEG of 65 500 by 65 500": (lambda: _resize_jpeg(65_500, 65_500), "too_large"),
    "JPEG with wrong Huffman tables": (_wrong_tables, "unreadable"),
    "JPEG of restart markers": (lambda: b"\xff\xd8" + b"\xff\xd0" * 10_000 + b"\xff\xd9", "unreadable"),
    "JPEG of empty segments": (lambda: b"\xff\xd8" + make_jpeg_segment(0xE1, b"") * 50_000, "unreadable"),
    "WebP cut": (lambda: WEBP[: len(WEBP) // 2], "unreadable"),
    "WebP with a canvas of 2^24": (lambda: make_riff(_vp8x(1 << 24, 1 << 24), (b"VP8 ", WEBP[20:])), "too_large"),
    "WebP whose canvas is not its frame": (lambda: make_riff(_vp8x(640, 480), (b"VP8 ", WEBP[20:])), "unreadable"),
    "animated WebP without frames": (lambda: make_riff(_vp8x(64, 48, 2), (b"ANIM", b"\0" * 6)), "unreadable"),
    "strip of 1 by 16 000": (lambda: make_png(1, 16_000), "too_small"),
    "strip of 4 000 by 19": (lambda: make_png(4_000, 19), "too_small"),
}
