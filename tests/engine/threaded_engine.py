"""An engine whose worker is a thread instead of a process: same messages, but tests can access the core.

It also starts sooner: a process imports torch and transformers, which takes ten times as long as loading a small model.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable

from antiphon.engine.options import EngineOptions
from antiphon.engine.process.child.parent_connection import ParentConnection
from antiphon.engine.process.child.worker import EngineCore, load_core, serve_parent
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.messages import StartCommand

_LOAD_LOCK = threading.Lock()
"""Held while a core is loaded: transformers replaces functions of its modules meanwhile, for all threads. The thread of a
worker that was killed may still be loading when the next one starts."""


class ThreadWorker:
    """Serves a core from a thread named "engine". `kill` closes its socket: the thread ends after its step.

    The class is a `SpawnWorker`: `ProcessEngine(folder, options, spawn=ThreadWorker)` loads what a process would load.
    """

    pid = os.getpid()

    def __init__(self, worker_socket: socket.socket, load: Callable[[StartCommand], EngineCore] = load_core) -> None:
        self._socket = worker_socket
        self._thread = threading.Thread(target=self._serve, args=(load,), name="engine", daemon=True)
        self._thread.start()

    def _serve(self, load: Callable[[StartCommand], EngineCore]) -> None:
        def load_alone(start: StartCommand) -> EngineCore:
            with _LOAD_LOCK:
                return load(start)

        with self._socket:
            serve_parent(ParentConnection(self._socket), load_alone)

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # the thread has already ended
            self._socket.shutdown(socket.SHUT_RDWR)

    async def wait(self) -> str:
        await asyncio.to_thread(self._thread.join)
        return "the thread ended"


def build_threaded_engine(build_core: Callable[[], EngineCore], *, max_waiting: int = 256) -> ProcessEngine:
    """Returns an engine, not yet started, of the core that `build_core` returns."""
    return ProcessEngine(
        spawn=lambda worker_socket: ThreadWorker(worker_socket, lambda _: build_core()),
        options=EngineOptions(max_waiting=max_waiting),
    )
