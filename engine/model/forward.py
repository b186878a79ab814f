"""One forward pass over several sequences: token ids and caches in, rows of logits out.

Two ways, one face. :class:`engine.model.varlen.PackedForward` runs all sequences in one pass through transformers'
attention interface. :class:`NativeForward` runs each sequence alone with transformers' own cache and is right for
everything transformers can generate with: recurrent states, chunked attention, rotary scaling that depends on the
longest sequence. :mod:`engine.model.select` chooses.
"""

import inspect
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class SequenceInput(msgspec.Struct):
    """New tokens of one sequence: ``ids`` follow what ``state`` holds; logits are wanted for the last ``rows``.

    The last ``said`` of them are no prompt's: the model said them, or is thought to say them next.
    """

    cache: Any
    ids: list[int]
    num_logits: int
    num_generated: int = 0


class ForwardPass(Protocol):
    """What the core needs of a model."""

    supports_chunked_prefill: bool
    """Whether a prompt may be fed in pieces."""
    prompt_alignment: int
    """Which end at multiples of so many tokens, or with the prompt."""

    @property
    def is_paged(self) -> bool:
        """Whether caches are paged."""
        ...

    def new_cache(self, expected: int) -> Any:
        """The empty cache of a sequence that will probably hold ``expected`` tokens."""
        ...

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Logits in fp32, (sum of rows, vocabulary), in the order of ``work``.

        After an exception the states of ``work`` are to be thrown away.
        """
        ...


class SequentialForward:
    """Each sequence alone, with the cache and the inputs that transformers' own ``generate`` would use."""

    supports_chunked_prefill = False
    prompt_alignment = 1
    is_paged = False

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cache_name = (
            "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else ("past_key_values")
        )

    def new_cache(self, expected: int) -> dict[str, Any]:  # noqa: ARG002  transformers' caches take no hint
        """The ids so far and the keywords that ``generate`` would carry from step to step."""
        cache = {}
        if self._model._supports_default_dynamic_cache():
            cache[self._cache_name] = DynamicCache(config=self._model.config)
        return {"ids": [], "kwargs": {"use_cache": True, **cache}}

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """One pass for each."""
        return torch.cat([self._run_sequence(item) for item in inputs])

    def _run_sequence(self, item: SequenceInput) -> Tensor:
        state, device = item.cache, self._model.device
        first = not state["ids"]
        state["ids"] += item.ids
        total = len(state["ids"])
        kwargs = state["kwargs"] | {"attention_mask": torch.ones((1, total), dtype=torch.long, device=device)}
        inputs = self._model.prepare_inputs_for_generation(
            torch.tensor([state["ids"]], device=device),
            next_sequence_length=None if first else len(item.ids),
            is_first_iteration=first,
            position_ids=torch.arange(total, device=device)[None],
            **kwargs,
        )
        outputs = self._model(**inputs, return_dict=True)
        state["kwargs"] = self._model._update_model_kwargs_for_generation(outputs, kwargs)
        logits: Tensor = outputs.logits[0]
        return logits[logits.shape[0] - item.num_logits :].float()
