"""A process that reads pictures or PDFs, seen from the server: started at its first use, and again when one has ended.

A message that the process does not survive because of a limit, of CPU time or memory, is the fault of the picture.
Every other end is a fault of the server: the message is tried once more in a new process.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress

import msgspec

from antiphon.app.sandbox.media.messages import (
    CPU_LIMIT_S,
    LENGTHS,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MEDIA_MEMORY_BYTES,
    FaultReply,
    MediaReply,
    MediaRequest,
    WorkerGreeting,
)
from antiphon.app.sandbox.sandbox_process import LIMIT_SIGNALS, SandboxError, WorkerEndedError, read_last_line
from antiphon.engine.process.resident_memory import read_resident_bytes
from antiphon.engine.process.spawn import child_environment, describe_exit

IMAGE_MODULE = "antiphon.app.sandbox.media.image_worker"
PDF_MODULE = "antiphon.app.sandbox.media.pdf_worker"
START_TIMEOUT_S = 60.0
"""Elapsed time in which a process must greet."""
REPLY_TIMEOUT_S = 120.0
"""Elapsed time after which a process that does not reply is killed. It bounds one that waits instead of computing."""
WATCH_INTERVAL_S = 0.05
"""Time between two looks at the memory of a process that the system does not limit."""
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PATH", "TMPDIR", "VIRTUAL_ENV")
"""Environment variables without which the interpreter may not start. The process gets no others."""

SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Threads of libraries would reserve address space, of which the process has little."""


class MediaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply. The receiver closes `descriptor`."""

    reply: MediaReply
    payload: bytes = b""
    descriptor: int | None = None


class MediaProcess:
    """Sends messages to a process that runs `module`, one at a time. Any thread may call it; it blocks."""

    def __init__(self, module: str, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._module, self._cpu_limit_s = module, cpu_limit_s
        self._lock = threading.Lock()
        self._worker: _MediaWorker | None = None
        self._closed = threading.Event()
        self.num_restarts = 0
        """Number of processes that ended during a message and were replaced."""

    @property
    def pid(self) -> int | None:
        """Id of the running process; None if there is none."""
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def missing(self) -> tuple[str, ...]:
        """Limits that the system does not offer; empty before the first start."""
        worker = self._worker
        return () if worker is None else worker.missing

    def exchange(self, request: MediaRequest, payload: bytes = b"") -> MediaAnswer:
        """Returns the answer to a message. Raises `SandboxError` if the process does not work."""
        with self._lock:
            try:
                return self._exchange(request, payload)
            finally:
                if self._closed.is_set() and self._worker is not None:  # it was started while `close` looked for it
                    self._worker.end()

    def _exchange(self, request: MediaRequest, payload: bytes) -> MediaAnswer:
        if not self._closed.is_set():
            for is_last in (True,) if self._worker is None else (False, True):
                try:
                    if self._worker is None:
                        self._worker = _MediaWorker(self._module, self._cpu_limit_s)
                    if self._closed.is_set():
                        break
                    return self._worker.exchange(msgspec.msgpack.encode(request), payload)
                except WorkerEndedError as end:
                    self._worker = None
                    if self._closed.is_set():
                        break
                    self._restart()
                    if end.at_limit:
                        return MediaAnswer(reply=FaultReply("too_slow"))
                    if is_last:
                        raise SandboxError(str(end)) from end
        raise SandboxError("the server stops")

    def _restart(self) -> None:
        """Starts the next process at once, so that the next message does not wait for it."""
        self.num_restarts += 1
        with suppress(SandboxError):
            self._worker = _MediaWorker(self._module, self._cpu_limit_s)

    def close(self) -> None:
        """Kills the process and lets no other start. A message that is being answered fails."""
        self._closed.set()
        worker = self._worker
        if worker is not None:
            worker.end()


class _MediaWorker:
    """A running process and the socket that is its standard input. Raises `SandboxError` at its creation."""

    def __init__(self, module: str, cpu_limit_s: float) -> None:
        self._name = module.rpartition(".")[2]
        self.missing: tuple[str, ...] = ()
        self._has_greeted = False
        self._last_error = ""
        try:
            with ExitStack() as undo:
                self._socket, theirs = map(undo.enter_context, socket.socketpair())
                self._errors = undo.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-P", "-m", module, str(cpu_limit_s)],
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

    def exchange(self, header: bytes, payload: bytes) -> MediaAnswer:
        """Returns the answer to a message. Raises `WorkerEndedError`."""
        if not self._has_greeted:
            self._receive_greeting()
        deadline_s = time.monotonic() + REPLY_TIMEOUT_S
        try:
            self._socket.settimeout(REPLY_TIMEOUT_S)
            self._socket.sendall(LENGTHS.pack(len(header), len(payload)) + header)
            self._socket.sendall(payload)
        except OSError as error:
            raise self._describe_end(timed_out=isinstance(error, TimeoutError)) from None
        header, answer_payload, descriptors = self._receive(deadline_s)
        try:
            reply = msgspec.msgpack.decode(header, type=MediaReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            _close(descriptors)
            raise self._refuse("a reply that is none") from None
        _close(descriptors[1:])
        return MediaAnswer(reply=reply, payload=answer_payload, descriptor=descriptors[0] if descriptors else None)

    def _receive_greeting(self) -> None:
        try:
            header, _, descriptors = self._receive(time.monotonic() + START_TIMEOUT_S)
            _close(descriptors)
            self.missing = msgspec.msgpack.decode(header, type=WorkerGreeting).missing
        except (WorkerEndedError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.end()
            said = f": {self._last_error}" if self._last_error else ""
            raise WorkerEndedError(f"{error} at its start{said}", at_limit=False) from None
        self._has_greeted = True

    def _receive(self, deadline_s: float) -> tuple[bytes, bytes, list[int]]:
        descriptors: list[int] = []
        try:
            lengths = self._receive_exactly(LENGTHS.size, deadline_s, descriptors)
            header_length, payload_length = LENGTHS.unpack(lengths)
            if header_length > MAX_HEADER_BYTES or payload_length > MAX_PAYLOAD_BYTES:
                raise self._refuse(f"a reply of {header_length + payload_length} bytes")  # noqa: TRY301
            header = self._receive_exactly(header_length, deadline_s, descriptors)
            return header, self._receive_exactly(payload_length, deadline_s, descriptors), descriptors
        except BaseException:
            _close(descriptors)
            raise

    def _receive_exactly(self, count: int, deadline_s: float, descriptors: list[int]) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise self._describe_end(timed_out=True)
            try:
                self._socket.settimeout(min(WATCH_INTERVAL_S, remaining_s) if self._is_watched else remaining_s)
                part, received, _, _ = socket.recv_fds(self._socket, min(count - len(parts), 1 << 20), 1)
            except TimeoutError:
                self._check_memory()
                continue
            except OSError:
                part, received = b"", []
            descriptors += received
            if not part:
                raise self._describe_end(timed_out=False)
            parts += part
        return bytes(parts)

    @property
    def _is_watched(self) -> bool:
        return "a limit of memory" in self.missing

    def _check_memory(self) -> None:
        if self._is_watched and (read_resident_bytes(self.pid) or 0) > MEDIA_MEMORY_BYTES:
            self.end()
            raise WorkerEndedError(f"{self._name} took more than {MEDIA_MEMORY_BYTES >> 20} MiB", at_limit=True)

    def _refuse(self, what: str) -> WorkerEndedError:
        self.end()
        return WorkerEndedError(f"{self._name} sent {what}", at_limit=False)

    def _describe_end(self, *, timed_out: bool) -> WorkerEndedError:
        """Ends the process, if it still runs, and returns the reason."""
        if timed_out:
            self.end()
            return WorkerEndedError(f"{self._name} did not answer in time", at_limit=False)
        try:
            code = self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self.end()
        return WorkerEndedError(f"{self._name} ended ({describe_exit(code)})", at_limit=-code in LIMIT_SIGNALS)

    def end(self) -> None:
        """Kills and reaps the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        if not self._errors.closed:
            self._last_error = read_last_line(self._errors)
            self._errors.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
