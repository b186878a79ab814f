"""One forward pass over several sequences: token ids and caches in, rows of logits out.

Two ways, one face. :class:`PackedForward` runs all sequences in one pass through transformers' attention interface.
:class:`NativeForward` runs each sequence alone with transformers' own cache and is right for everything transformers
can generate with: recurrent states, chunked attention, rotary scaling that depends on the longest sequence.
:func:`choose_forward` takes the first where it is *proved* on the loaded model to give the second's logits.
"""

import inspect
import logging
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from engine.attention import NAME, Pack, Span
from engine.kv import KV

log = logging.getLogger(__name__)

PROBE = (7, 5)
"""Lengths in tokens of the two sequences on which the packed pass must prove itself."""


class Work(msgspec.Struct):
    """New tokens of one sequence: ``ids`` follow what ``state`` holds; logits are wanted for the last ``rows``.

    The last ``said`` of them are no prompt's: the model said them, or is thought to say them next.
    """

    state: Any
    ids: list[int]
    rows: int
    said: int = 0


class Forward(Protocol):
    """What the core needs of a model."""

    chunked: bool
    """Whether a prompt may be fed in pieces."""
    grain: int
    """Which end at multiples of so many tokens, or with the prompt."""

    def new_state(self, expected: int) -> Any:
        """The empty cache of a sequence that will probably hold ``expected`` tokens."""
        ...

    def run(self, work: list[Work]) -> Tensor:
        """Logits in fp32, (sum of rows, vocabulary), in the order of ``work``.

        After an exception the states of ``work`` are to be thrown away.
        """
        ...


class PackedForward:
    """All sequences in one row of tokens, without padding.

    ``exact``: attention is computed over blocks of ``grain`` tokens of a prompt, wherever a step cuts it, and over one
    token at a time of what was said. ``lonely``: each token is run on its own, so that even linear layers whose rows
    depend on each other give it the same numbers always; slow. :meth:`determine` chooses what is needed.
    """

    chunked = True
    grain = 1

    def __init__(self, model: PreTrainedModel, windows: dict[int, int]) -> None:
        self._model = model
        self._windows = windows
        self.exact = self.lonely = False
        self.bytes_per_token = 0
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_state(self, expected: int) -> KV:
        """An empty cache."""
        return KV(expected)

    def determine(self, *, independent: bool, grain: int = 1) -> None:
        """From now on a token's logits depend on its own text only, not on how it was cut or who else runs.

        ``independent``: whether the model's linear layers treat each row as if it were alone. With a ``grain`` they do
        depend on which tokens were a prompt's, and prompts must be cut at multiples of it.
        """
        self.exact, self.lonely, self.grain = independent, not independent, grain

    def run(self, work: list[Work]) -> Tensor:
        """One pass for all; a sequence's cache grows only if the pass succeeds."""
        if not self.lonely:
            return self._pass(work)
        tokens = [
            Work(item.state, [token], int(place >= len(item.ids) - item.rows))
            for item in work
            for place, token in enumerate(item.ids)
        ]
        return torch.cat([self._pass([token]) for token in tokens])

    def _pass(self, work: list[Work]) -> Tensor:
        spans: list[Span] = []
        ids: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        for item in work:
            first, start = len(ids), item.state.length
            ids += item.ids
            bounds = cuts(start, len(item.ids), item.said, self.grain) if self.exact else [0, len(item.ids)]
            spans.append(Span(item.state, list(pairwise(first + bound for bound in bounds))))
            positions += range(start, start + len(item.ids))
            kept += range(len(ids) - item.rows, len(ids))
        device = self._model.device
        chosen = torch.tensor(kept, dtype=torch.long, device=device)
        logits = self._model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            pack=Pack(spans, self._windows),
            **({"logits_to_keep": chosen} if self._selects else {}),
        ).logits[0]
        for item in work:
            item.state.commit(len(item.ids))
        self.bytes_per_token = work[0].state.bytes_per_token
        rows: Tensor = logits if self._selects else logits[chosen]
        return rows.float()


def cuts(start: int, length: int, said: int, grain: int) -> list[int]:
    """Where blocks begin and end among ``length`` tokens, the first of which stands at ``start`` in its text.

    The prompt's are cut at multiples of ``grain`` in the text, the last ``said`` from each other.
    """
    prompt = length - said
    inner = range(grain - start % grain, prompt, grain)
    return [0, *inner, *range(max(prompt, 1), length + 1)]


