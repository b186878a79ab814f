"""A worker process that cannot start is never told as the fault of a request: no such path ends in a 4xx.

`tests/app/sandbox/test_sandbox_process.py` has the same for the processes of grammars and of templates.
"""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from antiphon.app.models.memory_pool import ModelMemoryPool, PoolTimeouts
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.spawn import WorkerProcess
from tests.app.server_helpers import FAKE_CORE_FACTORY, WORKER_TIMEOUTS, process_engine_registry, wait_until
from tests.engine.embeddings.tiny_repositories import save_tokenizer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry, serve

pytestmark = pytest.mark.processes

ENCODER_FACTORY = "tests.engine.embeddings.fake_encoder:build_fake_encoder"


class RefusingSpawn:
    """Starts workers until `refuses` is true; then the system has no process for another one."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses

    def __call__(self, worker_end: socket.socket) -> WorkerProcess:
        if self.refuses:
            worker_end.close()
            raise OSError(11, "Resource temporarily unavailable")
        return WorkerProcess(worker_end)


BROKEN: dict[str, tuple[str, bool]] = {
    "no process": (FAKE_CORE_FACTORY, True),
    "no module": ("tests.engine.nowhere:build", False),
    "no function": ("tests.engine.fake_core:nothing", False),
}


def on_demand(engine: ProcessEngine) -> ModelRegistry:
    host = ModelMemoryPool(timeouts=PoolTimeouts(retry_delay_s=0.05))
    (model,) = process_engine_registry().served
    return ModelRegistry([structs.replace(model, engine=OnDemandEngine(engine, host, "chatter", on_demand=True))])


@pytest.mark.parametrize("name", BROKEN)
def test_engine_that_cannot_start_is_the_servers_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory, refuses = BROKEN[name]
    engine = ProcessEngine(
        "", EngineOptions(), core_factory=factory, timeouts=WORKER_TIMEOUTS, spawn=RefusingSpawn(refuses=refuses)
    )
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    requests: dict[str, dict[str, Any]] = {
        "/responses": {"input": "Hi"},
        "/chat/completions": chat,
        "/completions": {"prompt": "Hi"},
        "/messages": {**chat, "max_tokens": 9},
    }
    with serve(on_demand(engine)) as server:
        for path, fields in requests.items():
            reply = httpx.post(f"{server.url}{path}", json={"model": "chatter", **fields}, timeout=HANG_TIMEOUT_S)
            assert reply.status_code == 503, (path, reply.text)
            assert "nowhere" not in reply.text and "Resource" not in reply.text


@pytest.mark.parametrize("kind", ["engine", "encoder"])
def test_worker_that_cannot_start_again_is_the_servers_fault(kind: str, tmp_path: Path) -> None:
    spawn = RefusingSpawn(refuses=False)
    save_tokenizer(tmp_path)
    factory = FAKE_CORE_FACTORY if kind == "engine" else ENCODER_FACTORY
    timeouts = structs.replace(WORKER_TIMEOUTS, wait_timeout=0.5)
    engine = ProcessEngine(tmp_path, EngineOptions(), core_factory=factory, timeouts=timeouts, spawn=spawn)
    (model,) = process_engine_registry().served
    if kind == "engine":
        registry = ModelRegistry([structs.replace(model, engine=engine)])
        path, body = "/responses", {"model": "chatter", "input": "Hi", "max_output_tokens": 2}
    else:
        encoder = EncoderModel(
            names=("fake",), kind="embedding", engine=engine, tokenizer=TextTokenizer(tmp_path), created=1_700_000_000
        )
        registry = ModelRegistry(scripted_registry([{"name": "any", "output": ["Yes."]}]).served, [encoder])
        path, body = "/embeddings", {"model": "fake", "input": [1, 2]}
    with serve(registry) as server:
        assert httpx.post(f"{server.url}{path}", json=body, timeout=HANG_TIMEOUT_S).status_code == 200
        assert engine.pid is not None
        spawn.refuses = True
        os.kill(engine.pid, signal.SIGKILL)
        assert wait_until(60, lambda: engine.unready_reason() is not None)
        reply = httpx.post(f"{server.url}{path}", json=body, timeout=HANG_TIMEOUT_S)
        assert reply.status_code >= 500, reply.text
        spawn.refuses = False
