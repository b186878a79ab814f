"""Which forward pass serves a model: the fastest one that is *proved* on the loaded weights to give the right logits.

What is right is what :class:`engine.model.forward.NativeForward` says.
"""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from antiphon.engine.cache.paged import PagePool
from antiphon.engine.errors import one_line
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.attention import ATTENTION_NAME
from antiphon.engine.model.forward import ForwardPass, SequenceInput, SequentialForward
from antiphon.engine.model.varlen import VarlenForward

log = logging.getLogger(__name__)

PROBE_LENGTHS_TOKENS = (23, 18)
"""Lengths in tokens of the two sequences on which the packed pass must prove itself: more than a page."""

PROBE_PAGES = 64
"""Pages that are enough for trials."""


def select_forward(model: PreTrainedModel, *, paged: bool = False, kernels: Kernels | None = None) -> ForwardPass:
    """The packed pass if it can serve this model and its logits equal the native ones, else the native pass.

    ``paged``: its caches in pages, if that gives the same logits, too. ``kernels`` are those it may use.
    """
    native = SequentialForward(model)
    reason = _unsupported_reason(model)
    if reason is None:
        original = model.config._attn_implementation
        try:
            truth = _probe_logits(native, model, pieces=False)
            model.set_attn_implementation(ATTENTION_NAME)
            for pages in _page_pools_to_try(model, paged=paged):
                packed = VarlenForward(model, _sliding_windows(model), pages, kernels)
                reason = _mismatch(packed, model, truth)
                if reason is None:
                    return packed
                if pages is not None:
                    log.warning("%s has no paged cache: %s", type(model).__name__, reason)
        except Exception as failure:  # noqa: BLE001  whatever happens here, the native pass still serves the model
            reason = one_line(failure)
        model.set_attn_implementation(original)
    log.warning("%s runs one sequence at a time: %s", type(model).__name__, reason)
    return native


def _page_pools_to_try(model: PreTrainedModel, *, paged: bool) -> Iterator[PagePool | None]:
    """Ways to keep a cache, the best first."""
    if paged:
        yield PagePool(model.config.get_text_config(decoder=True).num_hidden_layers, PROBE_PAGES)
    yield None


def _mismatch(packed: VarlenForward, model: PreTrainedModel, truth: Tensor) -> str | None:
    """Why this pass is not right; None if it is."""
    try:
        error = _relative_error(_probe_logits(packed, model, pieces=True), truth)
    except Exception as failure:  # noqa: BLE001  there are others
        return one_line(failure)
    return None if error <= (0.01 if model.dtype == torch.float32 else 0.1) else f"its logits differ by {error:.2g}"


def _unsupported_reason(model: PreTrainedModel) -> str | None:
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


def _sliding_windows(model: PreTrainedModel) -> dict[int, int]:
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    return {
        layer: int(options[layer]["sliding_window"]) for layer, kind in enumerate(kinds) if kind == "sliding_attention"
    }


@torch.inference_mode()
def reference_logits(forward: ForwardPass, model: PreTrainedModel, length: int = 64) -> Tensor:
    """Logits (length, vocabulary) of a fixed text that means nothing."""
    ids = _probe_ids(model, 5, length)
    return forward.run([SequenceInput(forward.new_cache(length), ids, length)])


def _probe_ids(model: PreTrainedModel, base: int, length: int) -> list[int]:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return [(base + 17 * n) % vocabulary for n in range(length)]


@torch.inference_mode()
def _probe_logits(forward: ForwardPass, model: PreTrainedModel, *, pieces: bool) -> Tensor:
    """The last logits of two short sequences; ``pieces``: fed together, cut, each beginning at another step."""
    one, two = (_probe_ids(model, base, length) for base, length in zip((3, 11), PROBE_LENGTHS_TOKENS, strict=True))
    if not pieces:
        return torch.cat([forward.run([SequenceInput(forward.new_cache(0), ids, 1)]) for ids in (one, two)])
    a, b = forward.new_cache(0), forward.new_cache(0)
    forward.run([SequenceInput(a, one[:4], 0)])
    forward.run([SequenceInput(a, one[4:-2], 0), SequenceInput(b, two[:-2], 0)])
    forward.run([SequenceInput(a, one[-2:-1], 0), SequenceInput(b, two[-2:-1], 0)])
    return forward.run([SequenceInput(a, one[-1:], 1), SequenceInput(b, two[-1:], 1)])


def _relative_error(logits: Tensor, truth: Tensor) -> float:
    """The relative error, by rows centred on their mean, so that a constant offset counts for nothing."""
    centred = truth - truth.mean(-1, keepdim=True)
    return float((logits - truth).norm() / centred.norm().clamp_min(1e-12))