class NativeForward:
    """Each sequence alone, with the cache and the inputs that transformers' own ``generate`` would use."""

    chunked = False
    grain = 1

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cache_name = (
            "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else ("past_key_values")
        )

    def new_state(self, expected: int) -> dict[str, Any]:  # noqa: ARG002  transformers' caches take no hint
        """The ids so far and the keywords that ``generate`` would carry from step to step."""
        cache = {}
        if self._model._supports_default_dynamic_cache():
            cache[self._cache_name] = DynamicCache(config=self._model.config)
        return {"ids": [], "kwargs": {"use_cache": True, **cache}}

    def run(self, work: list[Work]) -> Tensor:
        """One pass for each."""
        return torch.cat([self._one(item) for item in work])

    def _one(self, item: Work) -> Tensor:
        state, device = item.state, self._model.device
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
        return logits[logits.shape[0] - item.rows :].float()


def choose_forward(model: PreTrainedModel) -> Forward:
    """The packed pass if it can serve this model and its logits equal the native ones, else the native pass."""
    native = NativeForward(model)
    reason = _obstacle(model)
    if reason is None:
        original = model.config._attn_implementation
        try:
            truth = _probe(native, model, pieces=False)
            model.set_attn_implementation(NAME)
            packed = PackedForward(model, _windows(model))
            error = _distance(_probe(packed, model, pieces=True), truth)
            if error <= (0.01 if model.dtype == torch.float32 else 0.1):
                return packed
            reason = f"its logits differ by {error:.2g}"
        except Exception as failure:  # noqa: BLE001  whatever happens here, the native pass still serves the model
            reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        model.set_attn_implementation(original)
    log.warning("%s runs one sequence at a time: %s", type(model).__name__, reason)
    return native


def _obstacle(model: PreTrainedModel) -> str | None:
    """Why the packed pass cannot be right for this architecture, if that is plain from its configuration."""
    config = model.config.get_text_config(decoder=True)
    if not model._can_set_attn_implementation():
        return "the architecture does not use the attention interface"
    odd = set(get_layer_types_and_kwargs(config)[0]) - {"full_attention", "sliding_attention"}
    if odd:
        return f"layers of type {', '.join(sorted(odd))}"
    scaled = _rope_types(getattr(config, "rope_parameters", None)) & {"dynamic", "longrope"}
    if scaled:
        return f"rotary scaling of type {', '.join(sorted(scaled))} depends on the longest sequence"
    return None


def _rope_types(parameters: Any) -> set[str]:
    if not isinstance(parameters, dict):
        return set()
    nested = [_rope_types(value) for value in parameters.values()]
    own = parameters.get("rope_type")
    return set().union({own} if isinstance(own, str) else set(), *nested)


def _windows(model: PreTrainedModel) -> dict[int, int]:
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    return {
        layer: int(options[layer]["sliding_window"]) for layer, kind in enumerate(kinds) if kind == "sliding_attention"
    }


@torch.inference_mode()
def sample(forward: Forward, model: PreTrainedModel, length: int = 64) -> Tensor:
    """Logits (length, vocabulary) of a fixed text that means nothing."""
    ids = _ids(model, 5, length)
    return forward.run([Work(forward.new_state(length), ids, length)])


def _ids(model: PreTrainedModel, base: int, length: int) -> list[int]:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return [(base + 17 * n) % vocabulary for n in range(length)]


@torch.inference_mode()
def _probe(forward: Forward, model: PreTrainedModel, *, pieces: bool) -> Tensor:
    """The last logits of two short sequences; ``pieces``: fed together, cut, each beginning at another step."""
    one, two = (_ids(model, base, length) for base, length in zip((3, 11), PROBE, strict=True))
    if not pieces:
        return torch.cat([forward.run([Work(forward.new_state(0), ids, 1)]) for ids in (one, two)])
    a, b = forward.new_state(0), forward.new_state(0)
    forward.run([Work(a, one[:4], 0)])
    forward.run([Work(a, one[4:6], 0), Work(b, two[:-1], 0)])
    return forward.run([Work(a, one[6:], 1), Work(b, two[-1:], 1)])


def _distance(logits: Tensor, truth: Tensor) -> float:
    """The relative error, by rows centred on their mean, so that a constant offset counts for nothing."""
    centred = truth - truth.mean(-1, keepdim=True)
    return float((logits - truth).norm() / centred.norm().clamp_min(1e-12))
