"""Layers that attend to selected blocks of keys: their indexers run in packed passes, one sequence after another.

An indexer scores the keys of a sequence for each of its tokens and selects the best blocks (MiniMax M3). Its own keys
are kept in the KV cache of the sequence, as another layer.

Indexers that select single keys (DeepSeek V3.2, GLM-5) are not packed. They cut negative scores off, so many keys have
the score 0, and which of them `topk` returns depends on the shape of the pass.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.engine.cache.base import KVCache
from antiphon.engine.forward.attention import CURRENT_METADATA

INDEXED_KINDS = {"minimax_m3_sparse"}
"""Types of layers with such an indexer, as transformers' caches name them."""

BLOCK_PARAMETERS = ["hidden_states", "position_embeddings", "past_key_values", "position_ids"]
"""Parameters of the indexers that select blocks."""


class SequenceIndex:
    """Stands for transformers' cache in the call of an indexer: the keys that a layer's indexer has for a sequence."""

    def __init__(self, cache: KVCache, layer: int) -> None:
        self._cache = cache
        self._layer = layer
        self._new: list[Tensor] = []
        self.layers = {layer: self}

    def update_index(self, keys: Tensor) -> Tensor:
        """Adds keys (1, 1, n, dim). Returns those of all tokens."""
        self._new.append(keys)
        new = torch.cat(self._new, 2)
        return self._cache.write_and_read(-1 - self._layer, new, new[..., :0])[0]


class PackedIndexer:
    """The `forward` of an indexer in packed passes.

    It returns a mask for each part of the row (heads, tokens, keys), True for the keys to attend to, or None where
    these are all earlier ones.
    """

    def __init__(self, indexer: Any) -> None:
        self._forward: Callable[..., Tensor] = indexer.forward
        self._signature = inspect.signature(indexer.forward)
        self._layer = int(indexer.layer_idx)
        self._block_tokens = indexer.block_size
        self._max_tokens = indexer.topk_blocks * indexer.block_size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the indexer for each block of each sequence."""
        metadata = CURRENT_METADATA.get(None)
        if metadata is None:
            return self._forward(*args, **kwargs)
        arguments = self._signature.bind(*args, **kwargs).arguments
        masks = []
        for cache, blocks, _ in metadata.spans:
            index = SequenceIndex(cache, self._layer)
            past = cache.length - blocks[0][0]
            for start, stop in blocks:
                masks.append(self._select_keys(arguments, start, stop, past, index))
        return masks

    def _select_keys(
        self, arguments: dict[str, Any], start: int, stop: int, past: int, index: SequenceIndex
    ) -> Tensor | None:
        """Mask of the tokens from `start` to `stop` of the row, which have `past` more in front of them."""
        part = {name: _slice_tokens(value, start, stop) for name, value in arguments.items()}
        device = part["hidden_states"].device
        positions = torch.arange(start + past, stop + past, device=device)
        earlier = torch.arange(stop + past, device=device) <= positions[:, None]
        selected = self._forward(**part | {"past_key_values": index})[0].long()
        if stop + past <= self._max_tokens:
            return None
        num_blocks = -(-(stop + past) // self._block_tokens)
        mask = earlier.new_zeros((*selected.shape[:2], num_blocks + 1))  # the last one is for slots without a block
        mask.scatter_(-1, selected.masked_fill(selected < 0, num_blocks), value=True)
        mask = mask[..., :num_blocks].repeat_interleave(self._block_tokens, -1)[..., : stop + past]
        return mask & earlier


def _slice_tokens(value: Any, start: int, stop: int) -> Any:
    """Slices tensors (1, n, …) of the row, and tuples of them."""
    if isinstance(value, tuple):
        return tuple(_slice_tokens(item, start, stop) for item in value)
    return value[:, start:stop] if isinstance(value, Tensor) else value


def find_indexers(model: nn.Module) -> list[nn.Module]:
    """Returns the indexers of a model's layers, if all of them are known here."""
    indexers = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "indexer"]
    return indexers if all(_is_known(module) for module in indexers) else []


def _is_known(indexer: Any) -> bool:
    if isinstance(indexer.forward, PackedIndexer):
        return True
    return list(inspect.signature(indexer.forward).parameters) == BLOCK_PARAMETERS


def attach_indexers(indexers: list[nn.Module]) -> None:
    """Makes indexers read the packed row in packed passes; other passes do not change."""
    for indexer in indexers:
        if not isinstance(indexer.forward, PackedIndexer):
            indexer.forward = PackedIndexer(indexer)
