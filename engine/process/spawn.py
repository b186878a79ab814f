"""A process of its own for the engine: how it is begun, how it is ended for sure, and what its end means in words."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

BOOTSTRAP = """
import sys
from antiphon.engine.process.worker import run_worker
run_worker(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
"""
"""The child runs the code that its parent runs, and nothing from the folder that somebody happens to work in."""

DEFAULT_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The child's environment, where ours says nothing about it. torch asks Linux for huge pages for large tensors: the
logits of 64 requests are 40 MB, new in each step; to get them in pages of 4 KiB takes as long as to compute them."""


class WorkerHandle(Protocol):
    """Where the far side of an engine runs."""

    pid: int

    def kill(self) -> None:
        """End it, whatever it is doing."""
        ...

    async def wait(self) -> str:
        """Return when nothing is left of it: how it ended, in a few words."""
        ...


SpawnWorker = Callable[[socket.socket], WorkerHandle]
"""Begins a far side, and gives it its end of a socket pair. Raises ``OSError``."""


class WorkerProcess:
    """Runs ``engine.process.worker`` in a new process that inherits ``far``, one end of a socket pair, only.

    ``early``: what it imports until it is given the end that it is to serve, which comes through ``far`` then.

    A session of its own keeps a terminal's signals from it. It must be begun in a thread that lives as long as the
    engine: Linux takes that thread's end for the parent's.
    """

    def __init__(self, worker_end: socket.socket, *preload: str) -> None:
        with worker_end:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", BOOTSTRAP, str(worker_end.fileno()), str(os.getpid()), *preload],
                pass_fds=(worker_end.fileno(),),
                env=DEFAULT_ENVIRONMENT | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is the server's
                start_new_session=True,
            )
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()

    def reap(self) -> str:
        """Wait until nothing is left of it: how it ended."""
        return describe_exit(self._process.wait())

    async def wait(self) -> str:
        """See :class:`Host`."""
        return await asyncio.to_thread(self.reap)


class PrespawnedWorker:
    """A process that is begun before it is known what it is to do, and imports ``module`` meanwhile.

    It is the far side of the first engine that asks for one; every later one gets a process of its own. Use it as a
    context: what nobody asked for is ended.
    """

    def __init__(self, module: str) -> None:
        self._control, far = socket.socketpair()
        self._worker: WorkerProcess | None = WorkerProcess(far, module)
        self.pid = self._worker.pid

    def __call__(self, far: socket.socket) -> WorkerHandle:
        """See :data:`Spawn`."""
        first, self._worker = self._worker, None
        if first is None:
            return WorkerProcess(far)
        with self._control:
            try:
                socket.send_fds(self._control, [b"."], [far.fileno()])
            except OSError:  # it has died
                self._kill_and_reap(first)
                return WorkerProcess(far)
        far.close()
        return first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._control.close()
            self._kill_and_reap(self._worker)

    @staticmethod
    def _kill_and_reap(process: WorkerProcess) -> None:
        process.kill()
        process.reap()


def describe_exit(code: int) -> str:
    """What an exit code says."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL), probably because memory ran out"
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    return f"exit status {code}"
