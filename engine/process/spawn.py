"""Starts and kills the engine's worker process, describes its exit, and decides what child processes inherit."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

from antiphon.engine.process.output import forward_output

BOOTSTRAP = """
import sys
from antiphon.engine.process.child.worker import run_worker
run_worker(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
"""
"""Code that the worker runs. `-P` keeps the current folder off `sys.path`, so that the worker imports the same code
as its parent."""

_OWN_NAME = re.compile(r"^ANTIPHON_", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"^OTEL_EXPORTER_.*HEADERS$|(?:^|_)(?:API_?)?(?:KEYS?|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASS|CREDENTIALS?|AUTH|COOKIE|DSN)(?:_|$)",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*@")

DEFAULT_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "TQDM_DISABLE": "1", "GOMP_SPINCOUNT": "10000"}
"""Environment variables of the worker, unless the parent's environment sets them. The first makes torch request huge
pages from Linux for large tensors: the logits of 64 requests are 40 MB, allocated again in each step, and mapping them
in pages of 4 KiB takes as long as computing them. The second removes the progress bars of libraries, since the server
shows the progress. The third bounds the time for which a thread that waits for others spins, to about half a
millisecond. OpenMP's default is 15 ms: if other processes use the cores, the waiting threads then use up the time that
the computing ones need, and a token takes up to 30 times as long. Less than this loses time between two layers."""


def child_environment(
    parent: Mapping[str, str], *, only: Collection[str] | None = None, keep_credentials: bool = False
) -> dict[str, str]:
    """Returns the variables of `parent` that a child process gets. This is the rule for all children of a server.

    A server's environment holds its own keys and those of other services. A variable is dropped if it is one of
    Antiphon's own, if a word of its name means a secret (`HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`), or if its value is a URL
    with a user or password. `only`: the names that the child may get at most; None: any. `keep_credentials`: drops
    Antiphon's own variables and no others. The place of each call says why its child differs from a worker.
    """
    return {
        name: value
        for name, value in parent.items()
        if (only is None or name in only)
        and not _OWN_NAME.search(name)
        and (keep_credentials or not (_SECRET_NAME.search(name) or _URL_WITH_PASSWORD.search(value)))
    }


def worker_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a worker: the parent's, without variables that may hold secrets.

    The worker runs third-party native code and needs no credentials: the server downloads checkpoints.
    """
    kept = child_environment(parent)
    environment = DEFAULT_ENVIRONMENT | kept
    if "OMP_WAIT_POLICY" in kept and "GOMP_SPINCOUNT" not in kept:
        del environment["GOMP_SPINCOUNT"]  # it would override the policy
    return environment


class WorkerProcess:
    """Runs `engine.process.child.worker` in a new process that inherits only `worker_end`, one end of a socket pair.

    What it prints is forwarded to this process's log (`antiphon.engine.process.output`).

    With `preload`, the name of a module, the process imports that module while it waits for its connection, which is
    passed through `worker_end` as a file descriptor.

    The process has a session of its own, so that it does not receive the terminal's signals. Create it in a thread
    that outlives the engine, because Linux treats the end of that thread as the end of the parent.
    """

    def __init__(self, worker_end: socket.socket, *preload: str) -> None:
        output, worker_output = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, worker_output)
            stack.enter_context(worker_end)
            unread = stack.enter_context(contextlib.ExitStack())
            unread.callback(os.close, output)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", BOOTSTRAP, str(worker_end.fileno()), str(os.getpid()), *preload],
                pass_fds=(worker_end.fileno(),),
                env=worker_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=worker_output,
                stderr=worker_output,
                start_new_session=True,
            )
            unread.pop_all()  # the thread closes it
        threading.Thread(target=forward_output, args=(output,), name="worker-output", daemon=True).start()
        self.pid = self._process.pid

    def kill(self) -> None:
        """Kills the process at once."""
        self._process.kill()

    def reap(self) -> str:
        """Waits until the process has exited. Returns a short description of the exit."""
        return describe_exit(self._process.wait())

    async def wait(self) -> str:
        """Waits like `reap`, without blocking the event loop."""
        return await asyncio.to_thread(self.reap)


SpawnWorker = Callable[[socket.socket], WorkerProcess]
"""Starts a worker with its end of a socket pair. Raises `OSError`."""


class PrespawnedWorker:
    """A worker process started in advance, which imports `module` while it waits to be assigned to an engine.

    Calling it as a `SpawnWorker` returns this worker the first time, and a new `WorkerProcess` every later
    time. Use it as a context manager, which kills the worker if it was never assigned.
    """

    def __init__(self, module: str) -> None:
        self._control, worker_end = socket.socketpair()
        self._worker: WorkerProcess | None = WorkerProcess(worker_end, module)
        self.pid = self._worker.pid

    def __call__(self, worker_end: socket.socket) -> WorkerProcess:
        """Assigns the prespawned worker; starts a new one if it is taken or has exited."""
        worker, self._worker = self._worker, None
        if worker is None:
            return WorkerProcess(worker_end)
        with self._control:
            try:
                socket.send_fds(self._control, [b"."], [worker_end.fileno()])
            except OSError:  # the worker has exited
                self._kill_and_reap(worker)
                return WorkerProcess(worker_end)
        worker_end.close()
        return worker

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
    """Returns a short text for an exit code. A negative one is a signal number."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL), probably because memory ran out"
    if code < 0:
        return f"killed by signal {-code} ({signal.strsignal(-code)})"
    return f"exit status {code}"
