"""Helpers for tests that start server processes: a free port, a wait with a limit, an engine on a fake core."""

import socket
import time
from collections.abc import Callable
from typing import Any

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.spawn import SpawnWorker, WorkerProcess
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.harmony.detection.detect import bytes_format

FAKE_CORE_FACTORY = "tests.engine.fake_core:build_fake_core"
WORKER_TIMEOUTS = WorkerTimeouts(step_timeout=2.0, min_restart_delay=0.01, max_restart_delay=0.5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until(seconds: float, condition: Callable[[], object]) -> bool:
    """Polls the condition. Returns whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def process_engine_registry(
    core_factory: str = FAKE_CORE_FACTORY,
    folder: str = "",
    on_status: Callable[[str], None] = lambda _: None,
    spawn: SpawnWorker = WorkerProcess,
    **options: Any,
) -> ModelRegistry:
    """Returns a registry of one model, `chatter`, whose engine core runs in a worker process."""
    engine = ProcessEngine(
        folder,
        EngineOptions(**options),
        core_factory=core_factory,
        timeouts=WORKER_TIMEOUTS,
        on_status=on_status,
        spawn=spawn,
    )
    model_format = bytes_format("hermes")
    return ModelRegistry([ServedModel(names=("chatter",), engine=engine, format=model_format, created=1_700_000_000)])
