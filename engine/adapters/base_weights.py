"""Copies of the base model's weights in an adapter's file.

PEFT's `save_pretrained` adds the whole embedding or output layer if an adapter changes it, or if the vocabulary was
resized. A copy that equals the base model's weight changes nothing; any other would be a part of the adapter.
"""

import logging
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from antiphon.engine.adapters.peft_files import AdapterFiles
from antiphon.engine.checkpoint.files import EMBEDDING_NAME_PATTERN, find_weight_files
from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import report_fallback

log = logging.getLogger(__name__)

BASE_ROWS_PER_PART = 2048
"""Rows of a weight that are compared at a time."""


def check_base_weights(files: AdapterFiles, base_folder: Path | None) -> None:
    """Raises `LoadError` if a copy differs from the base model's weight.

    Weights that cannot be compared, because the base model's files hold no such tensor, are named in the log.
    """
    if not files.base_copies:
        return
    places = _find_tensors(base_folder)
    for name, (key, copy) in files.base_copies.items():
        found = _find_place(name, places)
        is_equal = None if found is None else _are_equal(copy, places[found], found)
        if is_equal is None:
            report_fallback(
                log,
                "adapter_base",
                "adapter %s: its copy of %s is not used, and cannot be compared with the base model's files",
                files.folder, name,
            )  # fmt: skip
        elif not is_equal:
            raise LoadError(
                f"adapter {files.folder}: {key} differs from the base model's {found}; use the base model that the "
                "adapter was trained on, or save the adapter again with save_embedding_layers=False if that weight was "
                "not trained"
            )


def _find_tensors(folder: Path | None) -> dict[str, Path]:
    """Returns the files of the base model's tensors by name; none if it is not in safetensors files."""
    places: dict[str, Path] = {}
    try:
        for path in find_weight_files(folder) if folder is not None else ():
            with safe_open(path, framework="pt") as file:
                places |= dict.fromkeys(file.keys(), path)
    except (LoadError, OSError, SafetensorError):
        return {}
    return places


def _find_place(name: str, places: dict[str, Path]) -> str | None:
    """Returns the tensor of this name, of its end, or for an output layer that has none the tied embedding."""
    if name in places:
        return name
    tail = ".".join(name.split(".")[-2:])
    ends = [place for place in places if place == tail or place.endswith(f".{tail}")]
    ends = ends or [place for place in places if ".layers." not in name and EMBEDDING_NAME_PATTERN.search(place)]
    return ends[0] if len(ends) == 1 else None


def _are_equal(saved: Tensor, base_path: Path, base_key: str) -> bool | None:
    """Tells whether a tensor equals one in a file in the type of the first; None for other types than floats."""
    with safe_open(base_path, framework="pt") as base_file:
        base = base_file.get_tensor(base_key)
        if not (saved.is_floating_point() and base.is_floating_point()):
            return None
        return saved.shape == base.shape and all(
            torch.equal(part, of_base.to(saved.dtype))
            for part, of_base in zip(
                torch.split(saved, BASE_ROWS_PER_PART), base.split(BASE_ROWS_PER_PART), strict=True
            )
        )
