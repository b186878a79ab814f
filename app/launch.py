"""From what was asked for to a running server: the model, its engine, the store, and the server around them.

To import this takes half a second or more, in which an engine's process that was begun before can import its own.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import uvloop
from msgspec import structs

from antiphon.app import server
from antiphon.app.context import ServerContext, create_context
from antiphon.app.encryption import KeyFileError
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.observability import log_config, startup
from antiphon.app.observability.access_log import AccessLog, console_format, json_format
from antiphon.app.serve_options import ServeError, ServeOptions
from antiphon.app.settings import Settings
from antiphon.app.store.factory import open_store
from antiphon.app.store.schema import StoreError
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.spawn import SpawnWorker
from antiphon.engine.protocol import Engine, EngineError
from antiphon.engine.scripted.engine import DEFAULT_INFO, ScriptedEngine, ScriptError, load_script
from antiphon.harmony import detect
from antiphon.harmony.detect import DialectError, LoadedFormat

EMBEDDED_MODEL_NAME = "antiphon"
"""What the embedded model is called."""
GC_THRESHOLD = 20_000
"""New objects after which garbage is looked for among them: a millisecond's work."""


def run_until_signal(
    options: ServeOptions, settings: Settings, style: log_config.LogFormat, spawn: SpawnWorker
) -> None:
    """Serve until a signal comes. `spawn` begins the engine's process. Raises `Refusal`."""
    try:
        uvloop.run(_run_server(options, settings, style, spawn))
    except (EngineError, ScriptError, DialectError, StoreError, KeyFileError, server.BindError) as error:
        raise ServeError(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)


async def _run_server(
    options: ServeOptions, settings: Settings, style: log_config.LogFormat, spawn: SpawnWorker
) -> None:
    screen = startup.create_console()
    log_config.configure_logging(style)
    with server.bind_socket(settings) as listener:  # first of all, so that a port in use is known at once
        store = open_store(settings)
        try:
            with startup.LoadingStatus(screen) as loading:
                model, note = await _create_model(options, loading.update, spawn)
                loading.start(model.names[0])
                home = create_context(settings, ModelRegistry([model]), store=store)
                journal = AccessLog(json_format if style == "json" else console_format(screen), loading.print_lines)
                try:
                    await server.run_server(
                        home,
                        listener,
                        on_ready=partial(_on_ready, loading, home, note),
                        on_request_done=journal.add_record,
                    )
                finally:
                    journal.flush_lines()
        finally:
            await store.close()


def tune_gc() -> None:
    """Look for less garbage. Nobody's answer is to wait until the server itself was gone through for it.

    What the server is made of stays, and most of what a request or a token leaves behind is in no cycle.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def _on_ready(loading: startup.LoadingStatus, home: ServerContext, note: str, port: int) -> None:
    tune_gc()
    loading.stop()
    notes = {model.names[0]: note for model in home.models.served}
    startup.show_banner(loading.screen, home.settings, home.models, port, notes)


async def _create_model(
    options: ServeOptions, told: Callable[[str], None], spawn: SpawnWorker
) -> tuple[ServedModel, str]:
    """The model, its engine not yet started, and a line about its dialect. `told` hears how the engine is."""
    if options.engine == "scripted":
        engine, loaded, name = _create_scripted_engine(options)
    elif options.script is not None:
        raise ServeError("--script goes with --engine scripted")
    else:
        engine, loaded, name = await _create_torch_engine(options, told, spawn)
    names = tuple(dict.fromkeys((name, *options.served_model_names)))
    return ServedModel(names=names, engine=engine, format=loaded.format, created=int(time.time())), loaded.reason


def _create_scripted_engine(options: ServeOptions) -> tuple[Engine, LoadedFormat, str]:
    if options.script is None:
        raise ServeError("--engine scripted needs --script FILE")
    replies = load_script(options.script)
    dialect = options.dialect or "hermes"
    form = detect.bytes_format(dialect)
    info = structs.replace(DEFAULT_INFO, eos_ids=form.stop_ids[:1])
    engine = ScriptedEngine(replies, encode=form.encode, decode=form.decode, info=info)
    return engine, LoadedFormat(form, f"dialect {dialect}: over bytes, for scripts"), "scripted"


async def _create_torch_engine(
    options: ServeOptions, told: Callable[[str], None], spawn: SpawnWorker
) -> tuple[Engine, LoadedFormat, str]:
    """The cheapest checks first: the folder, what is in it, its dialect. torch is imported by the engine's process."""
    folder, name = MODEL_DIR, EMBEDDED_MODEL_NAME
    if options.model is not None:
        folder = await asyncio.to_thread(fetch_checkpoint, options.model, offline=options.offline)
        name = _default_model_name(options.model, folder)
    inspect_checkpoint(folder)
    loaded = detect.load_format(folder, options.dialect)
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise ServeError(f"the torch engine is not installed ({module}): pip install 'antiphon[torch]'")
    return ProcessEngine(folder, options.engine_options, spawn=spawn, on_status=told), loaded, name


def _default_model_name(source: str, folder: Path) -> str:
    """A hub id as it is; a folder's last part."""
    return folder.resolve().name if Path(source).expanduser().exists() else source
