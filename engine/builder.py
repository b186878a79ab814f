"""Builds an engine core: loads the model, selects its forward pass, optimizes its layers, and sizes its KV cache."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from antiphon.engine.adapters.install import install_adapter_hooks
from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.registry import AdapterRegistry
from antiphon.engine.cache_budget import choose_context, limit_context, size_cache
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.fit.experts.pack import pack_mxfp4_experts
from antiphon.engine.fit.optimize_model import optimize_model, packs_layers
from antiphon.engine.fit.pack_linears import PackingResult, prepare_dry_run
from antiphon.engine.fit.packing_plan import DRY_RUN_TOKENS
from antiphon.engine.fit.select import select_forward
from antiphon.engine.fit.validation import Validation, reference_logits
from antiphon.engine.fit.vision_towers import remove_unused_towers
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.hardware import cpu_features, physical_cores
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.load.decoded_checkpoint import keeps_stored_form
from antiphon.engine.load.experts.placeholders import stand_in_for_experts
from antiphon.engine.load.loader import engine_info, load_model
from antiphon.engine.load.mapped_weights import use_kernels
from antiphon.engine.malloc_tuning import map_large_blocks, return_freed_memory
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.opening import open_pack_session
from antiphon.engine.pack_cache.session import StartChecks
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.grammar import compiler_factory
from antiphon.engine.thread_governor import ThreadGovernor

log = logging.getLogger(__name__)

QUANTIZED_PROMPT_BLOCK_TOKENS = 16
"""Prompt tokens per attention block in torch if linear layers are quantized.

