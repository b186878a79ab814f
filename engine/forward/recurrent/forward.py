"""The packed forward pass of models with recurrent layers."""

from math import lcm
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.forward.adapter_rows import run_apart
from antiphon.engine.forward.attention import AttentionMetadata
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.recurrent.cache import MAX_SNAPSHOTS, RecurrentCache
from antiphon.engine.forward.recurrent.mixers import (
    CURRENT_PLAN,
    MixerPlan,
    MixerSpan,
    attach_mixers,
    detach_mixers,
    find_mixers,
    find_row_multiple,
    follow_shared_attention,
)
from antiphon.engine.forward.varlen import VarlenForward, split_points
from antiphon.engine.kernels.bindings import Kernels

MIXER_BLOCK_TOKENS = 64
"""Prompt tokens that a mixer processes at once.

The size of the block affects the last bits of its result; it must therefore be the same however a prompt is split over
steps. Scans compute chunks of this size.
"""


class RecurrentForward(VarlenForward):
    """Runs all sequences as one row; recurrent layers run on it as `forward.recurrent.mixers` describes.

    Sequences that decode one token in a step share one call of each recurrent layer, unless `make_deterministic`
    asks for blocks of one token: then each token has a call of its own. Caches are contiguous on every device.
    """

    supports_drafts = False

    def __init__(self, model: PreTrainedModel, windows: dict[int, int], kernels: Kernels | None = None) -> None:
        super().__init__(model, windows, None, kernels)
        mixers: list[Any] = find_mixers(model)
        self._mixers = mixers
        attach_mixers(mixers)
        follow_shared_attention(model)
        self._mixer_prefixes = tuple(f"{name}." for name, module in model.named_modules() if module in mixers)
        self.prompt_alignment = lcm(MIXER_BLOCK_TOKENS, *(mixer.forward.block_tokens or 1 for mixer in mixers))
        self._row_multiple = find_row_multiple(mixers) if model.device.type == "cpu" else 1
        self._one_sequence_state_tokens = 0
        self._treats_generated_apart = any(mixer.forward.treats_generated_apart for mixer in self._mixers)

    def detach(self) -> None:
        """Gives the model's recurrent layers back to transformers."""
        detach_mixers(self._mixers)

    @property
    def state_tokens(self) -> int:
        """Memory of the states and snapshots of a sequence in tokens; 0 before the first pass."""
        return self._one_sequence_state_tokens * (1 + MAX_SNAPSHOTS)

    def runs_in_parts(self, layer: str) -> bool:
        """Tells whether a linear layer belongs to a mixer. Its sequences have the same adapter; see `run`."""
        return layer.startswith(self._mixer_prefixes)

    def new_cache(self, expected: int) -> RecurrentCache:
        """Returns an empty cache for a sequence that is expected to hold `expected` tokens."""
        return RecurrentCache(expected, fp16=self._fp16_cache, state_tokens=self._one_sequence_state_tokens)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs one pass over all sequences, or one for each adapter: recurrent layers do not read whole rows."""
        if self.one_token_passes or all(item.adapter is None for item in inputs):
            return super().run(inputs)
        return run_apart(self.run_pass, inputs, by_adapter=True)

    def run_pass(self, inputs: list[SequenceInput]) -> Tensor:
        """Does the same as `run` for sequences with the same adapter, always in one pass."""
        for item in inputs:
            item.cache.block_bounds = split_points(
                item.cache.length, len(item.ids), item.num_generated, self.prompt_alignment
            )
            if item.num_generated and self._treats_generated_apart:
                item.cache.is_prompt_state = False
        measure = not self.bytes_per_token
        logits = super().run_pass(inputs)
        if measure and self.bytes_per_token:
            state_bytes = inputs[0].cache.states.bytes_per_sequence
            self._one_sequence_state_tokens = -(-state_bytes // self.bytes_per_token)
        return logits

    def _call_model(
        self, ids: Tensor, positions: Tensor, attn_metadata: AttentionMetadata, logit_indices: Tensor | None = None
    ) -> Tensor:
        spans = []
        for cache, blocks, _ in attn_metadata.spans:
            assert isinstance(cache, RecurrentCache)
            spans.append(MixerSpan(cache, blocks[0][0], blocks[-1][1] - blocks[0][0]))
        plan = MixerPlan(spans, batches_decoding=self.prompt_alignment > 1, multiple=self._row_multiple)
        token = CURRENT_PLAN.set(plan)
        try:
            return super()._call_model(ids, positions, attn_metadata, logit_indices)
        finally:
            CURRENT_PLAN.reset(token)
