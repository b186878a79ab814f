"""Builds an engine core: loads the model, selects its forward pass, optimizes its layers, and sizes its KV cache."""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from antiphon.engine.cache_budget import choose_context, limit_context, size_cache
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import Fallback, collect_fallbacks
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.host.hardware import cpu_features, physical_cores
from antiphon.engine.host.malloc_tuning import map_large_blocks, return_freed_memory
from antiphon.engine.load.decoded_checkpoint import keeps_stored_form
from antiphon.engine.load.loader import engine_info, load_model
from antiphon.engine.media.factories import create_image_scheduler, describe_images
from antiphon.engine.model_build.stages import ModelBuild, run_stages
from antiphon.engine.model_build.threads import adapt_threads
from antiphon.engine.options import EngineOptions
from antiphon.engine.prefix_disk.opening import open_prefix_disk
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.drafts.draft_model import DraftModel
from antiphon.engine.scheduler.grammar import compiler_factory

log = logging.getLogger(__name__)

CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 512, 2048
"""Default maximum of tokens per step. On a GPU, a larger step takes little longer."""


def build_core(path: Path, options: EngineOptions) -> Core:
    """Loads the model in a folder and builds its core. Raises `engine.errors.LoadError`."""
    torch.set_num_threads(options.threads or physical_cores())
    with map_large_blocks(), collect_fallbacks() as told:
        return _tell(_finish(_load(path, options)), told)


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
    with collect_fallbacks() as told:
        return _tell(_finish(ModelBuild(model, checkpoint, options or EngineOptions(), optimize=optimize)), told)


def _tell(core: Core, told: Iterable[Fallback]) -> Core:
    """Adds the fallbacks of the start to what the core tells of itself."""
    core.info = msgspec.structs.replace(core.info, fallbacks=tuple(told))
    return core


def _load(path: Path, options: EngineOptions) -> ModelBuild:
    """Loads a model, for the stages."""
    model, checkpoint = load_model(
        path,
        device=options.device,
        dtype=options.dtype,
        to_quantize=options.quantization is not None,
        keeps_16_bits=options.pack_linears and options.compile_kernels,
    )
    if options.quantization is None and options.dtype is None and keeps_stored_form(checkpoint, model.device.type):
        options = msgspec.structs.replace(options, quantization="stored")
    return ModelBuild(model, checkpoint, options, optimize=True)


def _finish(build: ModelBuild) -> Core:
    """Runs the stages of the model, and of its draft model, and creates the core."""
    run_stages(build)
    draft = None if build.options.draft_model is None else _build_draft(build, build.options.draft_model)
    return_freed_memory()  # before the cache is sized
    return _create_core(build, draft)


def _build_draft(build: ModelBuild, folder: str) -> ModelBuild:
    """Loads the draft model and runs its stages: it is quantized as the model is. Raises `LoadError`."""
    if not _uses_drafts(build):
        reason = (
            "verifies a draft as slowly as it generates the tokens, because --deterministic runs one token per pass"
            if build.forward.supports_drafts
            else "has layers with a state, or runs one sequence at a time, and cannot take tokens back"
        )
        raise LoadError(f"--draft-model: {type(build.model).__name__} {reason}; leave --draft-model out")
    log.info("loading the draft model")
    quantization = None if build.options.quantization == "stored" else build.options.quantization
    options = msgspec.structs.replace(
        build.options,
        quantization=quantization,
        force_quantization=True,  # its errors cost acceptance, never a token
        deterministic=False,
        kv_cache_dtype=None,
        keep_vision_tower=False,
        lora_modules=(),
        allow_lora_updates=False,
        draft_model=None,
    )
    draft = _load(Path(folder), options)
    draft.optimize = build.optimize
    run_stages(draft)
    if not draft.forward.supports_drafts:
        name = type(draft.model).__name__
        raise LoadError(f"{folder}: {name} cannot draft, because it cannot take tokens back; choose another model")
    return draft


