"""The forward pass that runs each sequence alone, with transformers' own cache.

It is correct for every model that transformers can generate with: recurrent states, chunked attention, rotary scaling
that depends on the longest sequence. `forward.varlen.VarlenForward` runs all sequences in one pass through
transformers' attention interface; `optimize.select` chooses one of the two.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from antiphon.engine.forward.adapter_rows import AdapterRows
from antiphon.engine.forward.interface import SequenceInput

CONSTANT_CACHE_TOKENS = 256
"""Tokens that a cache counts as if it does not grow with its tokens."""


class SequentialCache:
    """A sequence in `SequentialForward`: its ids, and the keywords that `generate` passes from step to step.

    `state_tokens` is the memory that it takes besides its tokens, in tokens.
    """

    def __init__(self, kwargs: dict[str, Any], state_tokens: int) -> None:
        self.ids: list[int] = []
        self.kwargs = kwargs
        self._state_tokens = state_tokens

    @property
    def memory_tokens(self) -> int:
        """Memory in tokens."""
        return len(self.ids) + self._state_tokens

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors in transformers' cache."""
        states = [value for value in self.kwargs.values() if not isinstance(value, Tensor)]  # without the mask
        storages = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in _find_tensors(states)}
        return sum(storages.values())


def _find_tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in containers and in objects of transformers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _find_tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_tensors(item)
    elif isinstance(value, CacheLayerMixin | LinearAttentionCacheLayerMixin | Cache):
        yield from _find_tensors(vars(value))


class SequentialForward:
    """Runs each sequence alone, with the cache and the inputs that transformers' own `generate` would use.

    `max_num_seqs` is 1 for a model that keeps the state of a sequence in its modules instead of the cache: another
    sequence would read that state. The state lasts until the next sequence begins.
    """

    supports_chunked_prefill = supports_drafts = False
    prompt_alignment = 1
    is_paged = False
    bytes_per_token = 0
    """Bytes by which the cache of a sequence grows with each token; 0 before `measure_memory`."""
    state_tokens = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self.max_num_seqs: int | None = None
        self.adapter_rows: AdapterRows | None = None
        self.model: Any = model
        self._cache_name = (
            "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else ("past_key_values")
        )

    @torch.inference_mode()
    def measure_memory(self, ids: list[int]) -> None:
        """Measures the memory of a sequence in passes over these tokens: `bytes_per_token` and `state_tokens`."""
        cache, single = self.new_cache(0), ids[len(ids) // 2 :]
        self._run_sequence(SequenceInput(cache, ids[: len(ids) // 2], 0))
        before = cache.num_bytes
        for token in single:
            self._run_sequence(SequenceInput(cache, [token], 0))
        grown = max(cache.num_bytes - before, 0) // len(single)
        fixed = cache.num_bytes - grown * len(ids)
        self.bytes_per_token = grown or -(-fixed // CONSTANT_CACHE_TOKENS)
        self.state_tokens = max(fixed, 0) // max(self.bytes_per_token, 1)

    def new_cache(self, expected: int) -> "SequentialCache":  # noqa: ARG002  transformers' caches take no hint
        """Returns the empty cache of a sequence."""
        cache = {}
        if self.model._supports_default_dynamic_cache():
            cache[self._cache_name] = DynamicCache(config=self.model.config)
        return SequentialCache({"use_cache": True, **cache}, self.state_tokens)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs one pass per sequence."""
        return torch.cat([self._run_sequence(item) for item in inputs])

    def _run_sequence(self, item: SequenceInput) -> Tensor:
        state, device = item.cache, self.model.device
        first = not state.ids
        state.ids += item.ids
        total = len(state.ids)
        kwargs = state.kwargs | {"attention_mask": torch.ones((1, total), dtype=torch.long, device=device)}
        inputs = self.model.prepare_inputs_for_generation(
            torch.tensor([state.ids], device=device),
            next_sequence_length=None if first else len(item.ids),
            is_first_iteration=first,
            position_ids=torch.arange(total, device=device)[None],
            **kwargs,
        )
        if self.adapter_rows is not None:
            self.adapter_rows.begin_sequence(item.adapter)
        try:
            outputs = self.model(**inputs, return_dict=True)
        finally:
            if self.adapter_rows is not None:
                self.adapter_rows.clear()
        state.kwargs = self.model._update_model_kwargs_for_generation(outputs, kwargs)
        logits: Tensor = outputs.logits[0]
        return logits[logits.shape[0] - item.num_logits :].float()
