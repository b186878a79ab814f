"""Digests of models, by which a process tells whether it has the model that another one ran."""

import hashlib
from pathlib import Path

from antiphon.app.model_registry import ServedModel

READ_BYTES = 64 << 10
"""Bytes at the beginning of a file of weights that count, besides its size: names, types and places of its tensors."""
MAX_WHOLE_BYTES = 64 << 20
"""Size up to which a file counts as a whole: configurations, tokenizers, templates and small models."""


def digest_model(model: ServedModel) -> str:
    """Returns a digest of a model's name, of its dialect and of its files, in hexadecimal.

    Files of weights count by their beginning and size, so a model that was only trained on may pass for the old one.
    Reads files: call it in a thread.
    """
    state = hashlib.sha256(f"{model.names[0]}\0{model.adapter}\0{model.format.name}\0{model.format.stop_ids}".encode())
    for folder in filter(None, (model.folder, Path(model.root) if model.root else None)):
        files = [folder] if folder.is_file() else sorted(folder.glob("*"))
        for file in files:
            if file.is_file():
                _add_file(state, file)
    return state.hexdigest()


def _add_file(state: "hashlib._Hash", file: Path) -> None:
    size = file.stat().st_size
    state.update(f"{file.name}\0{size}\0".encode())
    with file.open("rb") as opened:
        state.update(opened.read(size if size <= MAX_WHOLE_BYTES else READ_BYTES))
