"""The weights in an adapter's folder: pairs of matrices A and B by the name of the layer that they change."""

import re
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from antiphon.engine.adapters.lora_config import (
    WEIGHTS_FILE,
    LoraConfig,
    check_weights_file,
    read_lora_config,
)
from antiphon.engine.errors import LoadError, one_line

KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<matrix>[AB])(?:\.default)?\.weight")
"""Name of a matrix in the file. Some trainers leave the adapter's name, ``default``, in it."""

BASE_KEY = re.compile(r"base_model\.model\.(?P<layer>(?!.*\.lora_).+?)(?:\.base_layer)?\.(?P<kind>weight|bias)")
"""Name of a copy of the base model's weight. PEFT saves those of embeddings and output layers in some cases."""

REFUSED_PARTS = {
    "lora_embedding_": "adapters of embeddings",
    "lora_magnitude_vector": "DoRA (`use_dora`)",
    "modules_to_save": "whole layers (`modules_to_save`)",
    "token_adapter": "adapters of single tokens (`trainable_token_indices`)",
}
"""Parts of names in the file that belong to kinds of adapters that are not supported."""


class MatrixPair(NamedTuple):
    """The matrices of one layer: A (rank, inputs) and B (outputs, rank)."""

    a: Tensor
    b: Tensor


class AdapterFiles(NamedTuple):
    """Contents of an adapter's folder. ``base_keys``: names of copies of the base model's weights by its names."""

    folder: Path
    config: LoraConfig
    pairs: dict[str, MatrixPair]
    base_keys: dict[str, str]


def read_adapter_files(folder: Path) -> AdapterFiles:
    """Reads an adapter's configuration and weights. Raises :class:`LoadError`."""
    config = read_lora_config(folder)
    path = check_weights_file(folder)
    matrices: dict[str, dict[str, Tensor]] = {}
    base_keys: dict[str, str] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  the file is no mapping
                base_key = _match_base_key(key)
                if base_key is not None:
                    base_keys[base_key] = key
                    continue
                layer, matrix = _read_key(folder, key)
                matrices.setdefault(layer, {})[matrix] = file.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"adapter {folder}: {WEIGHTS_FILE} cannot be read ({one_line(error)}); copy it again") from None
    if not matrices:
        raise LoadError(f"adapter {folder}: {WEIGHTS_FILE} holds no weights; copy the adapter again")
    for layer, pair in matrices.items():
        if len(pair) != len("AB"):
            missing = "B" if "A" in pair else "A"
            raise LoadError(f"adapter {folder}: {layer} has no lora_{missing}; copy the adapter again")
    pairs = {layer: MatrixPair(pair["A"], pair["B"]) for layer, pair in matrices.items()}
    return AdapterFiles(folder, config, pairs, base_keys)


def _match_base_key(key: str) -> str | None:
    """Returns the base model's name of a weight that is a copy of its own; None for all other weights."""
    match = None if any(part in key for part in REFUSED_PARTS) else BASE_KEY.fullmatch(key)
    return None if match is None else f"{match['layer']}.{match['kind']}"


def _read_key(folder: Path, key: str) -> tuple[str, str]:
    """Returns the layer and the matrix, A or B, that a name in the file stands for."""
    for part, kind in REFUSED_PARTS.items():
        if part in key:
            raise LoadError(f"adapter {folder}: {key} belongs to {kind}, which are not supported")
    match = KEY.fullmatch(key)
    if match is None:
        raise LoadError(f"adapter {folder}: {key} is no matrix of a LoRA adapter as PEFT saves it")
    return match["layer"], match["matrix"]
