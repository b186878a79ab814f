"""Fixtures for every test: real servers on real sockets, over a scripted engine."""

import atexit
import gc
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx2._config import DEFAULT_TIMEOUT_CONFIG as HTTPX2_TIMEOUT_CONFIG

from tests.postgres_server import PostgresServer, run_postgres
from tests.progress import HANG_TIMEOUT_S
from tests.syntax import ROOT

if TYPE_CHECKING:
    from antiphon.app.store.sqlite.store import MemoryStore
    from tests.serving import RunningServer

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

StartServer = Callable[..., "RunningServer"]


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
    """Checks that every turn which ended in this process had a cause."""
    yield
    runtime = sys.modules.get("tests.server_runtime")
    assert runtime is None or not runtime.turns_without_ending, "turns that have ended without a cause"


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers: `start_server(script, **settings)`. All are stopped when the test ends."""
    from tests.serving import serve

    with ExitStack() as stack:

        def start(*args: Any, **settings: Any) -> "RunningServer":
            running: AbstractContextManager[RunningServer] = serve(*args, **settings)
            return stack.enter_context(running)

        yield start


@pytest.fixture
async def memory_store() -> AsyncIterator["MemoryStore"]:
    from antiphon.app.store.sqlite.store import MemoryStore

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


def start_module_server(request: pytest.FixtureRequest) -> AbstractContextManager["RunningServer"]:
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
def server(request: pytest.FixtureRequest) -> Iterator["RunningServer"]:
    """The server that all tests of a module share. The module defines `SERVER`, a call of `serve` without arguments.

    For example: `SERVER = partial(serve, SCRIPT, api_keys=("sk-test",))`. With `SERVERS`, calls by name, each test runs once with each server.
    """
    with start_module_server(request) as running:
        yield running


@pytest.fixture
def fresh_server(request: pytest.FixtureRequest) -> Iterator["RunningServer"]:
    """A `server` that each test has for itself. A module where all tests need one says `server = fresh_server`."""
    with start_module_server(request) as running:
        yield running


@pytest.fixture
def client(server: "RunningServer") -> Iterator[Any]:
    """The SDK of OpenAI for `server`, with its first key, which never retries."""
    from openai import OpenAI

    with OpenAI(base_url=server.url, api_key=server.first_key, max_retries=0, timeout=HANG_TIMEOUT_S) as sdk:
        yield sdk
