"""Tokens that the attention of a layer reads: all earlier ones, a window, a chunk, or the keys of an earlier layer."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import get_layer_types_and_kwargs

ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Types of layers of which `antiphon.engine.forward.attention` computes the attention."""

WINDOW_KINDS = {"sliding_attention", "hybrid_sliding"}


class LayerVariant(NamedTuple):
    """Differences between the attention of a layer and standard attention.

    `chunk`: a token attends to the tokens of its own chunk, of that many tokens from the sequence's start on.
    `source`: the layer whose keys and values this layer reads, since it has none.
    """

    chunk: int | None = None
    source: int | None = None


STANDARD = LayerVariant()


def find_layer_kinds(config: Any) -> list[str]:
    """Returns the type of each layer. A layer that reads an earlier layer's keys has the type of its attention."""
    return _find_kinds_and_options(config)[0]


def find_windows(config: Any) -> dict[int, int]:
    """Returns the sliding windows of the layers that have one, in tokens."""
    kinds, options = _find_kinds_and_options(config)
    return {layer: int(options[layer]["sliding_window"]) for layer, kind in enumerate(kinds) if kind in WINDOW_KINDS}


def find_variants(config: Any) -> dict[int, LayerVariant]:
    """Returns what is special about each layer; most layers are missing."""
    kinds, options = _find_kinds_and_options(config)
    modes = getattr(config, "kv_sharing_modes", None) or [None] * len(kinds)
    variants, sources = {}, {}
    for layer, (kind, mode) in enumerate(zip(kinds, modes, strict=True)):
        if mode == "store":
            sources[kind] = layer
        chunk = int(options[layer]["sliding_window"]) if kind == "chunked_attention" else None
        variant = LayerVariant(chunk, sources[kind] if mode == "reuse" else None)
        if variant != STANDARD:
            variants[layer] = variant
    return variants


def _find_kinds_and_options(config: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the type of each layer and the options of its cache.

    transformers calls a layer that owns no cache a dummy, whatever its attention is.
    """
    kinds, options = get_layer_types_and_kwargs(config)
    modes = getattr(config, "kv_sharing_modes", None) or []
    for layer in (layer for layer, mode in enumerate(modes) if mode == "reuse"):
        kinds[layer] = config.layer_types[layer]
        if kinds[layer] in WINDOW_KINDS:
            options[layer]["sliding_window"] = config.per_layer_config[layer].sliding_window
    return kinds, options


def split_at_chunks(first: int, end: int, chunk: int) -> list[tuple[int, int]]:
    """Splits the positions from `first` to `end` where chunks begin: 5 to 9 with chunks of 4 → (5, 8), (8, 9)."""
    bounds = [first, *range((first // chunk + 1) * chunk, end, chunk), end]
    return list(pairwise(bounds))


class RowPositions:
    """Stands for transformers' cache in layers that ask it for the position of the first token (Llama 4).

    The tokens of the row belong to several sequences, so the answer is a number for each token: its position less its
    index in the row, to which the layer adds the index.
    """

    def __init__(self, positions: Tensor) -> None:
        self._offsets = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, _layer: int = 0) -> Tensor:
        """Returns a number of earlier tokens for each token of the row (n,)."""
        return self._offsets

    def update(self, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Returns the new keys and values; `antiphon.engine.forward.attention.attend` adds the earlier ones."""
        return keys, values


def asks_cache_for_positions(config: Any) -> bool:
    """Tells whether layers of the model ask the cache for positions; others get them as an argument."""
    return bool(getattr(config, "attn_temperature_tuning", False))
