"""Main loop of the sandbox's processes: sets their limits, greets, and answers one message after the other.

The socket to the server is standard input. Input may overflow the stack, allocate without end, or compute for minutes.
Each of these kills this process: its stack is small, its memory has a limit, and a timer of CPU time runs during each
message.
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

import msgspec

from antiphon.app.sandbox.confinement import confine_process
from antiphon.app.sandbox.messages import HEAD, PROBE_BYTES, Greeting, WorkerLimits

STACK_BYTES = 2 << 20
"""Stack of the thread that works. The engine's threads have 8 MiB, so a grammar that passes here does not overflow
theirs, although the engine compiles it as a part of a larger grammar."""
MAX_JOINED_BYTES = 64 << 10
PROBE_WAIT_S = 5.0
"""Time for which the memory of a probe is held, so that a server that watches it notices."""

Answer = tuple[bytes, bytes, int | None]
"""Header, payload, and a descriptor that is sent with them and then closed."""
Handle = Callable[[bytes, bytes], Answer]
"""Answers the header and the payload of a message."""


def run_worker(prepare: Callable[[], Handle], limits: WorkerLimits) -> None:
    """Sets the limits, then serves until the socket is closed. `prepare` loads libraries and returns the handler."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)  # no file can be opened below
    missing = confine_process(limits)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(prepare, missing, null), daemon=True)
    thread.start()
    thread.join()


def take_memory(limit_bytes: int) -> None:
    """Takes more memory than the limit allows. Does not return where the limit works.

    Where the system has a limit, the first allocation fails, and no memory is used. Elsewhere the server notices the
    second one, for which it allows less than at other times. The CPU time does not count here: a process that ends at
    that limit would look like one that ended at the limit of memory.
    """
    signal.setitimer(signal.ITIMER_PROF, 0)
    del bytearray(limit_bytes)[:]
    block = bytearray(b"x") * PROBE_BYTES
    time.sleep(PROBE_WAIT_S)
    del block


def _serve(prepare: Callable[[], Handle], missing: tuple[str, ...], null: int) -> None:
    try:
        handle = prepare()
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connection:
            _send(connection, (msgspec.msgpack.encode(Greeting(missing)), b"", None), 0.0)
            for output in (sys.stdout, sys.stderr):  # a library could print what a client sent
                os.dup2(null, output.fileno())
            while (message := _receive()) is not None:
                started_s, (header, payload, cpu_limit_s) = time.process_time(), message
                signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
                answer = handle(header, payload)
                signal.setitimer(signal.ITIMER_PROF, 0)
                _send(connection, answer, time.process_time() - started_s)
                del message, header, payload, answer
    except MemoryError:
        os.abort()  # as native code does
    except BaseException:  # noqa: BLE001  the reason must reach the server
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _receive() -> tuple[bytes, bytes, float] | None:
    """Returns header, payload and CPU time of a message; None at the end of the connection."""
    messages = sys.stdin.buffer
    head = messages.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    header_length, payload_length, cpu_limit_s = HEAD.unpack(head)
    header, payload = messages.read(header_length), messages.read(payload_length)
    return (header, payload, cpu_limit_s) if len(payload) == payload_length else None


def _send(connection: socket.socket, answer: Answer, cpu_s: float) -> None:
    header, payload, descriptor = answer
    head = HEAD.pack(len(header), len(payload), cpu_s) + header
    if len(payload) <= MAX_JOINED_BYTES:  # in one call, so that the server wakes up once
        head, payload = head + payload, b""
    if descriptor is not None:
        sent = socket.send_fds(connection, [head], [descriptor])
        os.close(descriptor)
        head = head[sent:]
    connection.sendall(head)
    if payload:
        connection.sendall(payload)
