"""Selects the forward pass of a model: the fastest one that gives the right logits when tested on the loaded weights.

The logits of :class:`antiphon.engine.model.forward.SequentialForward` are the reference.
"""

import logging
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.cache.paged import PagePool
from antiphon.engine.errors import one_line
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.attention import ATTENTION_NAME
from antiphon.engine.model.forward import ForwardPass, SequenceInput, SequentialForward
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.recurrent.forward import RecurrentForward
from antiphon.engine.recurrent.mixers import RECURRENT_LAYER_TYPES, has_recurrent_layers
from antiphon.engine.recurrent.probe import REMAINDER_TOKENS, SHORT_TOKENS, probe_packed, probe_sequential
from antiphon.engine.variants.layer_variants import find_windows
from antiphon.engine.variants.long_rope import LongRopeForward
from antiphon.engine.variants.packing_limits import exceeds_rope_limit, explain_unpackable

log = logging.getLogger(__name__)

PROBE_LENGTHS_TOKENS = (23, 18)
"""Lengths in tokens of the two sequences on which the varlen pass is tested: more than a page each."""

INTERLEAVING_TOLERANCE = 0.01
"""Largest relative error between the same passes in two orders. It holds in bf16, too: rounding does not differ."""

MEMORY_PROBE_TOKENS = 32
"""Tokens of the sequence whose cache is measured."""

PROBE_PAGES = 64
"""Number of pages for the tests on probe sequences."""


REFERENCE_TOKENS, REFERENCE_PART_TOKENS = 64, 8
"""Tokens of the text whose logits are compared, and those of a pass if memory matters."""


def select_forward(
    model: PreTrainedModel,
    *,
    paged: bool = False,
    kernels: Kernels | None = None,
    checked: str | None = None,
    context: int | None = None,
) -> ForwardPass:
    """The varlen pass if it supports the model and its logits match the sequential pass, else the sequential pass.

    ``paged`` requests paged caches; they are used if the logits match with them too. The varlen pass may use
    ``kernels``. ``checked`` is the class of the pass whose logits matched in an earlier start of the same model.
    ``context`` is the number of tokens to serve, None for the model's own.
    """
    sequential = SequentialForward(model)
    is_recurrent = has_recurrent_layers(model)
    rope_limit = exceeds_rope_limit(model.config.get_text_config(decoder=True), context)
    reason = explain_unpackable(model, RECURRENT_LAYER_TYPES if is_recurrent else set(), rope_limit)
    if reason is None and checked == VarlenForward.__name__ and not (paged or is_recurrent or rope_limit):
        model.set_attn_implementation(ATTENTION_NAME)
        return VarlenForward(model, _sliding_windows(model), None, kernels)
    if reason is None:
        original = model.config._attn_implementation
        try:
            packed, reason = (
                _try_recurrent(model, sequential, kernels)
                if is_recurrent
                else _try_varlen(model, sequential, kernels, paged=paged, rope_limit=rope_limit)
            )
            if reason is None:
                return packed
        except Exception as failure:  # noqa: BLE001  after any failure, the sequential pass serves the model
            reason = one_line(failure)
        model.set_attn_implementation(original)
    log.warning(
        "%s runs one sequence at a time: %s; parallel requests take turns, and each prompt is read whole",
        type(model).__name__,
        reason,
    )
    _measure_memory(sequential, model)
    mismatch = _interleaving_mismatch(sequential, model)
    if mismatch is not None:
        sequential.max_num_seqs = 1
        log.warning(
            "%s serves one request at a time: sequences that take turns change each other: %s",
            type(model).__name__,
            mismatch,
        )
    return sequential


