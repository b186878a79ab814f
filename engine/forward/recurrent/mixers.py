"""Recurrent layers of a model ("mixers"), called for each sequence of a packed row with the states of that sequence.

A mixer of transformers takes hidden states (batch, tokens, width) and a cache. `attach_mixers` replaces its
`forward`: during a packed pass, the row (1, tokens, width) is split into its sequences. Those that read one token
after others form a batch (n, 1, width) with stacked states; the others run alone, block by block.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from math import gcd, inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphon.engine.forward.recurrent.cache import RecurrentCache, join_states
from antiphon.engine.forward.recurrent.lightning import begin_with_state
from antiphon.engine.forward.recurrent.selective_scan import carry_scan_state, set_scan_state
from antiphon.engine.forward.recurrent.states import StateBatch, StateView

STATE_METHODS = frozenset(name for name in vars(StateView) if name.startswith(("get_", "set_", "update_")))
"""Methods of caches that only recurrent layers call."""

RECURRENT_LAYER_TYPES = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "dummy"}
"""Types of layers, as transformers' caches name them, that models with mixers have besides attention."""

CACHE_PARAMETERS = ("cache_params", "past_key_values")
"""Names that mixers give to the parameter for the cache."""

VECTORIZED_ELEMENTS = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16
"""Number of fp32 elements that torch computes at once on this CPU. It computes a rest one by one, with other bits."""

SHARED_LAYER_INDICES = (-1, None)
"""Layer indices of modules that several layers share."""

MAX_SCAN_TOKENS = 64
"""Maximum number of tokens that a scan computes at once. Shorter prompts are padded to it; work grows with its square.
"""


class MixerSpan(NamedTuple):
    """The tokens of one sequence in the row, `num_tokens` of them from index `first`."""

    cache: RecurrentCache
    first: int
    num_tokens: int


class MixerPlan:
    """Splits the row of a pass for mixers: sequences of one token as a `batch`, the others one by one (`spans`).

    `rows` are the indices of the batch's tokens in the row. A sequence's first token is not batched, because it has
    no states yet. The batch is padded to `multiple` sequences.
    """

    def __init__(self, spans: list[MixerSpan], *, batches_decoding: bool, multiple: int = 1) -> None:
        decoding = [span for span in spans if batches_decoding and span.num_tokens == 1 and span.cache.length > 0]
        self.spans = [span for span in spans if span not in decoding]
        self.rows = [span.first for span in decoding]
        self.batch = join_states([span.cache for span in decoding], multiple) if decoding else None


CURRENT_PLAN: ContextVar[MixerPlan] = ContextVar("CURRENT_PLAN")
"""Plan of the packed pass that runs now. Without one, mixers run as transformers calls them."""


