"""Starts a server from the parsed options: the model, its engine, the store, and the HTTP server.

Importing this module takes half a second or more. An engine worker that was spawned before runs its own imports in
that time.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import uvloop
from msgspec import structs

from antiphon.app import server
from antiphon.app.adapters.served import check_adapter_options, describe_adapter
from antiphon.app.context import ServerContext, create_context
from antiphon.app.encoders.loading import create_encoders, default_model_name
from antiphon.app.encryption import KeyFileError
from antiphon.app.model_registry import EncoderModel, ModelRegistry, ServedModel
from antiphon.app.observability import log_config, startup
from antiphon.app.observability.access_log import AccessLog, console_format, json_format
from antiphon.app.observability.log_sink import LogSink, describe_dropped, open_missing_descriptors
from antiphon.app.remote.launch import create_remote_engine
from antiphon.app.scripted.replay import create_scripted_engine, record_engine
from antiphon.app.serve_options import ServeError, ServeOptions
from antiphon.app.settings import Settings
from antiphon.app.store.base import StoreError
from antiphon.app.store.factory import open_store
from antiphon.app.tls import TlsError, load_ssl_context
from antiphon.engine.adapters.modules import LoraModule
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.spawn import SpawnWorker
from antiphon.engine.protocol import Engine, EngineError
from antiphon.engine.scripted.engine import ScriptError
from antiphon.harmony import detect
from antiphon.harmony.detect import DialectError, LoadedFormat, UnusableTemplateError

EMBEDDED_MODEL_NAME = "antiphon"
"""Served name of the embedded model."""
GC_THRESHOLD = 20_000
"""Number of new objects that triggers a collection of the youngest generation: a millisecond of work."""


def run_until_signal(
    options: ServeOptions, settings: Settings, style: log_config.LogFormat, spawn: SpawnWorker
) -> None:
    """Serves until a signal arrives. `spawn` starts the engine's worker process. Raises `ServeError`."""
    open_missing_descriptors()
    sink = LogSink(describe=log_config.describe_dropped_json if style == "json" else describe_dropped)
    log_config.configure_logging(style, sink)
    try:
        uvloop.run(_run_server(options, settings, style, spawn, sink))
    except (EngineError, ScriptError, DialectError, StoreError, KeyFileError, TlsError, server.BindError) as error:
        raise ServeError(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        sink.close()


async def _run_server(
    options: ServeOptions, settings: Settings, style: log_config.LogFormat, spawn: SpawnWorker, sink: LogSink
) -> None:
    screen = startup.create_console(sink)
    display = startup.StartupLog(sink) if style == "json" else startup.StartupScreen(screen)
    _check_grpc(settings)
    load_ssl_context(settings)  # first, so that an unusable certificate fails immediately
    with server.bind_socket(settings) as listener:  # early, too, so that a port in use fails immediately
        store = open_store(settings)
        try:
            with display:
                model, note = await _create_model(options, settings, display.update, spawn)
                display.start(model.names[0])
                encoders = await create_encoders(options)
                registry = _create_registry(model, encoders, options.engine_options.lora_modules)
                context = create_context(settings, registry, store=store)
                access_log = AccessLog(json_format if style == "json" else console_format(screen), display.print_lines)
                try:
                    await server.run_server(
                        context,
                        listener,
                        on_ready=partial(_on_ready, display, context, note),
                        on_request_done=access_log.add_record,
                    )
                finally:
                    access_log.flush_lines()
        finally:
            await store.close()


def _check_grpc(settings: Settings) -> None:
    missing = [name for name in ("grpc", "grpc_health", "grpc_reflection") if find_spec(name) is None]
    if settings.grpc_port is not None and missing:
        raise ServeError(f"--grpc needs packages that are not installed ({missing[0]}): pip install 'antiphon[grpc]'")


def tune_gc() -> None:
    """Freezes start-up objects and raises the GC threshold, to keep collection pauses out of request latency.

    Start-up objects are never freed, and most objects that a request or a token creates are in no reference cycle.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def _on_ready(display: startup.StartupDisplay, context: ServerContext, note: str, port: int) -> None:
    tune_gc()
    notes = {model.names[0]: note for model in context.models.served}
    display.show_ready(context.settings, context.models, port, notes)
    if context.grpc_port is not None:
        display.show_grpc(startup.grpc_address(context.settings, context.grpc_port))


def _create_registry(model: ServedModel, encoders: list[EncoderModel], adapters: Iterable[LoraModule]) -> ModelRegistry:
    try:
        registry = ModelRegistry([model], encoders)
        for module in adapters:
            registry.add_adapter(describe_adapter(model, module.name, module.path))
    except ValueError as error:
        raise ServeError(f"{error}: each model needs a name of its own") from None
    return registry


async def _create_model(
    options: ServeOptions, settings: Settings, on_status: Callable[[str], None], spawn: SpawnWorker
) -> tuple[ServedModel, str]:
    """Returns the model and a line about its dialect. The engine is not started; `on_status` receives its status."""
    check_adapter_options(options)
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
        engine, loaded, name = await _create_torch_engine(options, on_status, spawn)
    else:
        template = None if options.chat_template is None else _read_template(options.chat_template)
        engine, loaded, name = await create_remote_engine(
            options, template, on_status, separate_owners=bool(settings.api_key_digests)
        )
    engine = record_engine(options, engine, loaded, name)
    names = tuple(dict.fromkeys((name, *options.served_model_names)))
    model = ServedModel(
        names=names, engine=engine, format=loaded.format, created=int(time.time()), folder=loaded.folder
    )
    return model, loaded.reason


async def _create_torch_engine(
    options: ServeOptions, on_status: Callable[[str], None], spawn: SpawnWorker
) -> tuple[Engine, LoadedFormat, str]:
    """Runs the cheapest checks first: the folder, its files, its dialect. Only the worker process imports torch."""
    folder, name = MODEL_DIR, EMBEDDED_MODEL_NAME
    template = None if options.chat_template is None else _read_template(options.chat_template)
    if options.model is not None:
        fetch = partial(fetch_checkpoint, offline=options.offline, revision=options.revision)
        folder = await asyncio.to_thread(fetch, options.model)
        name = default_model_name(options.model, folder)
    elif options.revision is not None:
        raise ServeError("--revision requires a model of the hub")
    inspect_checkpoint(folder)
    loaded = _load_format(folder, options, template)
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            remedy = "install torch and transformers, or use `make serve`"
            raise ServeError(f"the torch engine is not installed ({module}): {remedy}")
    return ProcessEngine(folder, options.engine_options, spawn=spawn, on_status=on_status), loaded, name


def _read_template(file: Path) -> str:
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
