"""The four helper processes, killed at any point of their lives: the message after it is answered.

The socket of a process passes a certain number of bytes, then the process is killed.
"""

import pickle
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.app.sandbox.grammar_checker import WORKER_MODULE as GRAMMAR_MODULE
from antiphon.app.sandbox.media.media_process import IMAGE_MODULE, PDF_MODULE, MediaProcess
from antiphon.app.sandbox.media.messages import ImageFacts, ImageLimits, InspectRequest, PdfReply, PdfRequest
from antiphon.app.sandbox.messages import CheckRequest, RenderReply, RenderRequest
from antiphon.app.sandbox.sandbox_process import SandboxError, SandboxProcess
from tests.app.media.documents import make_pdf
from tests.counts import FULL_COUNTS
from tests.syntax import ROOT

TEMPLATE_MODULE = "antiphon.app.sandbox.template_worker"
Exchange = Callable[[], None]
"""Sends a message and checks its reply. Raises `SandboxError`."""


def open_image() -> tuple[Exchange, Callable[[], None]]:
    process, picture = MediaProcess(IMAGE_MODULE), (ROOT / "samples" / "picture.png").read_bytes()

    def exchange() -> None:
        assert isinstance(process.exchange(InspectRequest(ImageLimits()), picture).reply, ImageFacts)

    return exchange, process.close


def open_pdf() -> tuple[Exchange, Callable[[], None]]:
    process, document = MediaProcess(PDF_MODULE), make_pdf("Hello")

    def exchange() -> None:
        reply = process.exchange(PdfRequest(0, 1, 9, 99), document).reply
        assert isinstance(reply, PdfReply) and reply.num_pages == 1

    return exchange, process.close


def open_grammar() -> tuple[Exchange, Callable[[], None]]:
    process = SandboxProcess(GRAMMAR_MODULE)

    def exchange() -> None:
        assert process.exchange(msgspec.msgpack.encode(CheckRequest("lark", 'start: "a"'))) == b""

    return exchange, process.stop


def open_template() -> tuple[Exchange, Callable[[], None]]:
    process = SandboxProcess(TEMPLATE_MODULE)

    def exchange() -> None:
        reply = process.exchange(pickle.dumps(RenderRequest(source="a", cpu_limit_s=9.0)))
        assert reply is not None and msgspec.msgpack.decode(reply, type=RenderReply).error is None

    return exchange, process.stop


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
@pytest.mark.parametrize("open_helper", [open_image, open_pdf, open_grammar, open_template], ids=lambda f: f.__name__)
def test_message_after_a_kill_is_answered(
    open_helper: Callable[[], tuple[Exchange, Callable[[], None]]], killer: _Killer
) -> None:
    exchange, close = open_helper()
    exchange()
    sent, received = killer.passed["sent"], killer.passed["received"]
    exchange()
    reply = killer.passed["received"] - received
    greeting = received - reply
    close()
    cuts = [
        ("received", 0), ("received", greeting - 1), ("sent", 0), ("sent", sent // 2), ("received", greeting),
        ("received", received - 1), ("received", received),
    ]  # fmt: skip
    if FULL_COUNTS:
        cuts = [("received", at) for at in range(received + 1)] + [("sent", at) for at in (0, 1, sent // 2, sent - 1)]
    for cut in cuts:
        for num_in_a_row in (1, 2) if FULL_COUNTS or cut in cuts[:2] else (1,):
            exchange, close = open_helper()
            killer.cuts, killer.num_killed = [cut] * num_in_a_row, 0
            while killer.num_killed < num_in_a_row:
                with suppress(SandboxError):
                    exchange()
            exchange()
            close()
