"""A process of its own for the engine: how it is begun, how it is ended for sure, and what its end means in words."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

ROOT = str(Path(__file__).resolve().parents[1])
BEGIN = """
import sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from engine.child import main
main(*map(int, sys.argv[2:]))
"""
"""The child runs the code that its parent runs, and nothing from the folder that somebody happens to work in."""


class Host(Protocol):
    """Where the far side of an engine runs."""

    pid: int

    def kill(self) -> None:
        """End it, whatever it is doing."""
        ...

    async def wait(self) -> str:
        """Return when nothing is left of it: how it ended, in a few words."""
        ...


class Process:
    """``engine.child`` in a new process that holds ``far``, one end of a socket pair, and nothing else of ours.

    A session of its own keeps a terminal's signals from it. It must be begun in a thread that lives as long as the
    engine: Linux takes that thread's end for the parent's.
    """

    def __init__(self, far: socket.socket) -> None:
        with far:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", BEGIN, ROOT, str(far.fileno()), str(os.getpid())],
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is the server's
                start_new_session=True,
            )
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()

    async def wait(self) -> str:
        """Reap it."""
        return words(await asyncio.to_thread(self._process.wait))


def words(code: int) -> str:
    """What an exit code says."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL), probably because memory ran out"
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    return f"exit status {code}"
