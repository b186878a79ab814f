"""The stages between a loaded model and its core: each changes the model, or finds out how it runs."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from antiphon.engine.adapters.install import install_adapter_hooks
from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.registry import AdapterRegistry
from antiphon.engine.checkpoint.draft_vocabulary import check_draft_vocabulary
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.load.experts.placeholders import use_placeholders
from antiphon.engine.load.mmap_weights import use_kernels
from antiphon.engine.media.vision_tower import VisionTower, explain_no_pictures, explain_pass_without_pictures
from antiphon.engine.model_build.threads import adapted_threads
from antiphon.engine.optimize.experts.pack import pack_mxfp4_experts
from antiphon.engine.optimize.optimize_model import optimize_model, packs_layers
from antiphon.engine.optimize.pack_linears import PackingResult, prepare_dry_run
from antiphon.engine.optimize.packing_plan import DRY_RUN_TOKENS
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.optimize.validation import Validation, reference_logits
from antiphon.engine.optimize.vision_towers import remove_unused_towers
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.opening import open_pack_session
from antiphon.engine.pack_cache.session import PackSession

log = logging.getLogger(__name__)

QUANTIZED_PROMPT_BLOCK_TOKENS = 16
"""Prompt tokens per attention block in torch if linear layers are quantized.

The block size affects the last bits of the result, which may move an activation to the next int8 level. It must
therefore be the same however a prompt is chunked. Larger blocks make longer steps.
"""


class ModelBuild:
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


def _check_draft_model(build: ModelBuild) -> None:
    """Compares the draft model's vocabulary. Raises `LoadError`. Early, because it needs files only."""
    if build.options.draft_model is not None and build.checkpoint is not None:
        check_draft_vocabulary(Path(build.options.draft_model), build.checkpoint.path)


def _read_adapters(build: ModelBuild) -> None:
    """Reads the adapters of the options. Raises `LoadError`.

    Early, because adapters name the layers that later stages replace, and a faulty one is then found before the model
    is packed.
    """
    options, checkpoint = build.options, build.checkpoint
    if options.lora_modules or options.allow_lora_updates:
        layers, folder = AdaptableLayers(build.model), None if checkpoint is None else checkpoint.path
        build.adapters = AdapterRegistry(layers, build.model.dtype, folder)
        build.adapters.read_all(options.lora_modules)


def _remove_towers(build: ModelBuild) -> None:
    """Removes parts for images, so that no later stage packs or measures them. The tower is put back at the end."""
    if not build.optimize:
        return
    model = build.model
    removed = remove_unused_towers(model, lambda: reference_logits(SequentialForward(model), model, DRY_RUN_TOKENS))
    refusal = explain_no_pictures(model, removed)
    if refusal is None and build.options.keep_vision_tower:
        build.tower = VisionTower(model, removed)
    build.image_refusal = refusal or ""


def _load_kernels(build: ModelBuild) -> None:
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


def _open_pack_session(build: ModelBuild) -> None:
    """Opens the packed weights of an earlier start. Their key names the kernels, which lay out the weights."""
    build.kept = open_pack_session(build.checkpoint if build.optimize else None, build.options, build.kernels)


def _select_forward(build: ModelBuild) -> None:
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


def _optimize(build: ModelBuild) -> None:
    """Replaces layers by faster ones, which the selected pass then runs."""
    if build.optimize:
        build.packing = optimize_model(
            build.model, build.forward, build.options, build.kernels, build.kept, build.validation
        )


def _apply_determinism(build: ModelBuild) -> None:
    """Makes results independent of chunking and batching: with `deterministic`, and always with quantized layers.

    How depends on whether all linear layers were packed.
    """
    forward, options, packing = build.forward, build.options, build.packing
    if not isinstance(forward, VarlenForward):
        return
    if options.deterministic:
        forward.make_deterministic(independent_rows=packing.is_complete)
        if not packing.is_complete:
            message = "deterministic: one token per pass, because some linear layers are not packed"
            report_fallback(log, "deterministic", message)
    elif options.quantization and packing.is_complete:
        alignment = 1 if forward.uses_kernels else QUANTIZED_PROMPT_BLOCK_TOKENS
        alignment = max(alignment, forward.prompt_alignment)
        forward.make_deterministic(independent_rows=True, prompt_alignment=alignment)


def _load_adapters(build: ModelBuild) -> None:
    """Attaches hooks to the layers that compute now, and loads the adapters. Raises `LoadError`.

    Last, because the hooks compare the bits of the pass as it will run.
    """
    if build.adapters is not None:
        log.info("preparing layers for adapters")
        install_adapter_hooks(build.model, build.forward, build.adapters.layers, build.kernels)
        build.adapters.load_all(build.options.lora_modules)


def _attach_tower(build: ModelBuild) -> None:
    """Puts the vision tower back, if the selected pass can use it."""
    if build.tower is None:
        return
    refusal = explain_pass_without_pictures(build.model, build.forward)
    if refusal is None:
        build.tower.attach(build.kernels)
    else:
        build.tower, build.image_refusal = None, refusal


ASSEMBLY_STAGES: tuple[Callable[[ModelBuild], None], ...] = (
    _check_draft_model,
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
"""Stages of a loaded model before its cache is sized. Each gives the reason for its place."""


def run_stages(build: ModelBuild) -> None:
    """Runs all stages. Raises `LoadError`."""
    with adapted_threads(build.model, build.options):
        for stage in ASSEMBLY_STAGES:
            stage(build)
