"""`antiphon serve`: from the words of a command line to a running server, or to one line that says what is wrong."""

import asyncio
import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import uvloop
from msgspec import Struct, structs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app import banner, logs, server
from app.catalogue import Catalogue, ServedModel
from app.seals import SecretError
from app.settings import ANYWHERE, LOOPBACK, Settings, digest
from app.store import Store
from app.store.disk import StoreError
from app.store.open import open_store
from engine.embedded import MODEL_DIR
from engine.folder import inspect_folder
from engine.hub import fetch
from engine.protocol import Engine, EngineError
from engine.scripted import DEFAULT_INFO, ScriptedEngine, ScriptError, load_script
from engine.torch_engine import TorchEngine
from harmony import choose
from harmony.choose import DialectError, Loaded

EMBEDDED = "antiphon"
"""What the embedded model is called."""
PLAIN_SETTINGS = """host port hosts reasoning_as max_output_tokens drain store_days store_gib secret
    websocket media""".split()
"""What of a command line is a setting as it stands."""
ENGINE_OPTIONS = ("device", "context", "threads", "slots", "kv_gib", "quantize", "deterministic")
"""What of a wish goes to the engine, under the names of `engine.build.Options`."""


class Refusal(click.ClickException):
    """What cannot be done, in one line."""

    exit_code = 2


class Wish(Struct, frozen=True, kw_only=True):
    """Which model is to be served, as it was asked for."""

    source: str | None
    names: tuple[str, ...]
    engine: str
    script: Path | None
    dialect: str | None
    device: str | None
    context: int | None
    threads: int | None
    slots: int | None
    kv_gib: float | None
    quantize: str | None
    deterministic: bool
    offline: bool


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="antiphon")
def main() -> None:
    """Antiphon: a self-hosted server for the OpenAI Responses API."""


@main.command()
@click.argument("source", required=False)
@click.option("--name", "names", multiple=True, help="A further name that clients may ask for; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--api-key", "keys", multiple=True, envvar="ANTIPHON_API_KEY", help="Key to ask for; may be repeated.")
@click.option("--allow-host", "hosts", multiple=True, help="A further host name to be reached under.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without a key.")
@click.option("--offline", is_flag=True, help="Never ask the hub; take what is in the local cache.")
@click.option("--engine", type=click.Choice(["torch", "scripted"]), default="torch", show_default=True)
@click.option("--script", type=click.Path(path_type=Path), help="TOML file that the scripted engine plays.")
@click.option("--dialect", type=click.Choice(choose.NAMES), help="How the model writes; found out if left out.")
@click.option("--device", help="cpu, cuda, cuda:1, …; chosen if left out.")
@click.option("--context", type=click.IntRange(1), help="Tokens of context; at most the model's own.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of the engine; chosen if left out.")
@click.option("--slots", type=click.IntRange(1), help="Requests that run at once; the others wait.")
@click.option("--kv-gib", type=click.FloatRange(0, min_open=True), help="Memory for keys and values, in GiB.")
@click.option("--quantize", type=click.Choice(["int8"]), help="8-bit linear layers, on a CPU; left out: as they are.")
@click.option("--deterministic", is_flag=True, help="The same seed gives the same tokens, whatever else is running.")
@click.option(
    "--reasoning-as",
    type=click.Choice(["content", "summary", "both"]),
    default="content",
    show_default=True,
    help="How raw reasoning is told. Codex shows summaries only.",
)
@click.option(
    "--store",
    envvar="ANTIPHON_STORE",
    help="File that keeps responses, or `memory`; left out: one in your data folder.",
)
@click.option(
    "--secret",
    envvar="ANTIPHON_SECRET",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the secret that seals what clients keep, made if missing; left out: beside the store.",
)
@click.option("--store-days", default=30.0, show_default=True, type=click.FloatRange(0), help="How long they are kept.")
@click.option("--store-gib", default=4.0, show_default=True, type=click.FloatRange(0), help="How much of them is kept.")
@click.option("--websocket/--no-websocket", default=True, show_default=True, help="Responses over a WebSocket, too.")
@click.option(
    "--media",
    type=click.Choice(["placeholder", "refuse"]),
    default="placeholder",
    show_default=True,
    help="Images and files, which no model here takes in: name them in the prompt, or answer 400.",
)
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.option("--max-output-tokens", type=click.IntRange(1), help="For requests that set no limit.")
@click.option(
    "--drain", default=5.0, show_default=True, type=click.FloatRange(0), help="Seconds for open turns at the end."
)
def serve(**given: Any) -> None:
    """Serve SOURCE, a folder or a hub id; without one, the embedded model.

    A folder holds safetensors, config.json and tokenizer.json. A hub id (owner/name) is downloaded once.
    """
    chosen: dict[str, Any] = {name: given[name] for name in PLAIN_SETTINGS}
    settings = Settings(keys=tuple(digest(key) for key in given["keys"]), store=_store_file(given["store"]), **chosen)
    wish = Wish(**{name: given[name] for name in Wish.__struct_fields__})
    _check_bind(settings, insecure=given["insecure"])
    try:
        uvloop.run(_serve(wish, settings, given["log_format"]))
    except (EngineError, ScriptError, DialectError, StoreError, SecretError, server.BindError) as error:
        raise Refusal(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)


