"""Programs in place of a process of the sandbox, for `python -m`: each fails in another way. The argument names it."""

import os
import signal
import sys
import time

from antiphon.app.sandbox import grammar_worker, worker
from antiphon.app.sandbox.worker import Handle, run_worker


def _signal_self(number: int) -> bytes:
    os.kill(os.getpid(), number)
    time.sleep(60)
    return b""


def _raise_bug() -> bytes:
    raise RuntimeError("a bug of the handler")


def _allocate() -> bytes:
    return str(len(bytearray(4 << 30))).encode()


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
}


def _prepare() -> Handle:
    return lambda message: ACTIONS[message]()


def _prepare_without_library() -> Handle:
    raise ImportError("No module named 'llguidance'")


def main(kind: str) -> None:
    """Runs one of the programs."""
    if kind == "no library":
        run_worker(_prepare_without_library)
    elif kind == "silent":
        sys.exit(0)
    elif kind == "garbage":
        os.write(1, b"\x05\x00\x00\x00hello")
        time.sleep(60)
    elif kind.endswith("grammars"):
        if kind == "watched grammars":
            worker.limit_memory = lambda _: False
        else:
            worker.limit_memory = lambda _: True
            worker.PROBE_WAIT_S = 0.3
            worker.CPU_LIMIT_S = 0.05  # taking a gigabyte may take longer than the limit, where memory is slow
        run_worker(grammar_worker._prepare)
    else:
        worker.CPU_LIMIT_S = 0.2
        if kind == "without limit":
            worker.limit_memory = lambda _: False
        run_worker(_prepare)
