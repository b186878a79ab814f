"""Creates the served models from the options: finds their files, detects their formats, creates their engines."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, structs

from antiphon.app.adapters.registration import check_adapter_options, describe_adapter
from antiphon.app.assembly.draft_models import check_draft_options, estimate_with_draft, fetch_draft_model
from antiphon.app.assembly.encoders import create_encoders
from antiphon.app.media.processor_files import can_prepare_images
from antiphon.app.models.memory import (
    MemoryEstimate,
    check_fits,
    divide_cache,
    estimate_encoder,
    measure_engine,
    needed_bytes,
)
from antiphon.app.models.memory_pool import GIB, ModelMemory, ModelMemoryPool, PoolTimeouts
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.models.options import default_name, split_models
from antiphon.app.models.static_info import read_static_info
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry, ServedModel
from antiphon.app.remote.launch import create_remote_engine
from antiphon.app.scripted.replay import create_scripted_engine, record_engine
from antiphon.app.turn_types.encryption import open_sealer
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions, SecretBytes
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.spawn import SpawnWorker
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import Engine, EngineInfo
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import LoadedFormat, UnusableTemplateError

EMBEDDED_MODEL_NAME = "antiphon"
"""Served name of the embedded model."""

OnStatus = Callable[[str, str], None]
"""Receives the name of a model and a status of its engine."""


class _ModelPlan(Struct, frozen=True, kw_only=True):
    """A model whose files are on this machine. `build_engine` creates its engine with the given options."""

    options: ServeOptions
    name: str
    loaded: LoadedFormat
    build_engine: Callable[[EngineOptions], Engine]
    estimate: MemoryEstimate = MemoryEstimate(0, 0)
    static_info: EngineInfo | None = None


async def create_models(
    options: ServeOptions, settings: Settings, on_status: OnStatus, spawn: SpawnWorker
) -> tuple[ModelRegistry, dict[str, str]]:
    """Returns the models, and a line about the dialect of each by its first name. No engine is started.

    Raises `ServeError`, `LoadError`, `ScriptError`, `DialectError` or `KeyFileError`.
    """
    _check_loading(options)
    each_options = split_models(options)
    for each in each_options:
        check_adapter_options(each)
        check_draft_options(each)
    plans = [await _plan_model(each, settings, on_status, spawn) for each in each_options]
    encoders = await create_encoders(options)
    estimates = [plan.estimate for plan in plans]
    encoder_estimates = [estimate_encoder(encoder.folder) for encoder in encoders]
    if options.memory_gib is not None:
        names = [plan.name for plan in plans] + [encoder.names[0] for encoder in encoders]
        for name, estimate in zip(names, [*estimates, *encoder_estimates], strict=True):
            check_fits(name, estimate, options.memory_gib)
    pool = ModelMemoryPool(
        None if options.memory_gib is None else int(options.memory_gib * GIB),
        PoolTimeouts(load_timeout_s=options.load_timeout_s),
    )
    models = [
        _create_model(plan, pool, _cache_options(plan, [*estimates, *encoder_estimates], index, len(plans)))
        for index, plan in enumerate(plans)
    ]
    pooled_encoders = [
        structs.replace(
            encoder, engine=_create_on_demand_engine(encoder.engine, encoder.names[0], pool, options, estimate)
        )
        for encoder, estimate in zip(encoders, encoder_estimates, strict=True)
    ]
    registry = create_registry(models, pooled_encoders, [plan.options for plan in plans])
    return registry, {plan.name: plan.loaded.note for plan in plans}


def _cache_options(plan: _ModelPlan, estimates: Sequence[MemoryEstimate], index: int, num_models: int) -> EngineOptions:
    """Returns the engine's options with the size of the KV cache, which models on one machine have to share."""
    options, memory_gib = plan.options.engine_options, plan.options.memory_gib
    if options.kv_cache_gib is not None:
        return options
    if memory_gib is None:
        return structs.replace(options, kv_cache_share=num_models)
    return structs.replace(options, kv_cache_gib=divide_cache(estimates, index, num_models, memory_gib))


def _create_model(plan: _ModelPlan, pool: ModelMemoryPool, engine_options: EngineOptions) -> ServedModel:
    options = plan.options
    engine = record_engine(options, plan.build_engine(engine_options), plan.loaded, plan.name)
    cache_gib = engine_options.kv_cache_gib or 0.0
    return ServedModel(
        names=tuple(dict.fromkeys((plan.name, *options.served_model_names))),
        engine=_create_on_demand_engine(engine, plan.name, pool, options, plan.estimate, cache_gib, plan.static_info),
        format=plan.loaded.format,
        created=int(time.time()),
        folder=plan.loaded.folder,
    )


def _create_on_demand_engine(
    engine: Engine,
    name: str,
    pool: ModelMemoryPool,
    options: ServeOptions,
    estimate: MemoryEstimate,
    cache_gib: float = 0.0,
    static_info: EngineInfo | None = None,
) -> OnDemandEngine:
    return OnDemandEngine(
        engine,
        pool,
        name,
        on_demand=options.load_on_demand,
        idle_unload_s=None if options.idle_unload_s == math.inf else options.idle_unload_s,
        memory=ModelMemory(
            needed_bytes(estimate, cache_gib), int(cache_gib * GIB), partial(measure_engine, engine, estimate)
        ),
        static_info=static_info,
    )


