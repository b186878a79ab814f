"""Main loop of the sandbox's processes: sets their limits, greets, and answers one message after the other.

A message is read from standard input, and a reply to each is written to standard output, until the input ends. Input
may overflow the stack, allocate without end, or compute for minutes. Each of these kills this process: its stack is
small, its memory has a limit, and a timer of CPU time runs during each message.
"""

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from antiphon.app.sandbox.messages import CPU_LIMIT_S, LENGTH, MEMORY_BYTES, PROBE_BYTES, Greeting

STACK_BYTES = 2 << 20
"""Stack of the thread that works. The engine's threads have 8 MiB, so a grammar that passes here does not overflow
theirs, although the engine compiles it as a part of a larger grammar."""
PROBE_WAIT_S = 5.0
"""Time for which the memory of a probe is held, so that a server that watches it notices."""

Handle = Callable[[bytes], bytes]
"""Returns the reply to a message."""


def run_worker(prepare: Callable[[], Handle]) -> None:
    """Sets the limits, then serves until standard input ends. `prepare` loads libraries and returns the handler."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    is_limited = limit_memory(MEMORY_BYTES)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(prepare, is_limited), daemon=True)
    thread.start()
    thread.join()


def limit_memory(size: int) -> bool:
    """Limits the address space of this process, to `size` bytes or to a smaller limit that it has already.

    Returns False where the system does not do so: macOS refuses the limit, or accepts it without an effect.
    """
    try:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError):
        return False
    return sys.platform == "linux"


def take_memory() -> None:
    """Takes more memory than the limit allows. Does not return where the limit works.

    Where the system has a limit, the first allocation fails, and no memory is used. Elsewhere the server notices the
    second one, for which it allows less than at other times. The CPU time does not count here: a process that ends at
    that limit would look like one that ended at the limit of memory.
    """
    signal.setitimer(signal.ITIMER_PROF, 0)
    del bytearray(MEMORY_BYTES)[:]
    block = bytearray(b"x") * PROBE_BYTES
    time.sleep(PROBE_WAIT_S)
    del block


def _serve(prepare: Callable[[], Handle], memory_is_limited: bool) -> None:
    try:
        handle = prepare()
        requests, replies = sys.stdin.buffer, sys.stdout.buffer
        _write(replies, msgspec.msgpack.encode(Greeting(memory_is_limited)))
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), sys.stderr.fileno())
        while head := requests.read(LENGTH.size):
            message = requests.read(LENGTH.unpack(head)[0])
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
            reply = handle(message)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write(replies, reply)
    except MemoryError:
        os.abort()  # as native code does
    except BaseException:  # noqa: BLE001  the reason must reach the server
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _write(replies: BinaryIO, reply: bytes) -> None:
    replies.write(LENGTH.pack(len(reply)) + reply)
    replies.flush()