def _try_varlen(
    model: PreTrainedModel,
    sequential: SequentialForward,
    kernels: Kernels | None,
    *,
    paged: bool,
    rope_limit: int | None,
) -> tuple[VarlenForward, str | None]:
    """The packed pass of a model, and the reason why its logits are wrong; None if they match."""
    expected = _probe_logits(sequential, model, pieces=False)
    model.set_attn_implementation(ATTENTION_NAME)
    if rope_limit is not None:
        long_rope = LongRopeForward(model, _sliding_windows(model), rope_limit, kernels)
        reason = _mismatch(long_rope, model, expected)
        if reason is not None:
            long_rope.detach()
        return long_rope, reason
    for pages in _page_pools_to_try(model, paged=paged):
        varlen = VarlenForward(model, _sliding_windows(model), pages, kernels)
        reason = _mismatch(varlen, model, expected)
        if reason is None:
            break
        if pages is not None:
            log.warning("%s runs without a paged cache: %s", type(model).__name__, reason)
    return varlen, reason


def _try_recurrent(
    model: PreTrainedModel, sequential: SequentialForward, kernels: Kernels | None
) -> tuple[RecurrentForward, str | None]:
    """The packed pass of a model with recurrent layers, and the reason why its logits are wrong; None if they match."""
    recurrent = RecurrentForward(model, _sliding_windows(model), kernels)
    lengths = (recurrent.prompt_alignment + REMAINDER_TOKENS, SHORT_TOKENS)
    sequences = [_probe_ids(model, base, length) for base, length in zip((3, 11), lengths, strict=True)]
    try:
        expected = probe_sequential(sequential, sequences)
        model.set_attn_implementation(ATTENTION_NAME)
        reason = _describe_error(probe_packed(recurrent, sequences), expected, model)
    except Exception as failure:  # noqa: BLE001  the sequential pass is used instead
        reason = one_line(failure)
    if reason is not None:
        recurrent.detach()
    return recurrent, reason


def _measure_memory(sequential: SequentialForward, model: PreTrainedModel) -> None:
    """Measures the memory of a sequence, so that the number of tokens in progress is limited by it."""
    try:
        sequential.measure_memory(_probe_ids(model, 7, MEMORY_PROBE_TOKENS))
    except Exception as failure:  # noqa: BLE001  the model may still serve
        log.warning("the memory of a sequence could not be measured: %s", one_line(failure))


def _page_pools_to_try(model: PreTrainedModel, *, paged: bool) -> Iterator[PagePool | None]:
    """Yields a page pool if ``paged`` is set, then None for contiguous caches."""
    if paged:
        yield PagePool(model.config.get_text_config(decoder=True).num_hidden_layers, PROBE_PAGES)
    yield None


def _mismatch(forward: VarlenForward, model: PreTrainedModel, expected: Tensor) -> str | None:
    """Reason why the logits of this pass are wrong; None if they match."""
    try:
        return _describe_error(_probe_logits(forward, model, pieces=True), expected, model)
    except Exception as failure:  # noqa: BLE001  another pass is used instead
        return one_line(failure)


def _describe_error(logits: Tensor, expected: Tensor, model: PreTrainedModel) -> str | None:
    """Reason why the logits of a pass are wrong; None if they match."""
    error = _relative_error(logits, expected)
    tolerance = 0.01 if model.dtype == torch.float32 else 0.1
    return None if error <= tolerance else f"its logits differ by {error:.2g} from the sequential pass"


def _interleaving_mismatch(forward: SequentialForward, model: PreTrainedModel) -> str | None:
    """Reason why two sequences that take turns do not get the logits that each gets alone; None if they do."""
    try:
        alone = _probe_sequential_logits(forward, model, interleaved=False)
        error = _relative_error(_probe_sequential_logits(forward, model, interleaved=True), alone)
    except Exception as failure:  # noqa: BLE001  a model that fails here may still serve one request at a time
        return one_line(failure)
    return None if error <= INTERLEAVING_TOLERANCE else f"the logits differ by {error:.2g}"


def _sliding_windows(model: PreTrainedModel) -> dict[int, int]:
    return find_windows(model.config.get_text_config(decoder=True))


