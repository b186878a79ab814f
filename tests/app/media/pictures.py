"""Pictures and models for the tests: bytes from generators, without an image library."""

import json
import struct
import zlib
from pathlib import Path

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
QWEN3_VL_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
}


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def make_png(
    width: int,
    height: int,
    pixels: bytes | None = None,
    *,
    depth: int = 8,
    color: int = 2,
    extra: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """Returns a PNG. `pixels` are its rows without filter bytes; None: gray of one colour. `extra`: chunks before IDAT."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    row_bytes = (width * channels * depth + 7) // 8
    rows = pixels if pixels is not None else b"\x80" * (row_bytes * height)
    packer = zlib.compressobj(1)  # row by row: a large picture must leave no holes in the memory that a test measures
    packed = b"".join(packer.compress(b"\0" + rows[row_bytes * row : row_bytes * (row + 1)]) for row in range(height))
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return PNG_MAGIC + header + extra + png_chunk(b"IDAT", packed + packer.flush()) + after + png_chunk(b"IEND", b"")


def write_model(
    folder: Path,
    model_type: str = "qwen3_vl",
    image_processor: dict[str, object] | None = None,
    processor: dict[str, object] | None = None,
    tokens: dict[str, object] | None = None,
) -> Path:
    """Writes the files of a model that configure its processor. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": {"model_type": model_type},
        "preprocessor_config.json": image_processor or QWEN3_VL_PROCESSOR,
        "processor_config.json": processor,
        "tokenizer_config.json": tokens,
    }
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def make_exif(orientation: int) -> bytes:
    """Returns EXIF with one entry."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation & 0xFFFF, 0)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", 1) + entry + b"\0\0\0\0"


def make_gif(
    width: int, height: int, frame: tuple[int, int, int, int] | None = None, *, frames: int = 1, data: bytes = b""
) -> bytes:
    """Returns a GIF whose frames have one colour. `frame`: left, top, width and height; `data`: codes of all frames."""
    left, top, frame_width, frame_height = frame or (0, 0, width, height)
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\x80\x40"
    codes = data or _pack_codes(frame_width * frame_height)
    blocks = b"".join(bytes([len(part)]) + part for part in (codes[at : at + 255] for at in range(0, len(codes), 255)))
    picture = b"," + struct.pack("<HHHHB", left, top, frame_width, frame_height, 0) + b"\x02" + blocks + b"\0"
    return screen + picture * frames + b";"


def _pack_codes(count: int) -> bytes:
    """Returns LZW codes for pixels of colour 1: before each of them the table is cleared, so all codes have 3 bits."""
    bits, length, packed = 0, 0, bytearray()
    for code in (*(4, 1) * count, 5):
        bits |= code << length
        length += 3
        while length >= 8:
            packed.append(bits & 0xFF)
            bits, length = bits >> 8, length - 8
    return bytes(packed) + bytes([bits & 0xFF])


def make_riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """Returns a WebP of these chunks."""
    body = b"WEBP"
    for kind, data in chunks:
        body += kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def make_jpeg_segment(marker: int, body: bytes) -> bytes:
    """Returns a segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body
