"""Builds an engine core: loads the model, selects its forward pass, optimizes its layers, and sizes its KV cache."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from antiphon.engine.load.experts.placeholders import use_placeholders
from antiphon.engine.load.loader import engine_info, load_model
from antiphon.engine.load.mmap_weights import use_kernels
from antiphon.engine.malloc_tuning import map_large_blocks, return_freed_memory
from antiphon.engine.media.assembly import create_desk, describe_images
from antiphon.engine.media.vision_tower import VisionTower, explain_no_pictures, explain_pass_without_pictures
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.opening import open_pack_session
from antiphon.engine.pack_cache.session import PackSession
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
    build = _Build(model, checkpoint, options or EngineOptions(), optimize=optimize)
    with _adapted_threads(model, build.options):
        for stage in STAGES:
            stage(build)
    return_freed_memory()  # before the cache is sized
    return _create_core(build)


class _Build:
    """A model on its way to a core, and what the stages have made for it so far."""

    def __init__(
        self, model: PreTrainedModel, checkpoint: Checkpoint | None, options: EngineOptions, *, optimize: bool
    ) -> None:
        self.model, self.checkpoint, self.options, self.optimize = model, checkpoint, options, optimize
        self.adapters: AdapterRegistry | None = None
        self.kernels: Kernels | None = None
        self.kept = PackSession(None)
        self.validation = Validation(model)
        self.forward: ForwardPass = SequentialForward(model)
        self.packing = PackingResult()
        self.tower: VisionTower | None = None
        self.image_refusal = ""


def _read_adapters(build: _Build) -> None:
    """Reads the adapters of the options. Raises `LoadError`.

    First, because adapters name the layers that later stages replace, and a faulty one is then found before the model
    is packed.
    """
    options, checkpoint = build.options, build.checkpoint
    if options.lora_modules or options.allow_lora_updates:
        layers, folder = AdaptableLayers(build.model), None if checkpoint is None else checkpoint.path
        build.adapters = AdapterRegistry(layers, build.model.dtype, folder)
        build.adapters.read_all(options.lora_modules)


def _remove_towers(build: _Build) -> None:
    """Removes parts for images, so that no later stage packs or measures them. The tower is put back at the end."""
    if not build.optimize:
        return
    model = build.model
    removed = remove_unused_towers(model, lambda: reference_logits(SequentialForward(model), model, DRY_RUN_TOKENS))
    refusal = explain_no_pictures(model, removed)
    if refusal is None and build.options.keep_vision_tower:
        build.tower = VisionTower(model, removed)
    build.image_refusal = refusal or ""


def _load_kernels(build: _Build) -> None:
    """Loads the kernels, and lets weights in files use them, so that the passes of all later checks are fast.

    Packs experts in MXFP4, which only compute fast once they are packed.
    """
    if not build.optimize:
        return
    if build.options.compile_kernels and build.model.device.type == "cpu":
        log.info("loading kernels")  # the first start compiles them
        build.kernels = load_kernels()
    use_kernels(build.model, build.kernels)
    pack_mxfp4_experts(build.model, build.kernels)


def _open_pack_session(build: _Build) -> None:
    """Opens the packed weights of an earlier start. Their key names the kernels, which lay out the weights."""
    build.kept = open_pack_session(build.checkpoint if build.optimize else None, build.options, build.kernels)


def _select_forward(build: _Build) -> None:
    """Selects the forward pass by the logits of the model's own layers, before any of them is replaced."""
    log.info("validating the forward pass")
    model, checks, options = build.model, build.kept.checks, build.options
    dry_run = prepare_dry_run(model) if build.optimize and packs_layers(options) else None
    build.validation = Validation(model, dry_run)
    cuda = model.device.type == "cuda"
    if cuda:
        # cuDNN attention builds a new plan for each shape, which takes up to half a second.
        torch.backends.cuda.enable_cudnn_sdp(False)
    with use_placeholders(model) as num_placeholders:
        # Packed experts amplify the last bits, in which two correct passes differ.
        build.forward = select_forward(
            model,
            paged=cuda if options.paged_cache is None else options.paged_cache,
            kernels=build.kernels,
            checked=None if checks is None else checks.forward,
            context=options.max_model_len,
            validation=build.validation,
        )
    if num_placeholders:
        build.validation.had_placeholders = True
        build.validation.texts.reference = None  # those of the model itself are other ones


def _optimize(build: _Build) -> None:
    """Replaces layers by faster ones, which the selected pass then runs."""
    if build.optimize:
        build.packing = optimize_model(
            build.model, build.forward, build.options, build.kernels, build.kept, build.validation
        )


