"""Programs in place of a process of the sandbox, for `python -m`: each fails in another way. The argument names it."""

import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from antiphon.app.sandbox import confinement, grammar_worker, worker
from antiphon.app.sandbox.messages import HEAD, WorkerLimits
from antiphon.app.sandbox.worker import Handle, run_worker

_left: list[mmap.mmap] = []


def _signal_self(number: int) -> bytes:
    os.kill(os.getpid(), number)
    time.sleep(60)
    return b""


def _raise_bug() -> bytes:
    raise RuntimeError("a bug of the handler")


def _allocate() -> bytes:
    return str(len(bytearray(4 << 30))).encode()


def _connect() -> bytes:
    with socket.create_connection(("127.0.0.1", 9), timeout=5):
        return b"connected"


def _leave_memory() -> bytes:
    try:
        _left.append(mmap.mmap(-1, 400 << 20))  # not touched, so that it takes no time
    except OSError:
        raise MemoryError from None
    return b"yes"


def _try(action: Callable[[], object]) -> bytes:
    try:
        return str(action()).encode()
    except OSError as error:
        return f"refused: {error.strerror}".encode()


def _take_memory() -> bytes:
    blocks = [bytearray(b"x") * (32 << 20) for _ in range(64)]
    return str(len(blocks)).encode()


def _compute() -> bytes:
    while True:
        pass


ACTIONS = {
    b"echo": lambda: b"yes",
    b"killed": lambda: _signal_self(signal.SIGKILL),
    b"terminated": lambda: _signal_self(signal.SIGTERM),
    b"overflow": lambda: _signal_self(signal.SIGSEGV),
    b"abort": lambda: _signal_self(signal.SIGABRT),
    b"wait": lambda: _signal_self(0),
    b"exit": lambda: os._exit(3),
    b"bug": _raise_bug,
    b"allocate": _allocate,
    b"memory": _take_memory,
    b"compute": _compute,
    b"leave memory": _leave_memory,
    b"read": lambda: _try(lambda: Path("/etc/passwd").read_bytes()[:1]),
    b"list": lambda: _try(lambda: os.listdir("/")),  # noqa: PTH208
    b"write": lambda: _try(lambda: Path("/tmp/antiphon-confined").write_text("x", encoding="utf-8")),
    b"connect": lambda: _try(_connect),
}


def _prepare() -> Handle:
    return lambda header, _payload: (ACTIONS[header](), b"", None)


def _prepare_without_library() -> Handle:
    raise ImportError("No module named 'llguidance'")


def main(kind: str) -> None:
    """Runs one of the programs."""
    if kind == "no library":
        run_worker(_prepare_without_library, WorkerLimits())
    elif kind == "silent":
        sys.exit(0)
    elif kind == "garbage":
        os.write(0, HEAD.pack(5, 0, 0.0) + b"hello")
        time.sleep(60)
    elif kind.endswith("grammars"):
        if kind == "watched grammars":
            confinement.limit_memory = lambda _: False
        else:
            confinement.limit_memory = lambda _: True
            worker.PROBE_WAIT_S = 0.3
        run_worker(grammar_worker._prepare, WorkerLimits())
    else:
        if kind == "without limit":
            confinement.limit_memory = lambda _: False
        run_worker(_prepare, WorkerLimits())
