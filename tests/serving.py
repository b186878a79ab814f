"""A real server on a loopback socket, in a thread of its own, for tests that need the whole way through."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct

from antiphon.app.context import ServerContext, create_context
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.observability.access_log import AccessRecord
from antiphon.app.server import AntiphonServer, bind_socket, build_app
from antiphon.app.settings import Settings, key_digest
from antiphon.app.store.factory import open_store
from antiphon.app.turns.turn import TurnTimeouts
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, load_script, parse_script
from antiphon.harmony.detect import bytes_format

Script = Path | Sequence[dict[str, Any]]
WrapApp = Callable[[AsgiApp], AsgiApp]
"""Something to put around the whole application, such as a recorder."""


def _bare(app: AsgiApp) -> AsgiApp:
    return app


class RunningServer(Struct):
    """A running server. `lines` are the requests that are over."""

    url: str
    """Ends in `/v1`, as clients want it."""
    port: int
    context: ServerContext
    access_records: list[AccessRecord]
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    """Tells the server to go, as a signal would."""

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def engine(self) -> Any:
        return self.context.models.served[0].engine


def scripted_registry(
    script: Script,
    *,
    dialect: str = "hermes",
    names: tuple[str, ...] = ("scripted",),
    info: EngineInfo | None = None,
    **engine: Any,
) -> ModelRegistry:
    """One model that replays `script`: a TOML file, or its `[[reply]]` tables as dicts."""
    replies = load_script(script) if isinstance(script, Path) else parse_script({"reply": list(script)})
    form = bytes_format(dialect)
    info = info or EngineInfo(max_model_len=131_072, vocab_size=262_144, device="none", eos_ids=form.stop_ids[:1])
    player = ScriptedEngine(replies, encode=form.encode, decode=form.decode, info=info, **engine)
    return ModelRegistry([ServedModel(names=names, engine=player, format=form, created=1_700_000_000)])


@contextmanager
def serve(
    what: ModelRegistry | Script,
    *,
    api_keys: tuple[str, ...] = (),
    timeouts: TurnTimeouts | None = None,
    around: WrapApp = _bare,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve a catalogue, or a script, on a free port of 127.0.0.1. `api_keys` in the clear; other settings by name."""
    catalogue = what if isinstance(what, ModelRegistry) else scripted_registry(what)
    chosen = Settings(
        port=0, api_key_digests=tuple(key_digest(key) for key in api_keys), **{"shutdown_timeout": 0.2, **settings}
    )
    started = threading.Event()
    box: dict[str, Any] = {}
    life = partial(_serve, catalogue, chosen, timeouts, around, box, started)
    thread = threading.Thread(target=_run, args=(life, box, started), name="server", daemon=True)
    thread.start()
    assert started.wait(30), "the server did not start"
    if "error" in box:
        raise box["error"]
    served: RunningServer = box["served"]
    try:
        yield served
    finally:
        box["server"].should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
    if "error" in box:
        raise box["error"]


def _run(life: Callable[[], Coroutine[Any, Any, None]], box: dict[str, Any], started: threading.Event) -> None:
    try:
        uvloop.run(life())
    except BaseException as error:  # noqa: BLE001 - handed to the test
        box["error"] = error
    finally:
        started.set()


async def _serve(
    catalogue: ModelRegistry,
    settings: Settings,
    timeouts: TurnTimeouts | None,
    around: WrapApp,
    box: dict[str, Any],
    started: threading.Event,
) -> None:
    store = open_store(settings)
    home, lines = create_context(settings, catalogue, timeouts, store), list[AccessRecord]()

    def ready(port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        loop, stop = asyncio.get_running_loop(), partial(setattr, box["server"], "should_exit", True)
        box["served"] = RunningServer(url=url, port=port, context=home, access_records=lines, loop=loop, stop=stop)
        started.set()

    for model in catalogue.served:
        await model.engine.start()
    try:
        gate = build_app(home, lines.append)
        server = box["server"] = AntiphonServer(home, gate, ready, around(gate))
        with bind_socket(settings) as listener:
            await server.serve([listener])
    finally:
        for model in catalogue.served:
            await model.engine.close()
        await store.close()
