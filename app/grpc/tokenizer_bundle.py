"""The files of a model's tokenizer and chat template as a zip file, which routers fetch from their workers."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

BUNDLE_PATTERNS = (
    "tokenizer*.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
)
PART_BYTES = 64 * 1024
"""Size of the parts that a bundle is sent in."""


@cache
def build_tokenizer_bundle(folder: Path) -> bytes:
    """Returns the zip file of a model's folder."""
    files = {file for pattern in BUNDLE_PATTERNS for file in folder.glob(pattern) if file.is_file()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            archive.write(file, file.name)
    return buffer.getvalue()


def split_bundle(bundle: bytes) -> Iterator[tuple[bytes, str]]:
    """Yields the parts of a bundle, the last one with the SHA-256 digest of the whole."""
    for start in range(0, len(bundle), PART_BYTES):
        end = start + PART_BYTES
        yield bundle[start:end], hashlib.sha256(bundle).hexdigest() if end >= len(bundle) else ""
