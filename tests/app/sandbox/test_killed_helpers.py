"""The four helper processes, killed at any point of their lives: the message after it is answered.

The socket of a process passes a certain number of bytes, then the process is killed.
"""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.sandbox.sandbox_process import SandboxError
from tests.app.sandbox.helper_processes import HELPERS, OpenHelper
from tests.counts import FULL_COUNTS
from tests.syntax import ROOT

pytestmark = pytest.mark.processes


class _Killer:
    """Kills each of the next processes once its socket has passed `cuts.pop(0)` bytes in one direction."""

    def __init__(self) -> None:
        self.cuts: list[tuple[str, float]] = []
        """For each process to come, the direction that is counted and the number of bytes."""
        self.passed = {"sent": 0, "received": 0}
        """Bytes of the newest process."""
        self.process: subprocess.Popen[bytes] | None = None
        self.num_killed = 0
        self._cut: tuple[str, float] = ("received", float("inf"))

    def begin_process(self) -> None:
        self.passed = {"sent": 0, "received": 0}
        self._cut = self.cuts.pop(0) if self.cuts else ("received", float("inf"))

    def allow(self, direction: str, count: int) -> int:
        """Returns how many of the next bytes may pass. Kills the process if it is none."""
        kind, limit = self._cut
        allowed = count if kind != direction else int(min(count, limit - self.passed[direction]))
        if allowed <= 0 and self.process is not None:
            self.process.kill()
            self.process.wait()
            self.num_killed += 1
            return 0
        return allowed


class _CutSocket(socket.socket):
    killer: _Killer

    def recv(self, count: int, flags: int = 0) -> bytes:
        data = super().recv(allowed, flags) if (allowed := self.killer.allow("received", count)) else b""
        self.killer.passed["received"] += len(data)
        return data

    def recvmsg(self, count: int, *rest: Any) -> Any:
        allowed = self.killer.allow("received", count)
        result: Any = super().recvmsg(allowed, *rest) if allowed else (b"", [], 0, None)
        self.killer.passed["received"] += len(result[0])
        return result

    def sendall(self, data: Any, flags: int = 0) -> None:
        allowed = self.killer.allow("sent", len(data))
        self.killer.passed["sent"] += allowed
        super().sendall(data[:allowed], flags)
        if allowed < len(data):
            self.killer.allow("sent", 0)
            super().sendall(data[allowed:], flags)


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Killer]:
    killer, start, create_pair = _Killer(), subprocess.Popen, socket.socketpair
    cut_socket = type("_KilledSocket", (_CutSocket,), {"killer": killer})

    def create_cut_pair(*args: Any) -> tuple[socket.socket, socket.socket]:
        ours, theirs = create_pair(*args)
        killer.begin_process()
        return cut_socket(fileno=ours.detach()), theirs

    def start_process(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        killer.process = start(*args, **options)
        return killer.process

    monkeypatch.setenv("PYTHONPATH", str(Path(ROOT)))
    monkeypatch.setattr(socket, "socketpair", create_cut_pair)
    monkeypatch.setattr(subprocess, "Popen", start_process)
    return killer


@pytest.mark.timeout(600)
@pytest.mark.parametrize("open_helper", HELPERS.values(), ids=HELPERS)
def test_message_after_a_kill_is_answered(open_helper: OpenHelper, killer: _Killer) -> None:
    process, exchange = open_helper()
    exchange()
    sent, received = killer.passed["sent"], killer.passed["received"]
    exchange()
    reply = killer.passed["received"] - received
    greeting = received - reply
    process.close()
    cuts = [
        ("received", 0), ("received", greeting - 1), ("sent", 0), ("sent", sent // 2), ("received", greeting),
        ("received", received - 1), ("received", received),
    ]  # fmt: skip
    if FULL_COUNTS:
        cuts = [("received", at) for at in range(received + 1)] + [("sent", at) for at in (0, 1, sent // 2, sent - 1)]
    for cut in cuts:
        for num_in_a_row in (1, 2) if FULL_COUNTS or cut in cuts[:2] else (1,):
            process, exchange = open_helper()
            killer.cuts, killer.num_killed = [cut] * num_in_a_row, 0
            while killer.num_killed < num_in_a_row:
                with suppress(SandboxError):
                    exchange()
            exchange()
            process.close()
