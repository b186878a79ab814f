"""The weights in an adapter's folder: pairs of matrices A and B by the name of the layer that they change."""

import re
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from antiphon.engine.adapters.lora_config import (
    WEIGHTS_FILE,
    LoraConfig,
    check_weights_file,
    clip,
    read_lora_config,
)
from antiphon.engine.errors import LoadError, one_line
from antiphon.engine.regular_files import read_regular_file

MAX_WEIGHTS_BYTES = 64 << 30
"""Largest file of weights where the free memory is not known."""

MAX_ADAPTER_HEADER_BYTES = 8 << 20
"""Largest header of the weights. One for each layer of a model of 126 layers takes 300 KB."""

MATRIX_NAME_PATTERN = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<matrix>[AB])(?:\.default)?\.weight")
"""Name of a matrix in the file. Some trainers leave the adapter's name, `default`, in it."""

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


class BaseCopy(NamedTuple):
    """A copy of a weight of the base model, with its name in the file."""

    key: str
    tensor: Tensor


class AdapterFiles(NamedTuple):
    """Contents of an adapter's folder. `base_copies`: copies of the base model's weights by its names."""

    folder: Path
    config: LoraConfig
    pairs: dict[str, MatrixPair]
    base_copies: dict[str, BaseCopy]


def read_adapter_files(
    folder: Path, root: Path | None = None, max_weights_bytes: int = MAX_WEIGHTS_BYTES
) -> AdapterFiles:
    """Reads an adapter's configuration and weights. Raises `LoadError`.

    `root`: the folder that the files must be in, None for any. The weights are read into memory at once: a mapped
    file that another process shortens would end this one.
    """
    config = read_lora_config(folder, root)
    matrices: dict[str, dict[str, Tensor]] = {}
    base_copies: dict[str, BaseCopy] = {}
    for key, tensor in _read_tensors(folder, root, max_weights_bytes).items():
        base_key = _match_base_key(key)
        if base_key is not None:
            base_copies[base_key] = BaseCopy(key, tensor)
            continue
        layer, matrix = _read_key(folder, key)
        matrices.setdefault(layer, {})[matrix] = tensor
    if not matrices:
        raise LoadError(f"adapter {folder}: {WEIGHTS_FILE} holds no weights; copy the adapter again")
    for layer, pair in matrices.items():
        if len(pair) != len("AB"):
            missing = "B" if "A" in pair else "A"
            raise LoadError(f"adapter {folder}: {clip(layer)} has no lora_{missing}; copy the adapter again")
    pairs = {layer: MatrixPair(pair["A"], pair["B"]) for layer, pair in matrices.items()}
    return AdapterFiles(folder, config, pairs, base_copies)


def _read_tensors(folder: Path, root: Path | None, max_bytes: int) -> dict[str, Tensor]:
    """Returns the tensors in the file of weights by name."""
    path = check_weights_file(folder)
    try:
        data = read_regular_file(path, max_bytes, root)
        if int.from_bytes(data[:8], "little") > MAX_ADAPTER_HEADER_BYTES:
            raise ValueError(f"its header has more than {MAX_ADAPTER_HEADER_BYTES} bytes")  # noqa: TRY301  told like the others
        return parse_safetensors(data)
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        reason = clip(one_line(error), 200)
        raise LoadError(f"adapter {folder}: {WEIGHTS_FILE} cannot be read ({reason}); copy it again") from None


def _match_base_key(key: str) -> str | None:
    """Returns the base model's name of a weight that is a copy of its own; None for all other weights."""
    match = None if any(part in key for part in REFUSED_PARTS) else BASE_KEY.fullmatch(key)
    return None if match is None else f"{match['layer']}.{match['kind']}"


def _read_key(folder: Path, key: str) -> tuple[str, str]:
    """Returns the layer and the matrix, A or B, that a name in the file stands for."""
    for part, kind in REFUSED_PARTS.items():
        if part in key:
            raise LoadError(f"adapter {folder}: {clip(key, 200)} belongs to {kind}, which are not supported")
    match = MATRIX_NAME_PATTERN.fullmatch(key)
    if match is None:
        raise LoadError(f"adapter {folder}: {clip(key, 200)} is no matrix of a LoRA adapter as PEFT saves it")
    return match["layer"], match["matrix"]
