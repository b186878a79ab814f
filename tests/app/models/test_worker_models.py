"""Models in worker processes: one that dies or is unloaded disturbs no other; and adapters of one of several models."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from antiphon.app.adapters.updates import AdapterUpdates
from antiphon.app.errors import ApiError
from antiphon.app.models.memory_pool import GIB, ModelMemoryPool
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.adapters import WorkerAdapters
from antiphon.engine.process.messages import AdapterReport, Command, LoadAdapter, UnloadAdapter
from antiphon.engine.process.resident_memory import read_resident_bytes
from tests.app.models.fake_engines import GatedEngine
from tests.app.models.two_models import respond, two_worker_models, worker
from tests.app.server_helpers import wait_until
from tests.serving import RunningServer, scripted_registry, serve

SERVER = partial(serve, two_worker_models)


def test_worker_that_dies_disturbs_no_other_model(server: RunningServer) -> None:
    assert respond(server, "second")["status"] == "incomplete"
    other = worker(server, 1).pid
    assert respond(server, "first")["status"] == "incomplete"
    pid = worker(server, 0).pid
    assert pid is not None and pid != other
    os.kill(pid, signal.SIGKILL)
    assert respond(server, "second")["status"] == "incomplete"
    assert respond(server, "first")["status"] == "incomplete"
    assert worker(server, 0).pid not in (None, pid)


def test_memory_of_an_idle_model_is_given_back(server: RunningServer) -> None:
    assert respond(server, "second")["usage"]["output_tokens"] == 3
    pid = worker(server, 1).pid
    hosted = server.context.models.served[1].engine
    assert isinstance(hosted, OnDemandEngine) and pid is not None
    assert hosted.reserved_bytes == 1.75 * GIB, "a process, weights that are mapped, and the whole cache"
    assert 5 * 2**20 < (read_resident_bytes(pid) or 0) < GIB
    assert wait_until(30, lambda: hosted.load_state == "unloaded")
    assert worker(server, 1).pid is None and hosted.reserved_bytes == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert respond(server, "second")["usage"]["output_tokens"] == 3
    lines = httpx.get(f"{server.root}/metrics").text
    assert 'antiphon:generation_tokens_total{model_name="second"}' in lines


# Adapters


class EngineWithAdapters(GatedEngine):
    """Answers each command about an adapter at once. `loaded` holds the names of its adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.adapters = WorkerAdapters(EngineOptions(), self._receive)

    def _receive(self, command: Command) -> None:
        assert self.is_running, "an adapter was sent to an engine that is not loaded"
        assert isinstance(command, LoadAdapter | UnloadAdapter)
        (self.loaded.add if isinstance(command, LoadAdapter) else self.loaded.discard)(command.name)
        self.adapters.on_report(AdapterReport(command.request))


@pytest.fixture
def adapters(tmp_path: Path) -> tuple[AdapterUpdates, ModelRegistry, dict[str, EngineWithAdapters]]:
    engines = {name: EngineWithAdapters() for name in ("a", "b")}
    (model,) = scripted_registry([{"name": "any", "output": ["Yes."]}]).served
    host = ModelMemoryPool()
    registry = ModelRegistry(
        [
            structs.replace(model, names=(name,), engine=OnDemandEngine(engine, host, name, on_demand=True))
            for name, engine in engines.items()
        ]
    )
    for name in ("x", "y", "z"):
        (tmp_path / name).mkdir()
    return AdapterUpdates(registry, [str(tmp_path)]), registry, engines


async def test_an_adapter_names_its_base_model(adapters: Any) -> None:
    updates, registry, engines = adapters
    with pytest.raises(ApiError) as caught:
        await updates.load("sql", "x", "me", replace=False)
    assert (caught.value.status, caught.value.param) == (400, "base_model_name")
    with pytest.raises(ApiError) as caught:
        await updates.load("sql", "x", "me", replace=False, base="c")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert caught.value.param == "base_model_name" and "'a', 'b'" in caught.value.message
    await updates.load("sql", "x", "me", replace=False, base="b")
    assert (engines["a"].loaded, engines["b"].loaded, engines["a"].num_starts) == (set(), {"sql"}, 0)
    assert registry.find_model("sql").parent == "b"
    assert registry.find_model("sql").engine is registry.find_model("b").engine
    with pytest.raises(ApiError) as caught:
        await updates.load("late", "x", "me", replace=False, base="sql")
    assert (caught.value.status, caught.value.param) == (400, "base_model_name")


async def test_an_adapter_stays_with_its_base_model(adapters: Any) -> None:
    updates, registry, engines = adapters
    await updates.load("sql", "x", "me", replace=False, base="b")
    await updates.load("sql", "y", "me", replace=True)
    assert (registry.find_model("sql").root, engines["b"].loaded) == ("y", {"sql"})
    with pytest.raises(ApiError) as caught:
        await updates.load("sql", "z", "me", replace=True, base="a")
    assert (caught.value.status, caught.value.code) == (409, "adapter_already_loaded")
    await registry.find_model("b").engine.unload("test")
    await updates.unload("sql", "me")
    assert engines["b"].loaded == set() and registry.get_model("sql") is None
