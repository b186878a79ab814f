"""Builds an adapter in memory from its files: matches its matrices with the layers of the model."""

from pathlib import Path
from typing import NamedTuple

import torch

from antiphon.engine.adapters.layer_pattern import PatternError
from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.lora_config import LoraConfig, clip
from antiphon.engine.adapters.peft_files import AdapterFiles, MatrixPair
from antiphon.engine.errors import LoadError, show_shape
from antiphon.engine.forward.adapter_weights import LoadedAdapter, LoraWeight

MAX_NAMES_SHOWN = 4

MATRIX_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of matrices that trainers save."""


class ScaledPair(NamedTuple):
    """The matrices of a layer, and the factor of their product."""

    pair: MatrixPair
    scale: float


def match_layers(files: AdapterFiles, layers: AdaptableLayers) -> dict[str, ScaledPair]:
    """Returns an adapter's matrices by the names of the model's layers.

    Raises `LoadError` unless the model has all of these layers, with these shapes.
    """
    folder, config = files.folder, files.config
    matched: dict[str, ScaledPair] = {}
    ranks: dict[str, int] = {}
    unknown = []
    for written, pair in sorted(files.pairs.items()):  # files have them in any order
        layer = layers.find_name(written)
        if layer is None:
            unknown.append(written)
            continue
        if layer in matched:
            raise LoadError(f"adapter {folder}: has weights for {layer} twice; copy the adapter again")
        ranks[layer], scale = _read_settings(folder, config, written)
        matched[layer] = ScaledPair(pair, scale)
    if unknown:
        raise LoadError(
            f"adapter {folder}: target_modules names layers that the base model does not have: "
            f"{_join_names(unknown)}; use the base model that it was trained on ({config.base_model or 'unnamed'})"
        )
    for layer, (pair, _) in matched.items():
        _check_matrices(folder, layer, pair, layers.shapes[layer], ranks[layer])
    return matched


def _read_settings(folder: Path, config: LoraConfig, written: str) -> tuple[int, float]:
    """Returns the rank and the scale of a layer. `written`: its name in the file."""
    try:
        if not config.is_target(written):
            raise LoadError(f"adapter {folder}: has weights for {written}, which target_modules does not name")
        return config.rank_of(written), config.scale_of(written)
    except PatternError as error:
        raise LoadError(
            f"adapter {folder}: a pattern of its configuration cannot be used ({error}); name the layers instead"
        ) from None


def build_adapter(
    name: str, number: int, files: AdapterFiles, layers: AdaptableLayers, dtype: torch.dtype
) -> LoadedAdapter:
    """Builds an adapter for a model. Raises `LoadError` if it does not fit the model's layers."""
    matched = match_layers(files, layers)
    refused = {layer: layers.refusals[layer] for layer in matched if layer in layers.refusals}
    if refused:
        reason = next(iter(refused.values()))
        raise LoadError(f"adapter {files.folder}: target_modules names {_join_names(list(refused))}: {reason}")
    weights = {
        layer: LoraWeight(pair.a, pair.b, scale, layers.device, dtype, layers.products.kernel)
        for layer, (pair, scale) in matched.items()
    }
    return LoadedAdapter(name, number, weights)


def _check_matrices(folder: Path, layer: str, pair: MatrixPair, shape: tuple[int, int], rank: int) -> None:
    """Raises `LoadError` unless A is (rank, inputs), B is (outputs, rank), and all their numbers are finite."""
    inputs, outputs = shape
    for matrix, found, expected in (("A", pair.a, (rank, inputs)), ("B", pair.b, (outputs, rank))):
        if found.dtype not in MATRIX_DTYPES:
            kind = str(found.dtype).removeprefix("torch.")
            raise LoadError(
                f"adapter {folder}: lora_{matrix} of {layer} is stored in {kind}; save it in float32 or bfloat16"
            )
        if tuple(found.shape) != expected:
            raise LoadError(
                f"adapter {folder}: lora_{matrix} of {layer} has the shape {show_shape(found.shape)}, and r and the "
                f"base model require {show_shape(expected)}; use the base model that the adapter was trained on"
            )
        if not found.isfinite().all():
            raise LoadError(
                f"adapter {folder}: lora_{matrix} of {layer} holds NaN or infinity; copy the adapter again, or choose "
                "another one"
            )


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(clip(name, 200) for name in names[:MAX_NAMES_SHOWN]) + more
