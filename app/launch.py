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
from antiphon.app.context import House
from antiphon.app.encryption import SecretError
from antiphon.app.model_registry import Catalogue, ServedModel
from antiphon.app.observability import log_config, startup
from antiphon.app.observability.access_log import Journal, for_machines, for_people
from antiphon.app.serve_options import Refusal, Wish
from antiphon.app.settings import Settings
from antiphon.app.store.database import StoreError
from antiphon.app.store.factory import open_store
from antiphon.engine.checkpoint.files import inspect_folder
from antiphon.engine.checkpoint.hub import fetch
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.process.client import TorchEngine
from antiphon.engine.process.spawn import Spawn
from antiphon.engine.protocol import Engine, EngineError
from antiphon.engine.scripted.engine import DEFAULT_INFO, ScriptedEngine, ScriptError, load_script
from antiphon.harmony import detect
from antiphon.harmony.detect import DialectError, Loaded

EMBEDDED = "antiphon"
"""What the embedded model is called."""
ENGINE_OPTIONS = ("device", "context", "threads", "compile", "slots", "kv_gib", "kv_dtype", "quantize", "deterministic")
"""What of a wish goes to the engine, under the names of `engine.builder.Options`."""
YOUNG = 20_000
"""New objects after which garbage is looked for among them: a millisecond's work."""


def launch(wish: Wish, settings: Settings, style: log_config.Style, spawn: Spawn) -> None:
    """Serve until a signal comes. `spawn` begins the engine's process. Raises `Refusal`."""
    try:
        uvloop.run(_serve(wish, settings, style, spawn))
    except (EngineError, ScriptError, DialectError, StoreError, SecretError, server.BindError) as error:
        raise Refusal(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(wish: Wish, settings: Settings, style: log_config.Style, spawn: Spawn) -> None:
    screen = startup.console()
    log_config.configure(style)
    with server.bind(settings) as listener:  # first of all, so that a port in use is known at once
        store = open_store(settings)
        try:
            with startup.Loading(screen) as loading:
                model, note = await _model(wish, loading.tell, spawn)
                loading.begin(model.names[0])
                home = server.furnish(settings, Catalogue([model]), store=store)
                journal = Journal(for_machines if style == "json" else for_people(screen), loading.write)
                try:
                    await server.run(home, listener, ready=partial(_ready, loading, home, note), told=journal.tell)
                finally:
                    journal.flush()
        finally:
            await store.close()


def settle() -> None:
    """Look for less garbage. Nobody's answer is to wait until the server itself was gone through for it.

    What the server is made of stays, and most of what a request or a token leaves behind is in no cycle.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


def _ready(loading: startup.Loading, home: House, note: str, port: int) -> None:
    settle()
    loading.done()
    notes = {model.names[0]: note for model in home.catalogue.models}
    startup.show(loading.screen, home.settings, home.catalogue, port, notes)


async def _model(wish: Wish, told: Callable[[str], None], spawn: Spawn) -> tuple[ServedModel, str]:
    """The model, its engine not yet started, and a line about its dialect. `told` hears how the engine is."""
    if wish.engine == "scripted":
        engine, loaded, name = _scripted(wish)
    elif wish.script is not None:
        raise Refusal("--script goes with --engine scripted")
    else:
        engine, loaded, name = await _torch(wish, told, spawn)
    names = tuple(dict.fromkeys((name, *wish.names)))
    return ServedModel(names=names, engine=engine, format=loaded.format, created=int(time.time())), loaded.why


def _scripted(wish: Wish) -> tuple[Engine, Loaded, str]:
    if wish.script is None:
        raise Refusal("--engine scripted needs --script FILE")
    replies = load_script(wish.script)
    dialect = wish.dialect or "hermes"
    form = detect.bytes_format(dialect)
    info = structs.replace(DEFAULT_INFO, eos_ids=form.stop_ids[:1])
    engine = ScriptedEngine(replies, encode=form.encode, decode=form.decode, info=info)
    return engine, Loaded(form, f"dialect {dialect}: over bytes, for scripts"), "scripted"


async def _torch(wish: Wish, told: Callable[[str], None], spawn: Spawn) -> tuple[Engine, Loaded, str]:
    """The cheapest checks first: the folder, what is in it, its dialect. torch is imported by the engine's process."""
    folder, name = MODEL_DIR, EMBEDDED
    if wish.source is not None:
        folder = await asyncio.to_thread(fetch, wish.source, offline=wish.offline)
        name = _own_name(wish.source, folder)
    inspect_folder(folder)
    loaded = detect.load(folder, wish.dialect)
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise Refusal(f"the torch engine is not installed ({module}): pip install 'antiphon[torch]'")
    options = {option: value for option in ENGINE_OPTIONS if (value := getattr(wish, option)) is not None}
    return TorchEngine(folder, options, spawn=spawn, told=told), loaded, name


def _own_name(source: str, folder: Path) -> str:
    """A hub id as it is; a folder's last part."""
    return folder.resolve().name if Path(source).expanduser().exists() else source
