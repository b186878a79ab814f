"""Makes a loaded model ready for adapters: which layers they can change, and whether base rows keep their bits."""

import logging

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass, SequenceInput
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer

log = logging.getLogger(__name__)

PROBE_LENGTHS_TOKENS = (5, 8)
"""Lengths of the two sequences of the pass in which the calls of layers are recorded."""


def install_adapter_hooks(
    model: PreTrainedModel, forward: ForwardPass, layers: AdaptableLayers, kernels: Kernels | None = None
) -> None:
    """Attaches the layers to the model, which has been optimized, and the forward pass to the layers' rows.

    The pass that packs sequences is probed: a layer that is not computed for all rows is refused to adapters. Rows of
    the base model share a pass with adapters only if they get the same bits as without. `kernels` compute the
    adapters' products.
    """
    layers.products.kernel = None if kernels is None or model.device.type != "cpu" else kernels.lora
    layers.attach(model)
    if isinstance(forward, SequentialForward):
        forward.adapter_rows = layers.rows
        return
    if not isinstance(forward, VarlenForward):
        return
    forward.adapter_rows = layers.rows
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    is_fused = any(isinstance(module, FusedDecoderLayer) for module in model.modules())
    plain = _run_probe(forward, vocabulary) if is_fused else None
    unfused: list[Tensor] = []
    layers.rows.is_forced = True
    try:
        calls = layers.record_calls(lambda: unfused.append(_run_probe(forward, vocabulary)))
    finally:
        layers.rows.is_forced = False
    layers.refuse_partial_calls(
        {name: counts for name, counts in calls.items() if not forward.runs_in_parts(name)},
        sum(PROBE_LENGTHS_TOKENS),
        len(PROBE_LENGTHS_TOKENS) if forward.selects_logits else sum(PROBE_LENGTHS_TOKENS),
    )
    # Without fused layers, both passes run the same code, and bits that differ are those of the libraries.
    layers.rows.one_pass = plain is None or torch.equal(plain, unfused[0])
    if not layers.rows.one_pass:
        message = "rows with adapters run in a pass of their own, for equal bits of all other rows"
        report_fallback(log, "adapter_pass", message)


@torch.inference_mode()
def _run_probe(forward: VarlenForward, vocabulary: int) -> Tensor:
    """Returns the logits of the last tokens of two sequences in one pass."""
    sequences = [
        [(base + 13 * index) % vocabulary for index in range(length)]
        for base, length in zip((5, 11), PROBE_LENGTHS_TOKENS, strict=True)
    ]
    return forward.run_pass([SequenceInput(forward.new_cache(len(ids)), ids, 1) for ids in sequences])