The block size affects the last bits of the result, which may move an activation to the next int8 level. It must
therefore be the same however a prompt is chunked. Larger blocks make longer steps.
"""


def build_core(path: Path, options: EngineOptions) -> Core:
    """Loads the model in a folder and builds its core. Raises `engine.errors.LoadError`."""
    torch.set_num_threads(options.threads or physical_cores())
    with map_large_blocks():
        model, checkpoint = load_model(
            path,
            device=options.device,
            dtype=options.dtype,
            to_quantize=options.quantization is not None,
            keeps_16_bits=options.pack_linears and options.compile_kernels,
        )
        if options.quantization is None and options.dtype is None and keeps_stored_form(checkpoint, model.device.type):
            options = msgspec.structs.replace(options, quantization="stored")
        return build_core_from_model(model, checkpoint, options, optimize=True)


def build_core_from_model(
    model: PreTrainedModel,
    checkpoint: Checkpoint | None = None,
    options: EngineOptions | None = None,
    *,
    optimize: bool = False,
) -> Core:
    """Builds the core of a model that is already in memory.

    `checkpoint` supplies sampling defaults and the tokenizer for grammars. `optimize` allows layers to be replaced
    by faster ones.
    """
    options = options or EngineOptions()
    adapters = _read_adapters(model, checkpoint, options)
    restore_threads = _adapt_threads_while_loading(model, options)
    if optimize:
        remove_unused_towers(model, lambda: reference_logits(SequentialForward(model), model, DRY_RUN_TOKENS))
    kernels = _load_kernels(model, options) if optimize else None
    kept = open_pack_session(checkpoint if optimize else None, options, kernels)
    validation = Validation(model, prepare_dry_run(model) if optimize and packs_layers(options) else None)
    forward = _select_forward(model, options, kernels, kept.checks, validation)
    packing = optimize_model(model, forward, options, kernels, kept, validation) if optimize else PackingResult()
    _apply_determinism(forward, options, packing)
    if adapters is not None:
        _load_adapters(model, forward, adapters, options, kernels)
    restore_threads()
    return_freed_memory()  # before the cache is sized
    info = engine_info(model, checkpoint)
    cache = size_cache(forward, str(model.device), options)
    cache_tokens = None if cache is None else cache.tokens
    max_num_seqs = min(options.max_num_seqs, forward.max_num_seqs or options.max_num_seqs)
    context = limit_context(choose_context(options.max_model_len, info.max_model_len), cache, options)
    _prepare_paged_cache(model, forward, options, cache_tokens or options.max_num_seqs * context)
    info = msgspec.structs.replace(
        info, max_model_len=context, description=_describe(info.description, packing, model, options, adapters)
    )
    return Core(
        forward,
        info,
        max_num_seqs=max_num_seqs,
        max_waiting=options.max_waiting,
        max_batched_tokens=options.max_batched_tokens,
        max_cache_tokens=cache_tokens,
        max_draft_seqs=options.max_draft_seqs if _uses_drafts(forward, options, packing) else 0,
        enable_prefix_caching=options.enable_prefix_caching,
        kernels=kernels,
        before_pass=_adapt_threads(model, options),
        adapters=adapters,
        grammars=compiler_factory(checkpoint.path, info.vocab_size, info.eos_ids) if checkpoint else lambda: None,
    )


def _uses_drafts(forward: ForwardPass, options: EngineOptions, packing: PackingResult) -> bool:
    """Tells whether drafts save time. With one-token passes, verifying one takes as long as generating its tokens."""
    return forward.supports_drafts and not (options.deterministic and not packing.is_complete)


def _adapt_threads(model: PreTrainedModel, options: EngineOptions) -> Callable[[], None]:
    """Returns a function that adapts the number of threads to the load of the machine, if no number is configured.

    With `deterministic` the number stays, because the bits of torch's operations may depend on it.
    """
    if options.threads is not None or options.deterministic or model.device.type != "cpu":
        return lambda: None
    return ThreadGovernor(torch.get_num_threads(), torch.set_num_threads).update


def _adapt_threads_while_loading(model: PreTrainedModel, options: EngineOptions) -> Callable[[], None]:
    """Adapts the number of threads before each pass of the checks. Returns a function that restores it.

    The weights of a large model are read a dozen times. If other processes compete for the cores, threads that wait for
    each other multiply the time of that.
    """
    threads, adapt = torch.get_num_threads(), _adapt_threads(model, options)
    hook = model.register_forward_pre_hook(lambda *_: adapt())

    def restore() -> None:
        hook.remove()
        torch.set_num_threads(threads)

    return restore


def _load_kernels(model: PreTrainedModel, options: EngineOptions) -> Kernels | None:
    """Returns the kernels for the model, and lets weights in files use them.

    Packs experts in MXFP4, which only compute fast once they are packed.
    """
    kernels = None
    if options.compile_kernels and model.device.type == "cpu":
        log.info("loading kernels")  # the first start compiles them
        kernels = load_kernels()
    use_kernels(model, kernels)
    pack_mxfp4_experts(model, kernels)
    return kernels


def _select_forward(
    model: PreTrainedModel,
    options: EngineOptions,
    kernels: Kernels | None,
    checks: StartChecks | None,
    validation: Validation,
) -> ForwardPass:
    log.info("validating the forward pass")
    cuda = model.device.type == "cuda"
    if cuda:
        # cuDNN attention builds a new plan for each shape, which takes up to half a second.
        torch.backends.cuda.enable_cudnn_sdp(False)
    paged = cuda if options.paged_cache is None else options.paged_cache
    checked = None if checks is None else checks.forward
    with stand_in_for_experts(model) as num_stand_ins:
        # Packed experts amplify the last bits, in which two correct passes differ.
        forward = select_forward(
            model,
            paged=paged,
            kernels=kernels,
            checked=checked,
            context=options.max_model_len,
            validation=validation,
        )
    if num_stand_ins:
        validation.had_stand_ins = True
        validation.texts.reference = None  # those of the model itself are other ones
    return forward


def _read_adapters(
    model: PreTrainedModel, checkpoint: Checkpoint | None, options: EngineOptions
) -> AdapterRegistry | None:
    """Reads the adapters of the options for a model whose layers are not optimized; None if it serves no adapters.

    A faulty adapter is found before the model is packed. Raises `LoadError`.
    """
    if not options.lora_modules and not options.allow_lora_updates:
        return None
    registry = AdapterRegistry(AdaptableLayers(model), model.dtype, None if checkpoint is None else checkpoint.path)
    registry.read_all(options.lora_modules)
    return registry


def _load_adapters(
    model: PreTrainedModel,
    forward: ForwardPass,
    adapters: AdapterRegistry,
    options: EngineOptions,
    kernels: Kernels | None,
) -> None:
    """Prepares the optimized model for adapters and loads those of the options. Raises `LoadError`."""
    log.info("preparing layers for adapters")
    install_adapter_hooks(model, forward, adapters.layers, kernels)
    adapters.load_all(options.lora_modules)


def _apply_determinism(forward: ForwardPass, options: EngineOptions, packing: PackingResult) -> None:
    """Makes results independent of chunking and batching: with `deterministic`, and always with quantized layers."""
    if not isinstance(forward, VarlenForward):
        return
    if options.deterministic:
        forward.make_deterministic(independent_rows=packing.is_complete)
        if not packing.is_complete:
            log.warning("deterministic: one token per pass, because some linear layers are not packed")
    elif options.quantization and packing.is_complete:
        alignment = 1 if forward.uses_kernels else QUANTIZED_PROMPT_BLOCK_TOKENS
        alignment = max(alignment, forward.prompt_alignment)
        forward.make_deterministic(independent_rows=True, prompt_alignment=alignment)


def _prepare_paged_cache(model: PreTrainedModel, forward: ForwardPass, options: EngineOptions, tokens: int) -> None:
    """Allocates the pages of a paged cache and captures CUDA graphs, if the forward pass uses them."""
    if not isinstance(forward, VarlenForward) or not forward.is_paged:
        return
    forward.allocate_pages(tokens, options.max_num_seqs)
    if model.device.type == "cuda" and not options.deterministic:
        log.info("capturing CUDA graphs")
        forward.capture_graphs(options.max_num_seqs)


def _describe(
    base: str,
    packing: PackingResult,
    model: PreTrainedModel,
    options: EngineOptions,
    adapters: AdapterRegistry | None = None,
) -> str:
    """Returns the engine's description for the startup log: model, packing, CPU, determinism, adapters."""
    notes = [base, packing.description]
    if model.device.type == "cpu":
        count = torch.get_num_threads()
        notes.append(f"{count} thread{'s' if count > 1 else ''} ({cpu_features()})")
    if options.deterministic:
        notes.append("deterministic")
    if adapters is not None:
        notes.append(adapters.description)
    return "; ".join(note for note in notes if note)