def _create_core(build: ModelBuild, draft: ModelBuild | None) -> Core:
    """Sizes the KV cache for the finished model and creates its core."""
    model, checkpoint, options, forward = build.model, build.checkpoint, build.options, build.forward
    info = describe_images(engine_info(model, checkpoint), model, build.tower, build.image_refusal)
    pictures = (
        None
        if build.tower is None
        else create_image_scheduler(model, forward, build.tower, options.image_cache_mib << 20)
    )
    reserved = 0 if pictures is None else options.image_cache_mib << 20
    cache = size_cache(forward, str(model.device), options, reserved, None if draft is None else draft.forward)
    cache_tokens = None if cache is None else cache.tokens
    default_tokens = GPU_BATCHED_TOKENS if model.device.type == "cuda" else CPU_BATCHED_TOKENS
    context = limit_context(choose_context(options.max_model_len, info.max_model_len), cache, options)
    max_tokens = cache_tokens or options.max_num_seqs * context
    _prepare_paged_cache(build, max_tokens)
    return Core(
        forward,
        msgspec.structs.replace(info, max_model_len=context, description=_describe(info.description, build, draft)),
        max_num_seqs=min(options.max_num_seqs, forward.max_num_seqs or options.max_num_seqs),
        max_waiting=options.max_waiting,
        max_batched_tokens=options.max_batched_tokens or default_tokens,
        max_cache_tokens=cache_tokens,
        max_draft_seqs=options.max_draft_seqs if _uses_drafts(build) else 0,
        draft_model=None if draft is None else _create_draft_model(draft, info, max_tokens, cache_tokens or context),
        enable_prefix_caching=options.enable_prefix_caching,
        kernels=build.kernels,
        before_pass=adapt_threads(model, options),
        adapters=build.adapters,
        pictures=pictures,
        prefix_disk=open_prefix_disk(checkpoint, options, forward, build.kernels),
        grammars=compiler_factory(checkpoint.path, info.vocab_size, info.eos_ids) if checkpoint else lambda: None,
    )


def _create_draft_model(draft: ModelBuild, target: EngineInfo, max_tokens: int, max_idle_tokens: int) -> DraftModel:
    """Creates the draft model. Its caches hold as many tokens as the target's, and `size_cache` counted both."""
    info = engine_info(draft.model, draft.checkpoint)
    _prepare_paged_cache(draft, max_tokens)
    return DraftModel(
        draft.forward,
        vocab_size=min(info.vocab_size, target.vocab_size),
        max_model_len=info.max_model_len,
        max_tokens=max_tokens,
        suppressed_ids=target.suppressed_ids,
        max_idle_tokens=max_idle_tokens if draft.options.enable_prefix_caching else 0,
    )


def _uses_drafts(build: ModelBuild) -> bool:
    """Tells whether drafts save time. With one-token passes, verifying one takes as long as generating its tokens."""
    return build.forward.supports_drafts and not (build.options.deterministic and not build.packing.is_complete)


def _prepare_paged_cache(build: ModelBuild, tokens: int) -> None:
    """Allocates the pages of a paged cache and captures CUDA graphs, if the forward pass uses them."""
    forward, options = build.forward, build.options
    if not isinstance(forward, VarlenForward) or not forward.is_paged:
        return
    forward.allocate_pages(tokens, options.max_num_seqs)
    if build.model.device.type == "cuda" and not options.deterministic:
        log.info("capturing CUDA graphs")
        forward.capture_graphs(options.max_num_seqs)


def _describe(base: str, build: ModelBuild, draft: ModelBuild | None) -> str:
    """Returns the engine's description for the startup log: model, packing, CPU, determinism, adapters, draft model."""
    notes = [base, build.packing.description]
    if build.model.device.type == "cpu":
        count = torch.get_num_threads()
        notes.append(f"{count} thread{'s' if count > 1 else ''} ({cpu_features()})")
    if build.options.deterministic:
        notes.append("deterministic")
    if build.adapters is not None:
        notes.append(build.adapters.description)
    if draft is not None:
        notes.append(f"drafts from {engine_info(draft.model, draft.checkpoint).description}")
    return "; ".join(note for note in notes if note)
