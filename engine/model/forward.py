"""Forward pass over several sequences: token ids and caches in, rows of logits out.

There are two implementations. :class:`antiphon.engine.model.varlen.VarlenForward` runs all sequences in one pass
through transformers' attention interface. :class:`SequentialForward` runs each sequence alone with transformers' own
cache; it is correct for every model that transformers can generate with: recurrent states, chunked attention, rotary
scaling that depends on the longest sequence. :mod:`antiphon.engine.model.select` chooses one.
"""

import inspect
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

if TYPE_CHECKING:
    from antiphon.engine.adapters.adapter import LoadedAdapter
    from antiphon.engine.adapters.rows import AdapterRows


class SequenceInput(msgspec.Struct):
    """New tokens of one sequence: ``ids`` follow the tokens in ``cache``; the last ``num_logits`` of them need logits.

    The last ``num_generated`` ids are generated or draft tokens, not prompt tokens.
    """

    cache: Any
    ids: list[int]
    num_logits: int
    num_generated: int = 0
    adapter: "LoadedAdapter | None" = None


class ForwardPass(Protocol):
    """Interface of a model to the core."""

    supports_chunked_prefill: bool
    """True if a prompt may be split over several passes."""
    prompt_alignment: int
    """Number of tokens at multiples of which a prompt may be split."""
    max_num_seqs: int | None
    """Maximum number of sequences in progress at once; None without a limit."""

    @property
    def is_paged(self) -> bool:
        """True if caches are paged."""
        ...

    def new_cache(self, expected: int) -> Any:
        """Returns an empty cache for a sequence that is expected to hold ``expected`` tokens."""
        ...

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Returns logits in fp32, (sum of ``num_logits``, vocabulary), in the order of ``inputs``.

        After an exception the caches of ``inputs`` must be discarded.
        """
        ...


class SequentialForward:
    """Runs each sequence alone, with the cache and the inputs that transformers' own ``generate`` would use.

    ``max_num_seqs`` is 1 for a model that keeps the state of a sequence in its modules instead of the cache: another
    sequence would read that state. The state lasts until the next sequence begins.
    """

    supports_chunked_prefill = False
    prompt_alignment = 1
    is_paged = False

    def __init__(self, model: PreTrainedModel, max_num_seqs: int | None = None) -> None:
        self.max_num_seqs = max_num_seqs
        self.adapter_rows: AdapterRows | None = None
        self._model: Any = model
        self._cache_name = (
            "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else ("past_key_values")
        )

    def new_cache(self, expected: int) -> dict[str, Any]:  # noqa: ARG002  transformers' caches take no hint
        """Returns the state of a sequence: its ids, and the keywords that ``generate`` passes from step to step."""
        cache = {}
        if self._model._supports_default_dynamic_cache():
            cache[self._cache_name] = DynamicCache(config=self._model.config)
        return {"ids": [], "kwargs": {"use_cache": True, **cache}}

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs one pass per sequence."""
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
        if self.adapter_rows is not None:
            self.adapter_rows.begin_sequence(item.adapter)
        try:
            outputs = self._model(**inputs, return_dict=True)
        finally:
            if self.adapter_rows is not None:
                self.adapter_rows.clear()
        state["kwargs"] = self._model._update_model_kwargs_for_generation(outputs, kwargs)
        logits: Tensor = outputs.logits[0]
        return logits[logits.shape[0] - item.num_logits :].float()
