"""Pictures in outputs of tools that the server runs.

Such an output is a text in every API, so each picture is a placeholder in it that names the bytes. A prompt shows the
picture in its place while the bytes are stored, to a model that sees.
"""

import re

from antiphon.events.inputs import InputImage, InputText

BLOB_PREFIX = "blob:sha256-"
"""Begins the URLs that stand for stored bytes."""
_IMAGE_PLACEHOLDER = re.compile(
    r"\[image: ([a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}), ([0-9]{1,15}) bytes,"
    r" sha256 ([0-9a-f]{64})\]"
)


def write_placeholder(media_type: str, size: int, sha256: bytes) -> str:
    """Returns what stands for a picture in an output."""
    return f"[image: {media_type}, {size} bytes, sha256 {sha256.hex()}]"


def hide_images(text: str, reason: str = "") -> str:
    """Returns a text whose placeholders name no bytes any more, but `reason`: none of its pictures is shown."""
    return _IMAGE_PLACEHOLDER.sub(lambda match: f"[image: {match[1]}{reason and ', '}{reason}]", text)


def split_output(text: str) -> str | tuple[InputText | InputImage, ...]:
    """Returns an output in parts, with a picture for each placeholder; the text if it has none."""
    pieces = _IMAGE_PLACEHOLDER.split(text)
    if len(pieces) == 1:
        return text
    parts: list[InputText | InputImage] = []
    for start in range(0, len(pieces), 4):
        if piece := pieces[start].strip("\n"):
            parts.append(InputText(text=piece))
        if image := pieces[start + 1 : start + 4]:
            media_type, size, sha256 = image
            parts.append(InputImage(image_url=f"{BLOB_PREFIX}{sha256};{media_type};{size}"))
    return tuple(parts)
