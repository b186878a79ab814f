"""Digests of models, by which a process tells whether it has the model that another one ran."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from antiphon.app.registry.model_registry import ServedModel

DIGEST_READ_BYTES = 64 << 10
"""Bytes at the beginning of a file of weights that count, besides its size: names, types and places of its tensors."""
MAX_WHOLE_BYTES = 64 << 20
"""Size up to which a file counts as a whole: configurations, tokenizers, templates and small models."""


def digest_models(models: Mapping[str, ServedModel]) -> dict[str, str]:
    """Returns a digest of each model's name, of its dialect and of its files, in hexadecimal.

    Files of weights count by their beginning and size, so a model that was only trained on may pass for the old one.
    Reads files: call it in a thread. A folder that several models share, with their adapters, is read once.
    """
    read_folder = lru_cache(_digest_folder)
    digests: dict[str, str] = {}
    for name, model in models.items():
        parts = [name, model.adapter, model.format.name, str(model.format.stop_ids)]
        folders = filter(None, (model.folder, Path(model.root) if model.root else None))
        parts += [read_folder(folder) for folder in folders]
        digests[name] = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return digests


def _digest_folder(folder: Path) -> str:
    state = hashlib.sha256()
    for file in filter(Path.is_file, [folder] if folder.is_file() else sorted(folder.glob("*"))):
        size = file.stat().st_size
        state.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            state.update(opened.read(size if size <= MAX_WHOLE_BYTES else DIGEST_READ_BYTES))
    return state.hexdigest()
