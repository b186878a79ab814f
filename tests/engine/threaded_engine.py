"""The engine with its far side in a thread instead of a process: the same messages, and a core that a test can reach."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable

from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.worker import EngineCore, ParentConnection, serve_parent


class Thread:
    """Serves a core from a thread named "engine". To kill it is to close its line: it ends after its step."""

    pid = os.getpid()

    def __init__(self, far: socket.socket, build: Callable[[], EngineCore]) -> None:
        self._far = far
        self._thread = threading.Thread(target=self._work, args=(build,), name="engine", daemon=True)
        self._thread.start()

    def _work(self, build: Callable[[], EngineCore]) -> None:
        with self._far:
            serve_parent(ParentConnection(self._far), lambda _: build())

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._far.shutdown(socket.SHUT_RDWR)

    async def wait(self) -> str:
        await asyncio.to_thread(self._thread.join)
        return "the thread ended"


def threaded(build: Callable[[], EngineCore], *, queue: int = 256) -> ProcessEngine:
    """An engine, not yet started, of the core that ``build`` makes."""
    return ProcessEngine(spawn=lambda far: Thread(far, build), options=EngineOptions(max_waiting=queue))
