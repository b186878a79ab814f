"""Reads the files of a model that configure its processor. The sandbox gets their content and opens none itself."""

import hashlib
import importlib.metadata
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from antiphon.app.options.settings import Settings
from antiphon.app.sandbox.media.image_processors import parse_object
from antiphon.app.sandbox.media.messages import ProcessorFiles

MAX_FILE_BYTES = 4 << 20
"""Limit on each file. A tokenizer_config.json with a thousand tokens has 200 kB."""
IMAGE_PACKAGES = {"PIL": "pillow", "numpy": "numpy", "transformers": "transformers"}
"""Modules that prepare pictures, and the packages that they belong to."""
PDF_PACKAGES = {"pypdfium2": "pypdfium2"}
_TOKEN_GROUPS = ("extra_special_tokens", "model_specific_special_tokens")


def find_missing_packages(packages: dict[str, str]) -> list[str]:
    """Returns the names of those packages that are not installed. The extra "vision" has them."""
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def can_prepare_images(settings: Settings) -> bool:
    """Tells whether this server prepares images: they are not switched off, and the extra "vision" is installed."""
    return settings.images == "auto" and not find_missing_packages(IMAGE_PACKAGES)


@lru_cache(maxsize=64)
def read_processor_files(folder: Path) -> ProcessorFiles:
    """Returns the content of the files, read once for each folder. Raises OSError or ValueError."""
    names = ("config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
    contents = {name: _read_file(folder / name) for name in (*names, "special_tokens_map.json")}
    config = parse_object(contents["config.json"])
    tokenizer_config = parse_object(contents["tokenizer_config.json"])
    tokens = _find_tokens(parse_object(contents["special_tokens_map.json"])) | _find_tokens(tokenizer_config)
    files = ProcessorFiles(
        fingerprint=b"",
        model_type=str(config.get("model_type", "")),
        processor=contents["processor_config.json"],
        image_processor=contents["preprocessor_config.json"],
        tokens=tokens,
        processor_class=str(tokenizer_config.get("processor_class") or ""),
    )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in sorted(IMAGE_PACKAGES.values())]
    digest = hashlib.sha256(msgspec.msgpack.encode(versions) + msgspec.msgpack.encode(files))
    return msgspec.structs.replace(files, fingerprint=digest.digest())


def _read_file(path: Path) -> bytes:
    """Returns the content of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name} has more than {MAX_FILE_BYTES} bytes")
    return content


def _find_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens that a configuration names: name → text."""
    groups = [config, *(config[name] for name in _TOKEN_GROUPS if isinstance(config.get(name), dict))]
    tokens = {}
    for name, value in (pair for group in groups for pair in group.items()):
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
