"""Format and size of a picture, from its first bytes. Nothing is decoded, so no size has a cost."""

from antiphon.app.sandbox.media.messages import FaultReply, ImageFacts, ImageLimits

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
IMAGE_MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of a frame, which holds the size. The three others are tables and an extension."""
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG's markers without a length."""


class MediaFaultError(Exception):
    """A picture or PDF cannot be read. The reply says why."""

    def __init__(self, reply: FaultReply) -> None:
        super().__init__(reply.code)
        self.reply = reply


def find_format(data: bytes) -> str:
    """Returns Pillow's name of the format that the first bytes show; empty if it is none of the four."""
    if data.startswith(PNG_MAGIC):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    return "WEBP" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else ""


def read_facts(data: bytes, limits: ImageLimits) -> ImageFacts:
    """Returns format and size. Raises `MediaFaultError` if there is no header, or if the picture is too large."""
    kind = find_format(data)
    if not kind:
        raise MediaFaultError(FaultReply("unsupported_format" if data else "unreadable"))
    read = {"PNG": _read_png_size, "JPEG": _read_jpeg_size, "GIF": _read_gif_size, "WEBP": _read_webp_size}[kind]
    size = read(data)
    if size is None or min(size) < 1:
        raise MediaFaultError(FaultReply("unreadable"))
    check_size(*size, limits)
    return ImageFacts(IMAGE_MEDIA_TYPES[kind], *size)


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    """Raises `MediaFaultError` if a picture has too many pixels or is too long."""
    if width * height > limits.max_pixels:
        found, allowed = width * height, limits.max_pixels
        raise MediaFaultError(FaultReply("too_large", "pixels", found, allowed, width, height))
    if max(width, height) > limits.max_side:
        found, allowed = max(width, height), limits.max_side
        raise MediaFaultError(FaultReply("too_large", "side", found, allowed, width, height))


def _read_png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _read_gif_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 10:
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _read_webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    chunk, body = data[12:16], data[20:]
    if chunk == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    if chunk == b"VP8L" and body[:1] == b"\x2f":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _read_jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while 0 <= (at := data.find(b"\xff", at)) < len(data) - 9:
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE_MARKERS:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _SIZE_MARKERS:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if marker in (0x00, 0xD9, 0xDA):  # the scan begins, and no frame came before it
            return None
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