def _apply_determinism(build: _Build) -> None:
    """Makes results independent of chunking and batching: with `deterministic`, and always with quantized layers.

    How depends on whether all linear layers were packed.
    """
    forward, options, packing = build.forward, build.options, build.packing
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


def _load_adapters(build: _Build) -> None:
    """Attaches hooks to the layers that compute now, and loads the adapters. Raises `LoadError`.

    Last, because the hooks compare the bits of the pass as it will run.
    """
    if build.adapters is not None:
        log.info("preparing layers for adapters")
        install_adapter_hooks(build.model, build.forward, build.adapters.layers, build.kernels)
        build.adapters.load_all(build.options.lora_modules)


def _attach_tower(build: _Build) -> None:
    """Puts the vision tower back, if the selected pass can use it."""
    if build.tower is None:
        return
    refusal = explain_pass_without_pictures(build.model, build.forward)
    if refusal is None:
        build.tower.attach(build.kernels)
    else:
        build.tower, build.image_refusal = None, refusal


STAGES: tuple[Callable[[_Build], None], ...] = (
    _read_adapters,
    _remove_towers,
    _load_kernels,
    _open_pack_session,
    _select_forward,
    _optimize,
    _apply_determinism,
    _load_adapters,
    _attach_tower,
)
"""What happens to a loaded model before its cache is sized. Each stage gives the reason for its place."""


def _create_core(build: _Build) -> Core:
    """Sizes the KV cache for the finished model and creates its core."""
    model, checkpoint, options, forward = build.model, build.checkpoint, build.options, build.forward
    info = describe_images(engine_info(model, checkpoint), model, build.tower, build.image_refusal)
    desk = None if build.tower is None else create_desk(model, forward, build.tower, options.image_cache_mib << 20)
    cache = size_cache(forward, str(model.device), options, 0 if desk is None else options.image_cache_mib << 20)
    cache_tokens = None if cache is None else cache.tokens
    context = limit_context(choose_context(options.max_model_len, info.max_model_len), cache, options)
    _prepare_paged_cache(model, forward, options, cache_tokens or options.max_num_seqs * context)
    return Core(
        forward,
        msgspec.structs.replace(info, max_model_len=context, description=_describe(info.description, build)),
        max_num_seqs=min(options.max_num_seqs, forward.max_num_seqs or options.max_num_seqs),
        max_waiting=options.max_waiting,
        max_batched_tokens=options.max_batched_tokens,
        max_cache_tokens=cache_tokens,
        max_draft_seqs=options.max_draft_seqs if _uses_drafts(forward, options, build.packing) else 0,
        enable_prefix_caching=options.enable_prefix_caching,
        kernels=build.kernels,
        before_pass=_adapt_threads(model, options),
        adapters=build.adapters,
        pictures=desk,
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


@contextmanager
def _adapted_threads(model: PreTrainedModel, options: EngineOptions) -> Iterator[None]:
    """Adapts the number of threads before each pass of the checks, and restores it.

    The weights of a large model are read a dozen times. If other processes compete for the cores, threads that wait for
    each other multiply the time of that.
    """
    threads, adapt = torch.get_num_threads(), _adapt_threads(model, options)
    hook = model.register_forward_pre_hook(lambda *_: adapt())
    try:
        yield
    finally:
        hook.remove()
        torch.set_num_threads(threads)


def _prepare_paged_cache(model: PreTrainedModel, forward: ForwardPass, options: EngineOptions, tokens: int) -> None:
    """Allocates the pages of a paged cache and captures CUDA graphs, if the forward pass uses them."""
    if not isinstance(forward, VarlenForward) or not forward.is_paged:
        return
    forward.allocate_pages(tokens, options.max_num_seqs)
    if model.device.type == "cuda" and not options.deterministic:
        log.info("capturing CUDA graphs")
        forward.capture_graphs(options.max_num_seqs)


def _describe(base: str, build: _Build) -> str:
    """Returns the engine's description for the startup log: model, packing, CPU, determinism, adapters."""
    notes = [base, build.packing.description]
    if build.model.device.type == "cpu":
        count = torch.get_num_threads()
        notes.append(f"{count} thread{'s' if count > 1 else ''} ({cpu_features()})")
    if build.options.deterministic:
        notes.append("deterministic")
    if build.adapters is not None:
        notes.append(build.adapters.description)
    return "; ".join(note for note in notes if note)
