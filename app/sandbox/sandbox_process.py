"""A process of the sandbox, seen from the server: started when it is needed, and again when a message has killed it.

Its end decides whose fault it was:

- The message reached a limit that is its own, of CPU time or the stack: the message is at fault.
- The process reached its limit of memory, which earlier messages may have filled: the message is tried once more in a
  new process. It is at fault if that one ends in the same way.
- Anything else ended it, between two messages or during one, or it cannot start: the message is tried once more in a
  new process, and after that it is a fault of the server, never of the request.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Literal

import msgspec

from antiphon.app.sandbox.messages import HEAD, MAX_SANDBOX_HEADER_BYTES, MEMORY_LIMIT, Greeting, WorkerLimits
from antiphon.engine.process.resident_memory import read_resident_bytes
from antiphon.engine.process.spawn import child_environment, describe_exit

START_TIMEOUT_S = 120.0
"""Elapsed time in which a process must greet. A busy machine may take long to start one."""
WATCH_INTERVAL_S = 0.05
"""Time between two looks at the memory of a process that the system does not limit."""
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
"""Environment variables without which the interpreter may not start, and the time zone of templates' dates. What a
client sends may take over a process, so it learns nothing else."""
SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Threads of libraries would reserve address space, of which the process has little."""
MIN_RECEIVED_BYTES, MAX_RECEIVED_BYTES = 4 << 10, 1 << 20
"""Bytes that are received at once. A small reply takes one call, and a small buffer."""
DESCRIPTOR = struct.Struct("i")
ANCILLARY_BYTES = socket.CMSG_LEN(DESCRIPTOR.size)
"""Room for one descriptor. The system closes others."""
MESSAGE_LIMIT_SIGNALS = frozenset({signal.SIGPROF, signal.SIGSEGV, signal.SIGBUS})
"""Signals by which a process ends at the limit of CPU time or of the stack."""
MEMORY_LIMIT_SIGNALS = frozenset({signal.SIGABRT, signal.SIGILL, signal.SIGTRAP})
"""Signals by which native code, and the loop of a process, ends when it gets no memory."""


class SandboxError(Exception):
    """The sandbox does not work, through no fault of a request. The message is one line for the operator."""


class WorkerReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply. The receiver closes `descriptor`."""

    header: bytes
    payload: bytes = b""
    descriptor: int | None = None
    cpu_s: float = 0.0
    """CPU time that the message took."""


class SandboxProcess:
    """Sends messages to a process that runs `module`, one at a time. Any thread may call it; it blocks."""

    def __init__(self, module: str, limits: WorkerLimits | None = None) -> None:
        self._module, self._limits = module, limits or WorkerLimits()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._closed = threading.Event()
        self._trusts_limit = True
        self.num_restarts = 0
        """Number of processes that ended during a message and were replaced."""
        self.missing: tuple[str, ...] = ()
        """Limits that the system does not offer; empty before the first reply."""

    @property
    def pid(self) -> int | None:
        """Id of the running process; None if there is none."""
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def memory_is_watched(self) -> bool:
        """True if the server watches the memory of the process because the system does not limit it."""
        return not self._trusts_limit or MEMORY_LIMIT in self.missing

    def exchange(
        self,
        header: bytes,
        payload: bytes = b"",
        *,
        cpu_limit_s: float | None = None,
        watched_bytes: int | None = None,
    ) -> WorkerReply | None:
        """Returns the reply to a message, or None if the message reached a limit. Raises `SandboxError`.

        `watched_bytes`: resident memory that the process may have if the system does not limit it. Without a value, it
        and the CPU time are those of the process's limits.
        """
        cpu_limit_s = self._limits.cpu_limit_s if cpu_limit_s is None else cpu_limit_s
        watched_bytes = self._limits.memory_bytes if watched_bytes is None else watched_bytes
        with self._lock:
            try:
                return self._exchange(header, payload, cpu_limit_s, watched_bytes)
            finally:
                if self._closed.is_set() and self._worker is not None:  # it was started while `close` looked for it
                    self._worker.end()

    def _exchange(self, header: bytes, payload: bytes, cpu_limit_s: float, watched_bytes: int) -> WorkerReply | None:
        for is_last in (True,) if self._worker is None else (False, True):
            if self._closed.is_set():
                break
            worker = self._worker or self._start()
            if self._closed.is_set():
                break
            try:
                reply = worker.exchange(header, payload, cpu_limit_s, watched_bytes)
            except WorkerEndedError as end:
                self._worker = None
                if self._closed.is_set():
                    break
                self._replace(worker)
                if end.limit == "message" or (end.limit == "memory" and is_last):
                    return None
                if is_last:
                    raise SandboxError(str(end)) from end
            else:
                self.missing = worker.missing
                return reply
        raise SandboxError("the server stops")

    def _start(self) -> "_Worker":
        """Starts a process without waiting for its greeting, so that `close` can end it."""
        self._worker = worker = _Worker(self._module, self._limits, trusts_limit=self._trusts_limit)
        return worker

    def _replace(self, ended: "_Worker") -> None:
        """Starts the next process at once, so that the next message waits less, unless this one could not start."""
        self.num_restarts += 1
        if ended.has_greeted:
            with suppress(SandboxError):
                self._start()

    def refuse(self, fault: str) -> SandboxError:
        """Ends the process, whose reply has a fault. Returns the error."""
        self.stop()
        return SandboxError(f"{_short_name(self._module)} sent {fault}")

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

    def close(self) -> None:
        """Kills the process and lets no other start. A message that is being answered fails."""
        self._closed.set()
        worker = self._worker
        if worker is not None:
            worker.end()


class WorkerEndedError(Exception):
    """A process has ended. The message is for the operator. `limit` is the kind of limit that it reached, if any."""

    def __init__(self, reason: str, limit: Literal["message", "memory"] | None = None) -> None:
        super().__init__(reason)
        self.limit = limit


class _Worker:
    """A running process and the socket that is its standard input. Raises `SandboxError` at its creation."""

    def __init__(self, module: str, limits: WorkerLimits, *, trusts_limit: bool) -> None:
        self._name, self._limits = _short_name(module), limits
        self.missing: tuple[str, ...] = ()
        self.has_greeted = False
        self._trusts_limit, self._is_watched = trusts_limit, False
        self._watched_bytes = limits.memory_bytes
        self._last_error = ""
        try:
            with ExitStack() as undo:
                self._socket, theirs = map(undo.enter_context, socket.socketpair())
                self._errors = undo.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-P", "-m", module],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    env=SINGLE_THREAD | child_environment(os.environ, only=KEPT_VARIABLES),
                    start_new_session=True,
                )
                undo.pop_all()  # `end` closes both
                theirs.close()
        except OSError as error:
            raise SandboxError(f"{self._name} cannot be started: {error.strerror or error}") from error
        self.pid = self._process.pid

    def exchange(self, header: bytes, payload: bytes, cpu_limit_s: float, watched_bytes: int) -> WorkerReply:
        """Returns the reply to a message. Raises `WorkerEndedError`."""
        if not self.has_greeted:
            self._receive_greeting()
        self._watched_bytes = watched_bytes
        deadline_s = time.monotonic() + self._limits.reply_timeout_s
        try:
            self._socket.settimeout(self._limits.reply_timeout_s)
            self._socket.sendall(HEAD.pack(len(header), len(payload), cpu_limit_s) + header)
            if payload:
                self._socket.sendall(payload)
        except OSError as error:
            raise self._describe_end(timed_out=isinstance(error, TimeoutError)) from None
        return self._receive(deadline_s)

    def _receive_greeting(self) -> None:
        try:
            reply = self._receive(time.monotonic() + START_TIMEOUT_S)
            close_descriptors([reply.descriptor])
            self.missing = msgspec.msgpack.decode(reply.header, type=Greeting).missing
        except (WorkerEndedError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.end()
            said = f": {self._last_error}" if self._last_error else ""
            raise WorkerEndedError(f"{error} at its start{said}") from None
        self.has_greeted = True
        self._is_watched = not self._trusts_limit or MEMORY_LIMIT in self.missing

    def _receive(self, deadline_s: float) -> WorkerReply:
        buffer, descriptors = bytearray(), list[int]()
        try:
            self._fill(buffer, HEAD.size, deadline_s, descriptors)
            header_length, payload_length, cpu_s = HEAD.unpack_from(buffer)
            size = HEAD.size + header_length + payload_length
            if header_length <= MAX_SANDBOX_HEADER_BYTES and payload_length <= self._limits.max_payload_bytes:
                self._fill(buffer, size, deadline_s, descriptors)
            if len(buffer) != size:
                self.end()
                raise WorkerEndedError(f"{self._name} sent a reply of {max(size, len(buffer))} bytes")  # noqa: TRY301
        except BaseException:
            close_descriptors(descriptors)
            raise
        close_descriptors(descriptors[1:])
        with memoryview(buffer)[HEAD.size :] as view:
            header, payload = bytes(view[:header_length]), bytes(view[header_length:])
        descriptor = descriptors[0] if descriptors else None
        return WorkerReply(header=header, payload=payload, descriptor=descriptor, cpu_s=cpu_s)

    def _fill(self, buffer: bytearray, size: int, deadline_s: float, descriptors: list[int]) -> None:
        """Appends what the process sends until the buffer has `size` bytes, or more if more is there."""
        while len(buffer) < size:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise self._describe_end(timed_out=True)
            try:
                self._socket.settimeout(min(WATCH_INTERVAL_S, remaining_s) if self._is_watched else remaining_s)
                count = min(max(size - len(buffer), MIN_RECEIVED_BYTES), MAX_RECEIVED_BYTES)
                part, ancillary, _, _ = self._socket.recvmsg(count, ANCILLARY_BYTES)
            except TimeoutError:
                self._check_memory()
                continue
            except OSError:
                part, ancillary = b"", []
            for _, _, data in ancillary:
                descriptors += DESCRIPTOR.unpack(data[: DESCRIPTOR.size])
            if not part:
                raise self._describe_end(timed_out=False)
            buffer += part

    def _check_memory(self) -> None:
        if self._is_watched and (read_resident_bytes(self.pid) or 0) > self._watched_bytes:
            self.end()
            raise WorkerEndedError(f"{self._name} took more than {self._watched_bytes >> 20} MiB", "memory")

    def _describe_end(self, *, timed_out: bool) -> WorkerEndedError:
        """Ends the process, if it still runs, and returns the reason."""
        if timed_out:
            self.end()
            return WorkerEndedError(f"{self._name} did not answer in time")
        try:
            code = self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self.end()
        at_message, at_memory = -code in MESSAGE_LIMIT_SIGNALS, -code in MEMORY_LIMIT_SIGNALS
        reason = f"{self._name} ended ({describe_exit(code)})"
        return WorkerEndedError(reason, "message" if at_message else "memory" if at_memory else None)

    def end(self) -> None:
        """Kills and reaps the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        if not self._errors.closed:
            self._errors.seek(0)
            lines = self._errors.read(1 << 20).decode("utf-8", "replace").split("\n")
            self._last_error = next((text.strip()[:300] for text in reversed(lines) if text.strip()), "")
            self._errors.close()


def _short_name(module: str) -> str:
    return module.rpartition(".")[2]


def close_descriptors(descriptors: Iterable[int | None]) -> None:
    """Closes descriptors that came with a reply. None stands for no descriptor."""
    for each in descriptors:
        if each is not None:
            with suppress(OSError):
                os.close(each)
