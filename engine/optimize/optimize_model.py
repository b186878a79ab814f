"""Optimizes a loaded model whose forward pass is validated, and measures what its quantization changes."""

import logging

from transformers import PreTrainedModel

from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.finite_logits import check_finite
from antiphon.engine.optimize.decoder_layer import fuse_decoder_layers
from antiphon.engine.optimize.experts.pack import describe_experts
from antiphon.engine.optimize.fuse import fuse_layers_and_rotary
from antiphon.engine.optimize.pack_linears import PackingResult, pack_linears
from antiphon.engine.optimize.packing_plan import DRY_RUN_TOKENS
from antiphon.engine.optimize.quantization_error import REMEDIES, QuantizationError, check_similarity, compare_logits
from antiphon.engine.optimize.rms_norm import replace_norms
from antiphon.engine.optimize.stored_linears import describe_forms
from antiphon.engine.optimize.validation import Validation, reference_logits
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.session import PackSession, StartChecks

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 4
"""Tokens of the pass that measures the memory of a token, if no other pass has run."""


def packs_layers(options: EngineOptions) -> bool:
    """Tells whether `optimize_model` packs linear layers."""
    return options.pack_linears or options.quantization is not None


def optimize_model(
    model: PreTrainedModel,
    forward: ForwardPass,
    options: EngineOptions,
    kernels: Kernels | None,
    kept: PackSession,
    validation: Validation,
) -> PackingResult:
    """Replaces norms, linear layers and decoder layers where verified, and switches caches to fp16 if configured.

    `kept` are the packed weights and checks of an earlier start, or receive those of this one. `validation` is that
    of the forward pass. Raises `LoadError` if the model cannot be quantized, or is changed too much by it,
    or if its logits are not finite.
    """
    checks = kept.checks
    if options.quantization is not None and checks is None and validation.dry_run is not None:
        validation.measure_texts(forward)
    replace_norms(model, kernels)
    packing = PackingResult()
    if packs_layers(options):
        log.info("loading packed weights" if checks is not None else "packing weights")
        packing = pack_linears(
            model,
            lambda: reference_logits(forward, model, DRY_RUN_TOKENS),
            options.quantization,
            kernels,
            kept,
            validation.release_dry_run(),
        )
        if options.quantization == "stored" and packing.description:
            packing = packing._replace(description=describe_forms(model))
        if kernels is not None:
            fuse_layers_and_rotary(model, kernels)
            fuse_decoder_layers(model, kernels)
    if options.quantization is not None and not packing.description:
        raise LoadError(f"this model cannot be quantized here (see the log); {REMEDIES[options.quantization]}")
    notes = [packing.description, describe_experts(model), *_use_fp16_cache(forward, options)]
    if options.quantization is not None:
        error = _measure_error(model, forward, validation, checks)
        check_similarity(options.quantization, error.similarity, force=options.force_quantization)
        notes.append(str(error))
        kept.finish(StartChecks(type(forward).__name__, [list(names) for names in packing.groups], *error))
    elif validation.had_placeholders:  # no pass with the experts themselves has run
        check_finite(reference_logits(forward, model), model)
    return packing._replace(description=", ".join(note for note in notes if note))


def _measure_error(
    model: PreTrainedModel, forward: ForwardPass, validation: Validation, checks: StartChecks | None
) -> QuantizationError:
    """Returns the error of the quantized model, from an earlier start if that has measured it."""
    if checks is not None:
        reference_logits(forward, model, WARM_UP_TOKENS)
        return QuantizationError(checks.similarity, checks.agreement)
    reference, validation.texts.reference = validation.texts.reference, None
    assert reference is not None  # measured before the model was packed
    return compare_logits(validation.texts.compute_rows(forward), reference)


def _use_fp16_cache(forward: ForwardPass, options: EngineOptions) -> list[str]:
    """Switches new caches to fp16 if requested, or by default with quantized layers. Returns notes for the log.

    Raises `LoadError` if fp16 is requested and not supported.
    """
    dtype = options.kv_cache_dtype or ("float16" if options.quantization else "float32")
    if dtype == "float32":
        return []
    if isinstance(forward, VarlenForward) and forward.use_fp16_cache():
        return ["KV cache in float16"]
    varlen = forward if isinstance(forward, VarlenForward) else None
    reason = "the model runs one sequence at a time" if varlen is None else varlen.explain_fp32_cache()
    if options.kv_cache_dtype:
        raise LoadError(f"a float16 KV cache is not supported here: {reason}; leave --kv-cache-dtype out")
    if varlen is not None:
        message = "the KV cache stays float32, which takes twice the memory of float16: %s"
        report_fallback(log, "float16_cache", message, reason)
    return []
