"""A process of the sandbox, seen from the server: started when it is needed, and again when a message has killed it.

Three ends are told apart. A limit ends the process: the message was at fault. Something else ends it, or it cannot
start: that is a fault of the server, never of the request. It was killed between two messages: it is started again.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from typing import BinaryIO

import msgspec

from antiphon.app.sandbox.messages import LENGTH, MAX_REPLY_BYTES, MEMORY_BYTES, Greeting
from antiphon.engine.process.resident_memory import read_resident_bytes
from antiphon.engine.process.spawn import describe_exit, worker_environment

START_TIMEOUT_S = 120.0
"""Elapsed time in which the process must greet. A busy machine may take long to start one."""
REPLY_TIMEOUT_S = 60.0
"""Elapsed time after which a process that does not reply is killed. It bounds one that waits instead of computing; one
that computes is ended by its limit of CPU time."""
WATCH_INTERVAL_S = 0.05
"""Time between two looks at the memory of a process that the system does not limit."""
LIMIT_SIGNALS = frozenset(
    {signal.SIGPROF, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGTRAP}
)
"""Signals by which a process ends at a limit: of CPU time, the stack, or memory, at which native code aborts."""


class SandboxError(Exception):
    """The sandbox does not work, through no fault of a request. The message is one line for the operator."""


class SandboxProcess:
    """Sends messages to a process that runs `module`, one at a time. Any thread may call it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._trusts_limit = True

    @property
    def pid(self) -> int | None:
        """Id of the running process; None if there is none."""
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def memory_is_watched(self) -> bool:
        """True if the server watches the memory of the running process because the system does not limit it."""
        worker = self._worker
        return worker is not None and not worker.memory_is_limited

    def exchange(self, message: bytes, watched_bytes: int = MEMORY_BYTES) -> bytes | None:
        """Returns the reply to a message, or None if the message has killed the process. Raises `SandboxError`.

        `watched_bytes`: resident memory that the process may have if the system does not limit it.
        """
        with self._lock:
            # A process that ran before may have ended for another reason: the memory of the machine ran out.
            for is_last in (True,) if self._worker is None else (False, True):
                try:
                    return self._exchange_once(message, watched_bytes)
                except WorkerEndedError as end:
                    if is_last and not end.at_limit:
                        raise SandboxError(str(end)) from end
        return None

    def _exchange_once(self, message: bytes, watched_bytes: int) -> bytes:
        if self._worker is None:
            self._worker = _Worker(self._module, trusts_limit=self._trusts_limit)
        try:
            return self._worker.exchange(message, watched_bytes)
        except WorkerEndedError:
            self._worker = None
            raise

    def watch_memory(self) -> None:
        """Makes the server watch the memory of the process, whatever the process says of its limit."""
        with self._lock:  # a message that is being answered must not be lost
            self._trusts_limit = False
            self.stop()

    def stop(self) -> None:
        """Kills the process. The next message starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


class WorkerEndedError(Exception):
    """The process has ended during a message, perhaps at a limit. `reason` is for the operator."""

    def __init__(self, reason: str, *, at_limit: bool) -> None:
        super().__init__(reason)
        self.at_limit = at_limit


class _Worker:
    """A running process and the socket that is its standard input and output. Raises `SandboxError` at its creation."""

    def __init__(self, module: str, *, trusts_limit: bool) -> None:
        self._name = module.rpartition(".")[2]
        try:
            with ExitStack() as undo:
                self._socket, theirs = map(undo.enter_context, socket.socketpair())
                self._errors: BinaryIO = undo.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-P", "-m", module],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._errors,
                    env=worker_environment(os.environ),
                    start_new_session=True,
                )
                undo.pop_all()  # `end` closes both
                theirs.close()
        except OSError as error:
            raise SandboxError(f"{self._name} cannot be started: {error.strerror or error}") from error
        self.pid = self._process.pid
        self._last_error = ""
        self._watched_bytes = MEMORY_BYTES
        self.memory_is_limited = True
        self.memory_is_limited = self._receive_greeting().memory_is_limited and trusts_limit

    def _receive_greeting(self) -> Greeting:
        try:
            return msgspec.msgpack.decode(self._receive(START_TIMEOUT_S), type=Greeting)
        except (WorkerEndedError, msgspec.DecodeError) as error:
            self.end()
            said = f": {self._last_error}" if self._last_error else ""
            raise SandboxError(f"{error} at its start{said}") from None

    def exchange(self, message: bytes, watched_bytes: int) -> bytes:
        """Returns the reply to a message. Raises `WorkerEndedError`."""
        self._watched_bytes = watched_bytes
        try:
            self._socket.settimeout(REPLY_TIMEOUT_S)
            self._socket.sendall(LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise self._describe_end(timed_out=isinstance(error, TimeoutError)) from None
        return self._receive(REPLY_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        length: int = LENGTH.unpack(self._receive_exactly(LENGTH.size, deadline))[0]
        if length > MAX_REPLY_BYTES:
            self.end()
            raise WorkerEndedError(f"{self._name} sent a reply of {length} bytes", at_limit=False)
        return self._receive_exactly(length, deadline)

    def _receive_exactly(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._describe_end(timed_out=True)
            try:
                self._socket.settimeout(remaining_s if self.memory_is_limited else min(WATCH_INTERVAL_S, remaining_s))
                part = self._socket.recv(min(count - len(parts), 1 << 20))
            except TimeoutError:
                self._check_memory()
                continue
            except OSError:
                part = b""
            if not part:
                raise self._describe_end(timed_out=False)
            parts += part
        return bytes(parts)

    def _check_memory(self) -> None:
        if not self.memory_is_limited and (read_resident_bytes(self.pid) or 0) > self._watched_bytes:
            self.end()
            raise WorkerEndedError(f"{self._name} took more than {self._watched_bytes >> 20} MiB", at_limit=True)

    def _describe_end(self, *, timed_out: bool) -> WorkerEndedError:
        """Ends the process, if it still runs, and returns the reason."""
        if timed_out:
            self.end()
            return WorkerEndedError(f"{self._name} did not answer in time", at_limit=False)
        code = self._wait()
        self.end()
        return WorkerEndedError(f"{self._name} ended ({describe_exit(code)})", at_limit=-code in LIMIT_SIGNALS)

    def _wait(self) -> int:
        """Returns the exit code of a process that has closed its socket."""
        try:
            code: int = self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        return code

    def end(self) -> None:
        """Kills and reaps the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        if not self._errors.closed:
            self._last_error = read_last_line(self._errors)
            self._errors.close()


def read_last_line(errors: BinaryIO) -> str:
    """Returns the end of a process's standard error: the last line that is not empty, clipped."""
    errors.seek(0)
    lines = errors.read(1 << 20).decode("utf-8", "replace").split("\n")
    return next((text.strip()[:300] for text in reversed(lines) if text.strip()), "")
