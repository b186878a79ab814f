"""Selects the forward pass of a model: the fastest one that gives the right logits when tested on the loaded weights.

The logits of `antiphon.engine.forward.sequential.SequentialForward` are the reference.
"""

import logging
from collections.abc import Iterator

from transformers import PreTrainedModel

from antiphon.engine.cache.paged import PagePool
from antiphon.engine.errors import LoadError, one_line, refuse_out_of_memory
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.attention import ATTENTION_NAME
from antiphon.engine.forward.attention_variants.layer_variants import find_windows
from antiphon.engine.forward.attention_variants.long_rope import LongRopeForward
from antiphon.engine.forward.attention_variants.packing_limits import exceeds_rope_limit, explain_unpackable
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.recurrent.forward import RecurrentForward
from antiphon.engine.forward.recurrent.mixers import RECURRENT_LAYER_TYPES, has_recurrent_layers
from antiphon.engine.forward.recurrent.probe import REMAINDER_TOKENS, SHORT_TOKENS, probe_packed, probe_sequential
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.finite_logits import check_finite
from antiphon.engine.optimize.validation import ProbeTexts, Validation, describe_error, make_text, relative_error

log = logging.getLogger(__name__)

INTERLEAVING_TOLERANCE = 0.01
"""Largest relative error between the same passes in two orders. It holds in bf16, too: rounding does not differ."""

MEMORY_PROBE_TOKENS = 32
"""Tokens of the sequence whose cache is measured."""

PROBE_PAGES = 64
"""Number of pages for the tests on probe sequences."""


def select_forward(
    model: PreTrainedModel,
    *,
    paged: bool = False,
    kernels: Kernels | None = None,
    checked: str | None = None,
    context: int | None = None,
    validation: Validation | None = None,
) -> ForwardPass:
    """The varlen pass if it supports the model and its logits match the sequential pass, else the sequential pass.

    `paged` requests paged caches; they are used if the logits match with them too. The varlen pass may use
    `kernels`. `checked` is the class of the pass whose logits matched in an earlier start of the same model.
    `context` is the number of tokens to serve, None for the model's own.

    Validation reads the whole model several times. `validation` keeps what it finds for later checks. Raises
    `LoadError` if the model's logits are not finite, or if memory runs out.
    """
    sequential, validation = SequentialForward(model), validation or Validation(model)
    is_recurrent = has_recurrent_layers(model)
    rope_limit = exceeds_rope_limit(model.config.get_text_config(decoder=True), context)
    reason = explain_unpackable(model, RECURRENT_LAYER_TYPES if is_recurrent else set(), rope_limit)
    if reason is None and checked == VarlenForward.__name__ and not (paged or is_recurrent or rope_limit):
        set_text_attention(model, ATTENTION_NAME)
        return VarlenForward(model, _sliding_windows(model), None, kernels)
    if reason is None:
        original = model.config._attn_implementation
        try:
            packed, reason = (
                _try_recurrent(model, sequential, kernels)
                if is_recurrent
                else _try_varlen(model, sequential, kernels, validation, paged=paged, rope_limit=rope_limit)
            )
            if reason is None:
                return packed
        except LoadError:  # no pass can serve the model
            raise
        except Exception as failure:  # noqa: BLE001  after any failure, the sequential pass serves the model
            refuse_out_of_memory(failure)
            reason = one_line(failure)
        set_text_attention(model, original)
    report_fallback(
        log,
        "forward",
        "%s runs one sequence at a time: %s; parallel requests take turns, and each prompt is read whole",
        type(model).__name__,
        reason,
    )
    _limit_sequential(sequential, model, validation.texts)
    return sequential


def set_text_attention(model: PreTrainedModel, name: str) -> None:
    """Sets the attention of the text part by its name in transformers.

    Towers are not part of the model meanwhile. transformers would set theirs, too, with a warning for each.
    """
    text = model.config.get_text_config(decoder=True)
    parts = [key for key in model.config.sub_configs if getattr(model.config, key, None) is text]
    model.set_attn_implementation({"": name, **dict.fromkeys(parts, name)} if parts else name)


