"""An adapter in memory: its matrices by layer."""

from pathlib import Path

import torch

from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.lora_weight import LoraWeight
from antiphon.engine.adapters.peft_files import AdapterFiles, MatrixPair
from antiphon.engine.errors import LoadError

MAX_NAMES_SHOWN = 4


class LoadedAdapter:
    """An adapter that jobs can use. ``number`` is never used twice, also not for the same name."""

    def __init__(self, name: str, number: int, weights: dict[str, LoraWeight]) -> None:
        self.name, self.number = name, number
        self.weights = weights
        self.is_listed = True
        """False once it was unloaded: no new job gets it, and caches of its last jobs are not kept."""

    @property
    def num_bytes(self) -> int:
        """Memory of the matrices in bytes."""
        return sum(weight.num_bytes for weight in self.weights.values())

    @property
    def description(self) -> str:
        """Name, ranks and memory, for the operator."""
        ranks = sorted({weight.rank for weight in self.weights.values()})
        rank = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        return f"{self.name} (rank {rank}, {len(self.weights)} layers, {self.num_bytes / 2**20:.1f} MiB)"


def build_adapter(
    name: str, number: int, files: AdapterFiles, layers: AdaptableLayers, dtype: torch.dtype
) -> LoadedAdapter:
    """Builds an adapter for a model. Raises :class:`LoadError` if it does not fit the model's layers."""
    folder, config = files.folder, files.config
    by_layer: dict[str, MatrixPair] = {}
    ranks_and_scales: dict[str, tuple[int, float]] = {}
    unknown = []
    for written, pair in files.pairs.items():
        if not config.is_target(written):
            raise LoadError(f"adapter {folder}: has weights for {written}, which target_modules does not name")
        layer = layers.find_name(written)
        if layer is None:
            unknown.append(written)
            continue
        by_layer[layer] = pair
        ranks_and_scales[layer] = (config.rank_of(written), config.scale_of(written))
    if unknown:
        raise LoadError(
            f"adapter {folder}: target_modules names layers that the base model does not have: "
            f"{_join_names(unknown)}; use the base model that it was trained on ({config.base_model or 'unnamed'})"
        )
    refused = {layer: layers.refusals[layer] for layer in by_layer if layer in layers.refusals}
    if refused:
        reason = next(iter(refused.values()))
        raise LoadError(f"adapter {folder}: target_modules names {_join_names(list(refused))}: {reason}")
    for layer, pair in by_layer.items():
        _check_shapes(folder, layer, pair, layers.shapes[layer], ranks_and_scales[layer][0])
    weights = {
        layer: LoraWeight(pair.a, pair.b, ranks_and_scales[layer][1], layers.device, dtype, layers.products.kernel)
        for layer, pair in by_layer.items()
    }
    return LoadedAdapter(name, number, weights)


def _check_shapes(folder: Path, layer: str, pair: MatrixPair, shape: tuple[int, int], rank: int) -> None:
    """Raises :class:`LoadError` unless A is (rank, inputs) and B is (outputs, rank)."""
    inputs, outputs = shape
    for matrix, found, expected in (("A", pair.a, (rank, inputs)), ("B", pair.b, (outputs, rank))):
        if tuple(found.shape) != expected:
            raise LoadError(
                f"adapter {folder}: lora_{matrix} of {layer} has the shape {_show(found.shape)}, and r and the base "
                f"model require {_show(expected)}; use the base model that the adapter was trained on"
            )


def _show(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