@torch.inference_mode()
def reference_logits(forward: ForwardPass, model: PreTrainedModel, length: int = REFERENCE_TOKENS) -> Tensor:
    """Logits (length, vocabulary) of a fixed sequence of arbitrary tokens.

    The last two tokens run in passes of their own, because some models compute a single token in another way.
    """
    ids, cache = _probe_ids(model, 5, length), forward.new_cache(length)
    parts = (ids[:-2], ids[-2:-1], ids[-1:])
    return torch.cat([forward.run([SequenceInput(cache, part, len(part))]) for part in parts])


@torch.inference_mode()
def reference_rows(forward: ForwardPass, model: PreTrainedModel) -> Iterator[Tensor]:
    """Yields the rows of :func:`reference_logits`, of which it holds few at a time. Takes more passes."""
    ids, cache = _probe_ids(model, 5, REFERENCE_TOKENS), forward.new_cache(REFERENCE_TOKENS)
    starts = [*range(0, REFERENCE_TOKENS - 2, REFERENCE_PART_TOKENS), REFERENCE_TOKENS - 2, REFERENCE_TOKENS - 1]
    for first, end in pairwise((*starts, REFERENCE_TOKENS)):
        yield from forward.run([SequenceInput(cache, ids[first:end], end - first)])


def _probe_ids(model: PreTrainedModel, base: int, length: int) -> list[int]:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return [(base + 17 * n) % vocabulary for n in range(length)]


def _probe_sequences(model: PreTrainedModel) -> list[list[int]]:
    return [_probe_ids(model, base, length) for base, length in zip((3, 11), PROBE_LENGTHS_TOKENS, strict=True)]


@torch.inference_mode()
def _probe_logits(forward: ForwardPass, model: PreTrainedModel, *, pieces: bool) -> Tensor:
    """Logits of the last tokens of two short sequences.

    With ``pieces``, the sequences are batched, split over several passes, and begin in different passes.
    """
    first, second = _probe_sequences(model)
    if not pieces:
        return torch.cat([forward.run([SequenceInput(forward.new_cache(0), ids, 1)]) for ids in (first, second)])
    first_cache, second_cache = forward.new_cache(0), forward.new_cache(0)
    forward.run([SequenceInput(first_cache, first[:4], 0)])
    forward.run([SequenceInput(first_cache, first[4:-2], 0), SequenceInput(second_cache, second[:-2], 0)])
    forward.run([SequenceInput(first_cache, first[-2:-1], 0), SequenceInput(second_cache, second[-2:-1], 0)])
    return forward.run([SequenceInput(first_cache, first[-1:], 1), SequenceInput(second_cache, second[-1:], 1)])


@torch.inference_mode()
def _probe_sequential_logits(forward: SequentialForward, model: PreTrainedModel, *, interleaved: bool) -> Tensor:
    """Logits of the last two tokens of two short sequences, one after another or ``interleaved`` token by token.

    Both orders split the sequences into the same passes, so that only the order can change the logits.
    """
    sequences = _probe_sequences(model)
    caches = [forward.new_cache(0) for _ in sequences]
    passes = [(number, part) for number in range(len(sequences)) for part in range(3)]
    logits = {}
    for number, part in sorted(passes, key=lambda place: place[::-1]) if interleaved else passes:
        ids = sequences[number]
        piece = (ids[:-2], ids[-2:-1], ids[-1:])[part]
        logits[number, part] = forward.run([SequenceInput(caches[number], piece, int(part > 0))])
    return torch.cat([logits[place] for place in passes])


def _relative_error(logits: Tensor, expected: Tensor) -> float:
    """Relative L2 error. The norm is of ``truth`` without its row means, so that an offset does not hide errors."""
    centred = expected - expected.mean(-1, keepdim=True)
    return float((logits - expected).norm() / centred.norm().clamp_min(1e-12))