def _limit_sequential(sequential: SequentialForward, model: PreTrainedModel, texts: ProbeTexts) -> None:
    """Measures the memory of a sequence, and limits a pass whose sequences change each other to one at a time."""
    _measure_memory(sequential, model)
    mismatch = _interleaving_mismatch(sequential, texts, model)
    if mismatch is not None:
        sequential.max_num_seqs = 1
        report_fallback(
            log,
            "interleaving",
            "%s serves one request at a time: sequences that take turns change each other: %s",
            type(model).__name__,
            mismatch,
        )


def _try_varlen(
    model: PreTrainedModel,
    sequential: SequentialForward,
    kernels: Kernels | None,
    validation: Validation,
    *,
    paged: bool,
    rope_limit: int | None,
) -> tuple[VarlenForward, str | None]:
    """The packed pass of a model, and the reason why its logits are wrong; None if they match."""
    validation.texts.measure(sequential)
    set_text_attention(model, ATTENTION_NAME)
    if rope_limit is not None:
        long_rope = LongRopeForward(model, _sliding_windows(model), rope_limit, kernels)
        reason = validation.find_mismatch(long_rope)
        if reason is not None:
            long_rope.detach()
        return long_rope, reason
    for pages in _page_pools_to_try(model, paged=paged):
        varlen = VarlenForward(model, _sliding_windows(model), pages, kernels)
        reason = validation.find_mismatch(varlen)
        if reason is None:
            break
        if pages is not None:
            report_fallback(log, "paged_cache", "%s runs without a paged cache: %s", type(model).__name__, reason)
    return varlen, reason


def _try_recurrent(
    model: PreTrainedModel, sequential: SequentialForward, kernels: Kernels | None
) -> tuple[RecurrentForward, str | None]:
    """The packed pass of a model with recurrent layers, and the reason why its logits are wrong; None if they match."""
    recurrent = RecurrentForward(model, _sliding_windows(model), kernels)
    lengths = (recurrent.prompt_alignment + REMAINDER_TOKENS, SHORT_TOKENS)
    sequences = [make_text(model, base, length) for base, length in zip((3, 11), lengths, strict=True)]
    try:
        expected = probe_sequential(sequential, sequences)
        check_finite(expected, model)
        set_text_attention(model, ATTENTION_NAME)
        reason = describe_error(probe_packed(recurrent, sequences), expected, model)
    except LoadError:
        raise
    except Exception as failure:  # noqa: BLE001  the sequential pass is used instead
        refuse_out_of_memory(failure)
        reason = one_line(failure)
    if reason is not None:
        recurrent.detach()
    return recurrent, reason


def _measure_memory(sequential: SequentialForward, model: PreTrainedModel) -> None:
    """Measures the memory of a sequence, so that the number of tokens in progress is limited by it."""
    try:
        sequential.measure_memory(make_text(model, 7, MEMORY_PROBE_TOKENS))
    except Exception as failure:  # noqa: BLE001  the model may still serve
        message = "the memory of a sequence could not be measured: %s"
        report_fallback(log, "memory_probe", message, one_line(failure))


def _page_pools_to_try(model: PreTrainedModel, *, paged: bool) -> Iterator[PagePool | None]:
    """Yields a page pool if `paged` is set, then None for contiguous caches."""
    if paged:
        yield PagePool(model.config.get_text_config(decoder=True).num_hidden_layers, PROBE_PAGES)
    yield None


def _interleaving_mismatch(forward: SequentialForward, texts: ProbeTexts, model: PreTrainedModel) -> str | None:
    """Reason why two sequences that take turns do not get the logits that each gets alone; None if they do."""
    try:
        alone = texts.compute_in_turns(forward, interleaved=False)
        check_finite(alone, model)
        error = relative_error(texts.compute_in_turns(forward, interleaved=True), alone)
    except LoadError:
        raise
    except Exception as failure:  # noqa: BLE001  a model that fails here may still serve one request at a time
        refuse_out_of_memory(failure)
        return one_line(failure)
    return None if error <= INTERLEAVING_TOLERANCE else f"the logits differ by {error:.2g}"


def _sliding_windows(model: PreTrainedModel) -> dict[int, int]:
    return find_windows(model.config.get_text_config(decoder=True))