def create_registry(
    models: Sequence[ServedModel], encoders: Sequence[EncoderModel], each_options: Sequence[ServeOptions]
) -> ModelRegistry:
    """Returns the models with their adapters. Raises `ServeError` if two have the same name."""
    try:
        registry = ModelRegistry(models, encoders)
        for model, options in zip(models, each_options, strict=True):
            for module in options.engine_options.lora_modules:
                registry.add_adapter(describe_adapter(model, module.name, module.path))
    except ValueError as error:
        remedy = "each model needs a name of its own, such as NAME=PATH_OR_HUB_ID"
        raise ServeError(f"{error}: {remedy}") from None
    return registry


def _check_loading(options: ServeOptions) -> None:
    """Raises `ServeError` for options of loading and unloading that the engine does not have."""
    given = {
        "--load-on-demand": options.load_on_demand,
        "--idle-unload": options.idle_unload_s is not None,
        "--memory-gib": options.memory_gib is not None,
    }
    for flag, is_given in given.items():
        if is_given and options.engine != "torch":
            raise ServeError(f"{flag} requires --engine torch: the model is loaded by the engine's own server")
        if is_given and options.record is not None:
            raise ServeError(f"--record requires a model that stays loaded: leave {flag} out")


async def _plan_model(options: ServeOptions, settings: Settings, on_status: OnStatus, spawn: SpawnWorker) -> _ModelPlan:
    """Returns the plan of one model. Runs the cheapest checks first: the folder, its files, its dialect."""
    if options.engine != "torch" and options.engine_options.prefix_cache_disk is not None:
        raise ServeError("--prefix-cache-disk requires --engine torch: other engines keep their prefixes themselves")
    if options.engine == "scripted":
        for name in ("chat_template", "revision"):
            if getattr(options, name) is not None:
                raise ServeError(f"--{name.replace('_', '-')} requires --engine torch")
        engine, loaded, name = await create_scripted_engine(options)
    elif options.script is not None:
        raise ServeError("--script requires --engine scripted")
    elif options.engine == "torch":
        if options.remote.urls:
            raise ServeError("--engine-url requires --engine vllm, sglang, llama.cpp, trtllm or remote")
        options = _add_prefix_key(_decide_on_images(options, settings), settings)
        return await _plan_torch_model(options, settings, on_status, spawn)
    else:
        template = None if options.chat_template is None else _load_template(options.chat_template)
        engine, loaded, name = await create_remote_engine(
            options,
            template,
            on_status,
            separate_owners=settings.requires_key,
            continue_within_s=settings.continue_within,
        )
    return _ModelPlan(options=options, name=options.name or name, loaded=loaded, build_engine=lambda _: engine)


def _decide_on_images(options: ServeOptions, settings: Settings) -> ServeOptions:
    """Returns the options without a vision tower if this server never prepares a picture for it."""
    sees = can_prepare_images(settings)
    return structs.replace(options, engine_options=structs.replace(options.engine_options, keep_vision_tower=sees))


def _add_prefix_key(options: ServeOptions, settings: Settings) -> ServeOptions:
    """Returns the options with a key for prefixes on disk, if the server has a key file. Raises `KeyFileError`."""
    path = settings.encryption_key_path
    if path is None or options.engine_options.prefix_cache_disk is None:
        return options
    key = SecretBytes(open_sealer(path).derive_key("prefix cache"))
    return structs.replace(options, engine_options=structs.replace(options.engine_options, prefix_cache_key=key))


async def _plan_torch_model(
    options: ServeOptions, settings: Settings, on_status: OnStatus, spawn: SpawnWorker
) -> _ModelPlan:
    """Returns the plan of a model for a worker process, which alone imports torch."""
    timeouts = WorkerTimeouts(continue_within_s=settings.continue_within)
    folder, name = MODEL_DIR, EMBEDDED_MODEL_NAME
    template = None if options.chat_template is None else _load_template(options.chat_template)
    if options.model is not None:
        fetch = partial(fetch_checkpoint, offline=options.offline, revision=options.revision)
        folder = await asyncio.to_thread(fetch, options.model)
        name = default_name(options.model)
    elif options.revision is not None:
        raise ServeError("--revision requires a model of the hub")
    name = options.name or name
    checkpoint = inspect_checkpoint(folder)
    options = structs.replace(options, engine_options=await fetch_draft_model(options, folder))
    loaded = _load_format(folder, options, template)
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            remedy = "install torch and transformers, or use `make serve`"
            raise ServeError(f"the torch engine is not installed ({module}): {remedy}")
    return _ModelPlan(
        options=options,
        name=name,
        loaded=loaded,
        build_engine=lambda engine_options: ProcessEngine(
            folder, engine_options, timeouts=timeouts, spawn=spawn, on_status=partial(on_status, name)
        ),
        estimate=estimate_with_draft(checkpoint, options.engine_options),
        static_info=read_static_info(checkpoint, options.engine_options),
    )


def _load_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ServeError(f"--chat-template {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ServeError(f"--chat-template {file}: is not UTF-8") from None


def _load_format(folder: Path, options: ServeOptions, template: str | None) -> LoadedFormat:
    """Returns the model's format, with the operator's chat template if there is one."""
    if template is None:
        return detect.load_format(folder, options.dialect)
    try:
        loaded = detect.load_format(folder, options.dialect, template)
    except UnusableTemplateError as error:
        raise ServeError(f"--chat-template {options.chat_template}: {error}") from None
    return structs.replace(loaded, reason=f"{loaded.reason}; chat template {options.chat_template}")
