"""A real server on a loopback socket, in a thread of its own, for tests of whole requests."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import uvloop
from msgspec import Struct

from antiphon.app.context import ServerContext, create_context
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.application import build_app
from antiphon.app.main.server import AntiphonServer
from antiphon.app.options.api_keys import ApiKey, key_digest, plain_key
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.store.factory import open_store
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, load_script, parse_script
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.format import ModelFormat
from tests.progress import wait_with_progress
from tests.server_runtime import prepare_process

prepare_process()

Script = Path | Sequence[dict[str, Any]]
WrapApp = Callable[[AsgiApp], AsgiApp]
"""Wraps the whole application, for example in a recorder."""


def _unwrapped(app: AsgiApp) -> AsgiApp:
    return app


class RunningServer(Struct):
    """A running server and its internals."""

    url: str
    """Base URL for clients. Ends in `/v1`."""
    port: int
    context: ServerContext
    access_records: list[AccessRecord]
    """Requests that have ended, in the order of their ends."""
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    """Begins the shutdown, as SIGTERM does."""
    first_key: str = "none"
    """The first of `api_keys` that is plain text."""

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
    model_format: ModelFormat | None = None,
    names: tuple[str, ...] = ("scripted",),
    max_model_len: int = 131_072,
    info: EngineInfo | None = None,
    **engine: Any,
) -> ModelRegistry:
    """Returns a registry of one model that replays `script`: a TOML file, or its `[[reply]]` tables as dicts.

    `model_format` takes the place of a new one of `dialect`, which takes longer to build than a short turn to run.
    """
    replies = load_script(script) if isinstance(script, Path) else parse_script({"reply": list(script)})
    model_format = model_format or bytes_format(dialect)
    info = info or EngineInfo(
        max_model_len=max_model_len, vocab_size=262_144, device="none", eos_ids=model_format.stop_ids[:1]
    )
    player = ScriptedEngine(replies, encode=model_format.encode, decode=model_format.decode, info=info, **engine)
    return ModelRegistry([ServedModel(names=names, engine=player, format=model_format, created=1_700_000_000)])


@contextmanager
def serve(
    models: ModelRegistry | Callable[[], ModelRegistry] | Script,
    *,
    api_keys: tuple[str | ApiKey, ...] = (),
    timeouts: TurnTimeouts = TurnTimeouts(),  # noqa: B008  # it is frozen
    wrap_app: WrapApp = _unwrapped,
    file_store: bool = False,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serves models, or a script, on a free port of 127.0.0.1 in a thread.

    `api_keys` are plain text, or have owners and limits. `file_store` stores responses in a temporary SQLite file, which ends with the server;
    `store_file=PATH`, like all other settings, is passed on.
    """
    if not isinstance(models, ModelRegistry):
        models = models() if callable(models) else scripted_registry(models)
    with ExitStack() as stack:
        if file_store:
            folder = stack.enter_context(TemporaryDirectory(prefix="antiphon-store-"))
            settings["store_file"] = Path(folder) / "responses.db"
        keys = tuple(key if isinstance(key, ApiKey) else plain_key(key_digest(key)) for key in api_keys)
        chosen = Settings(port=0, fixed_keys=keys, **{"shutdown_timeout": 0.2, **settings})
        thread = _ServerThread(models, chosen, timeouts, wrap_app)
        thread.start()
        stack.callback(thread.stop)
        running = thread.wait_started()
        running.first_key = next((key for key in api_keys if isinstance(key, str)), "none")
        yield running


def on_both_stores(*args: Any, **settings: Any) -> dict[str, Callable[[], AbstractContextManager[RunningServer]]]:
    """Returns the `SERVERS` of a module whose tests run with responses in memory and in a file: `on_both_stores(serve, SCRIPT)`."""
    return {"memory": partial(*args, **settings), "file": partial(*args, file_store=True, **settings)}


class _ServerThread:
    """A server in a thread of its own, with its own event loop. An error in the thread is raised in the test."""

    def __init__(self, models: ModelRegistry, settings: Settings, timeouts: TurnTimeouts, wrap_app: WrapApp) -> None:
        self._models, self._settings, self._timeouts, self._wrap_app = models, settings, timeouts, wrap_app
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._started = threading.Event()
        self._running: RunningServer | None = None
        self._server: AntiphonServer | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def wait_started(self) -> RunningServer:
        """Returns the running server. Raises the error that prevented its start."""
        wait_with_progress(lambda: self._started.is_set() or not self._thread.is_alive(), "the server did not start")
        self._raise_error()
        assert self._running is not None
        return self._running

    def stop(self) -> None:
        """Stops the server and waits for the thread. Raises the thread's error."""
        self._request_stop()
        wait_with_progress(lambda: not self._thread.is_alive(), "the server did not stop")
        self._raise_error()

    def _request_stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        store = open_store(self._settings)
        try:
            await self._serve_with(store)
        finally:
            for model in self._models.all_models:
                await model.engine.close()
            await store.close()

    async def _serve_with(self, store: ResponseStore) -> None:
        access_records: list[AccessRecord] = []
        context = create_context(self._settings, self._models, self._timeouts, store=store)

        def on_ready(port: int) -> None:
            self._running = RunningServer(
                url=f"http://127.0.0.1:{port}/v1",
                port=port,
                context=context,
                access_records=access_records,
                loop=asyncio.get_running_loop(),
                stop=self._request_stop,
            )
            self._started.set()

        await asyncio.gather(*(model.engine.start() for model in self._models.all_models))
        app = build_app(context, access_records.append)
        self._server = AntiphonServer(context, app, on_ready, self._wrap_app(app))
        with bind_socket(self._settings) as listener:
            await self._server.serve([listener])


def read_until_ready(log: TextIO) -> dict[str, Any]:
    """Reads the JSON log of a starting server up to the line `ready`, which it returns, or fails with what it read."""
    lines: list[str] = []
    for line in log:
        lines.append(line)
        record: dict[str, Any] = json.loads(line)
        if record["event"] == "ready":
            return record
    raise AssertionError(f"the server did not start: {lines}")