class PackedMixer:
    """The `forward` of a mixer in packed passes."""

    def __init__(self, mixer: Any) -> None:
        self._forward: Callable[..., Any] = mixer.forward
        self._layer = int(mixer.layer_idx)
        self._parameters = list(inspect.signature(mixer.forward).parameters)
        self._cache_name = next(name for name in CACHE_PARAMETERS if name in self._parameters)
        self._no_masks = {name: None for name in self._parameters if name.endswith("mask")}
        self._needs_scan_state = carry_scan_state(mixer)
        self._chunk_size = getattr(mixer, "chunk_size", None)
        if isinstance(self._chunk_size, int):
            mixer.chunk_size = min(self._chunk_size, MAX_SCAN_TOKENS)

        self.num_heads = getattr(mixer, "num_v_heads", VECTORIZED_ELEMENTS)
        """Number of values per token in the smallest activations, those of the gates of each head."""
        self.block_tokens = int(getattr(mixer, "block_size", 0))
        """Tokens of the blocks in which lightning attention computes prompts; 0 for other mixers."""
        limits = getattr(mixer, "time_step_limit", None) or (0.0, inf)
        self.treats_generated_apart = tuple(limits) != (0.0, inf) or self.block_tokens > 0
        """True if the states of generated tokens are not those of the same tokens in a prompt.

        Mamba's own kernels limit the time steps of prompts only. For lightning attention see `begin_with_state`.
        """

    def restore(self, mixer: Any) -> None:
        """Gives the mixer its own `forward` back."""
        del mixer.forward
        if isinstance(self._chunk_size, int):
            mixer.chunk_size = self._chunk_size

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Runs the mixer on the row (1, tokens, width). Returns what it returns, without what is not per token."""
        plan = CURRENT_PLAN.get(None)
        if plan is None:
            return self._forward(hidden_states, *args, **kwargs)
        kwargs |= dict(zip(self._parameters[1:], args, strict=False)) | self._no_masks
        kwargs.pop("attn_metadata", None)  # not for the kernels to which mixers pass their keywords
        pieces: list[tuple[int, Any]] = []
        if plan.batch is not None:
            rows = plan.rows + plan.rows[:1] * (plan.batch.size - len(plan.rows))
            tokens = hidden_states[0].index_select(0, torch.tensor(rows, device=hidden_states.device))
            result = self._call(tokens[:, None], plan.batch, kwargs)
            pieces += ((row, _take_sequence(result, number)) for number, row in enumerate(plan.rows))
        for span in plan.spans:
            states = span.cache.own_states()
            for start, stop in pairwise(span.cache.block_bounds):
                first = span.first + start
                result = self._call(hidden_states[:, first : span.first + stop], states, kwargs)
                span.cache.take_snapshot(self._layer, span.cache.length + stop)
                pieces.append((first, result))
        return _join_pieces([piece for _, piece in sorted(pieces, key=lambda piece: piece[0])])

    def _call(self, tokens: Tensor, states: StateBatch, kwargs: dict[str, Any]) -> Any:
        """Result of the mixer for tokens (size, n, width); tensors that are not (size, n, …) become None."""
        view, scan_state, linear_state = StateView(states), None, None
        if tokens.shape[1] > 1:
            scan_state = view.get_recurrent_state(self._layer) if self._needs_scan_state else None
            linear_state = view.hide_linear_cache(self._layer)
        with set_scan_state(scan_state), begin_with_state(linear_state):
            result = self._forward(tokens, **kwargs | {self._cache_name: view})
        if not isinstance(result, tuple):
            return result
        return tuple(part if part is not None and part.shape[:2] == tokens.shape[:2] else None for part in result)


def _take_sequence(result: Any, number: int) -> Any:
    """The part of a sequence of a batch, (1, n, …)."""
    if isinstance(result, tuple):
        return tuple(_take_sequence(part, number) for part in result)
    return None if result is None else result[number : number + 1]


def _join_pieces(pieces: list[Any]) -> Any:
    """Joins the results of parts of the row, in order."""
    if isinstance(pieces[0], tuple):
        return tuple(_join_pieces(list(parts)) for parts in zip(*pieces, strict=True))
    return None if pieces[0] is None else torch.cat(pieces, dim=1)


def find_mixers(model: nn.Module) -> list[nn.Module]:
    """Returns the innermost modules that read or write recurrent states of a cache."""
    return [module for module in model.modules() if hasattr(module, "layer_idx") and _uses_states(module)]


def find_row_multiple(mixers: list[Any]) -> int:
    """Returns the smallest multiple of sequences whose activations torch computes with vectors only.

    Example: 16 gates per token are half of what torch computes at once with AVX-512, so that batches have an even size.
    """
    return max(
        (VECTORIZED_ELEMENTS // gcd(mixer.forward.num_heads, VECTORIZED_ELEMENTS) for mixer in mixers), default=1
    )


def has_recurrent_layers(model: nn.Module) -> bool:
    """Tells whether the model has mixers."""
    return bool(find_mixers(model))


def attach_mixers(mixers: list[nn.Module]) -> None:
    """Makes mixers read the packed row in packed passes; other passes do not change, except for their rounding."""
    for mixer in mixers:
        mixer.forward = PackedMixer(mixer)


def detach_mixers(mixers: list[nn.Module]) -> None:
    """Undoes `attach_mixers`."""
    for mixer in mixers:
        if isinstance(mixer.forward, PackedMixer):
            mixer.forward.restore(mixer)


def follow_shared_attention(model: nn.Module) -> None:
    """Makes attention modules that several layers share know the layer that calls them (Zamba).

    Each layer has keys and values of its own, while `layer_idx` of a shared module is that of no layer.
    """
    for module in model.modules():
        if getattr(module, "layer_idx", 0) in SHARED_LAYER_INDICES:
            module.register_forward_pre_hook(_set_layer_index, with_kwargs=True)


def _set_layer_index(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    if "layer_idx" in kwargs:
        module.layer_idx = kwargs["layer_idx"]


def _uses_states(module: nn.Module) -> bool:
    if isinstance(module.forward, PackedMixer):
        return True
    forward: Any = inspect.unwrap(type(module).forward)
    names = set(getattr(getattr(forward, "__code__", None), "co_names", ()))
    return bool(names & STATE_METHODS) and any(
        name in inspect.signature(module.forward).parameters for name in CACHE_PARAMETERS
    )