@main.command()
def dialects() -> None:
    """List the dialects: who writes so, and what of it is served."""
    screen = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("dialect", "models", "reasoning", "calls", "custom tools"):
        table.add_column(head, overflow="fold")
    for row in choose.overview():
        table.add_row(*map(escape, row))
    screen.print(table)


def _store_file(said: str | None) -> Path | None:
    """The file that keeps responses; None: they are kept in memory."""
    if said == "memory":
        return None
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(said).expanduser() if said else data / "antiphon" / "responses.db"


def _check_bind(settings: Settings, *, insecure: bool) -> None:
    """Whoever can reach an open server can use it: nobody beyond this machine does so by accident."""
    if settings.keys or insecure or settings.host in LOOPBACK or settings.host.startswith("127."):
        return
    where = "every network" if settings.host in ANYWHERE else settings.host
    raise Refusal(f"--host {settings.host} opens the server to {where}: give --api-key KEY, or say --insecure")


async def _serve(wish: Wish, settings: Settings, style: logs.Style) -> None:
    screen = banner.console()
    logs.configure(style)
    with server.bind(settings) as listener:  # first of all, so that a port in use is known at once
        store = open_store(settings)
        try:
            with banner.Loading(screen) as loading:
                await _run(wish, settings, store, listener, loading, style)
        finally:
            await store.close()


async def _run(
    wish: Wish, settings: Settings, store: Store, listener: socket.socket, loading: banner.Loading, style: logs.Style
) -> None:
    model, note = await _model(wish, loading.tell)
    loading.begin(model.names[0])
    catalogue = Catalogue([model])

    def ready(port: int) -> None:
        gc.freeze()  # what the server is made of stays: no request has to wait until it was gone through for garbage
        loading.done()
        banner.show(loading.screen, settings, catalogue, port, {model.names[0]: note})

    home = server.furnish(settings, catalogue, store=store)
    told = logs.json_teller() if style == "json" else partial(banner.tell, loading.screen)
    await server.run(home, listener, ready=ready, told=told)


async def _model(wish: Wish, told: Callable[[str], None]) -> tuple[ServedModel, str]:
    """The model, its engine not yet started, and a line about its dialect. `told` hears how the engine is."""
    if wish.engine == "scripted":
        engine, loaded, name = _scripted(wish)
    elif wish.script is not None:
        raise Refusal("--script goes with --engine scripted")
    else:
        engine, loaded, name = await _torch(wish, told)
    names = tuple(dict.fromkeys((name, *wish.names)))
    return ServedModel(names=names, engine=engine, format=loaded.format, created=int(time.time())), loaded.why


def _scripted(wish: Wish) -> tuple[Engine, Loaded, str]:
    if wish.script is None:
        raise Refusal("--engine scripted needs --script FILE")
    replies = load_script(wish.script)
    dialect = wish.dialect or "hermes"
    form = choose.bytes_format(dialect)
    info = structs.replace(DEFAULT_INFO, eos_ids=form.stop_ids[:1])
    engine = ScriptedEngine(replies, encode=form.encode, decode=form.decode, info=info)
    return engine, Loaded(form, f"dialect {dialect}: over bytes, for scripts"), "scripted"


async def _torch(wish: Wish, told: Callable[[str], None]) -> tuple[Engine, Loaded, str]:
    """The cheapest checks first: the folder, what is in it, its dialect. torch is imported by the engine's process."""
    folder, name = MODEL_DIR, EMBEDDED
    if wish.source is not None:
        folder = await asyncio.to_thread(fetch, wish.source, offline=wish.offline)
        name = _own_name(wish.source, folder)
    inspect_folder(folder)
    loaded = choose.load(folder, wish.dialect)
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise Refusal(f"the torch engine is not installed ({module}): pip install 'antiphon[torch]'")
    options = {option: value for option in ENGINE_OPTIONS if (value := getattr(wish, option))}
    return TorchEngine(folder, options, told=told), loaded, name


def _own_name(source: str, folder: Path) -> str:
    """A hub id as it is; a folder's last part."""
    return folder.resolve().name if Path(source).expanduser().exists() else source


if __name__ == "__main__":
    main()
