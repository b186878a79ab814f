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

BEGIN = """
import sys
from antiphon.engine.process.worker import main
main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
"""
"""The child runs the code that its parent runs, and nothing from the folder that somebody happens to work in."""

SETTINGS = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The child's environment, where ours says nothing about it. torch asks Linux for huge pages for large tensors: the
logits of 64 requests are 40 MB, new in each step; to get them in pages of 4 KiB takes as long as to compute them."""


class Host(Protocol):
    """Where the far side of an engine runs."""

    pid: int

    def kill(self) -> None:
        """End it, whatever it is doing."""
        ...

    async def wait(self) -> str:
        """Return when nothing is left of it: how it ended, in a few words."""
        ...


Spawn = Callable[[socket.socket], Host]
"""Begins a far side, and gives it its end of a socket pair. Raises ``OSError``."""


class Process:
    """Runs ``engine.process.worker`` in a new process that inherits ``far``, one end of a socket pair, only.

    ``early``: what it imports until it is given the end that it is to serve, which comes through ``far`` then.

    A session of its own keeps a terminal's signals from it. It must be begun in a thread that lives as long as the
    engine: Linux takes that thread's end for the parent's.
    """

    def __init__(self, far: socket.socket, *early: str) -> None:
        with far:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", BEGIN, str(far.fileno()), str(os.getpid()), *early],
                pass_fds=(far.fileno(),),
                env=SETTINGS | os.environ,
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
        return words(self._process.wait())

    async def wait(self) -> str:
        """See :class:`Host`."""
        return await asyncio.to_thread(self.reap)


class Early:
    """A process that is begun before it is known what it is to do, and imports ``module`` meanwhile.

    It is the far side of the first engine that asks for one; every later one gets a process of its own. Use it as a
    context: what nobody asked for is ended.
    """

    def __init__(self, module: str) -> None:
        self._line, far = socket.socketpair()
        self._first: Process | None = Process(far, module)
        self.pid = self._first.pid

    def __call__(self, far: socket.socket) -> Host:
        """See :data:`Spawn`."""
        first, self._first = self._first, None
        if first is None:
            return Process(far)
        with self._line:
            try:
                socket.send_fds(self._line, [b"."], [far.fileno()])
            except OSError:  # it has died
                self._bury(first)
                return Process(far)
        far.close()
        return first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._first is not None:
            self._line.close()
            self._bury(self._first)

    @staticmethod
    def _bury(process: Process) -> None:
        process.kill()
        process.reap()


def words(code: int) -> str:
    """What an exit code says."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL), probably because memory ran out"
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    return f"exit status {code}"
