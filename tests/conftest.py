"""Fixtures for every test: real servers on real sockets, over a scripted engine."""

import atexit
import functools
import gc
import inspect
import os
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx2._config import DEFAULT_TIMEOUT_CONFIG as HTTPX2_TIMEOUT_CONFIG

from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.turn import Turn
from tests.postgres_server import PostgresServer, run_postgres
from tests.progress import HANG_TIMEOUT_S
from tests.route_signatures import share_signatures
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="antiphon-data-")
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
"""No test opens the store of the user, which another version of the server may have created."""

os.environ["PYTHONPATH"] = str(ROOT)
"""Worker processes that tests start import their engine core from `tests.engine.fake_core`."""

for name in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, name, HANG_TIMEOUT_S)
    setattr(HTTPX2_TIMEOUT_CONFIG, name, HANG_TIMEOUT_S)
"""Calls of httpx without a timeout of their own, and those of httpx2 in the examples of pages. Their default of 5 seconds decided results on a busy machine."""

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
"""Several processes of tests share the cores: a thread of torch that waits for the others gives its core away."""

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Tests fork processes that only run another program, while gRPC's threads run: its handlers broke these processes."""

pytest_plugins = ("tests.skip_report",)

create_default_context = ssl.create_default_context


@functools.cache
def create_context_once(cafile: str) -> ssl.SSLContext:
    return create_default_context(cafile=cafile)


def create_shared_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Creates a TLS context, or returns the one with the same root certificates.

    Reading them takes longer than a request over loopback, and HTTP clients read them even for a plain `http:` URL.
    """
    is_shared = not args and options.keys() == {"cafile"}
    return create_context_once(**options) if is_shared else create_default_context(*args, **options)


ssl.create_default_context = create_shared_context

share_signatures()

StartServer = Callable[..., RunningServer]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collections, and keeps later ones from visiting what exists then.

    The modules and the tests are millions of objects that stay to the end. Visiting them takes a third of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def check_endings() -> Iterator[None]:
    """Checks that every turn which ends in this process has a cause, whichever test it belongs to."""
    without_ending: list[str] = []
    on_turn_end = TurnManager._on_turn_end

    def check_ending(self: TurnManager, model: Any, turn: Turn, *parts: Any) -> None:
        if turn.stats.ending is None or turn.stats.times.ended is None:
            without_ending.append(turn.log.id)
        on_turn_end(self, model, turn, *parts)

    TurnManager._on_turn_end = check_ending  # type: ignore[method-assign]
    yield
    assert not without_ending, f"turns that have ended without a cause: {without_ending}"


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers: `start_server(script, **settings)`. All are stopped when the test ends."""
    with ExitStack() as stack:

        def start(*args: Any, **settings: Any) -> RunningServer:
            running: AbstractContextManager[RunningServer] = serve(*args, **settings)
            return stack.enter_context(running)

        yield start


@pytest.fixture
async def memory_store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server. Tests create databases in it. Skips the test where PostgreSQL is not installed."""
    with run_postgres() as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of a module that defines `SERVERS` with each of them in the place of `SERVER`."""
    servers = getattr(metafunc.module, "SERVERS", None)
    if servers and "server" in metafunc.fixturenames:
        metafunc.parametrize("server", servers.values(), ids=servers, indirect=True)


def start_module_server(request: pytest.FixtureRequest) -> AbstractContextManager[RunningServer]:
    """Starts the server of a test's module. A parameter that `SERVER` lacks is the fixture of this name."""
    start = getattr(request, "param", None) or request.module.SERVER
    required = [
        name
        for name, parameter in inspect.signature(start).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    running: AbstractContextManager[RunningServer] = start(**{name: request.getfixturevalue(name) for name in required})
    return running


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """The server that all tests of a module share. The module defines `SERVER`, a call of `serve` without arguments.

    For example: `SERVER = partial(serve, SCRIPT, api_keys=("sk-test",))`. With `SERVERS`, calls by name, each test runs once with each server.
    """
    with start_module_server(request) as running:
        yield running


@pytest.fixture
def fresh_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A `server` that each test has for itself. A module where all tests need one says `server = fresh_server`."""
    with start_module_server(request) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    """The SDK of OpenAI for `server`, with its first key, which never retries."""
    from openai import OpenAI

    with OpenAI(base_url=server.url, api_key=server.first_key, max_retries=0, timeout=HANG_TIMEOUT_S) as sdk:
        yield sdk
