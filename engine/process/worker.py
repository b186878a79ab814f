"""The engine's process: it loads a model, steps its core, and hears its parent between two steps.

When there is nothing to do it sleeps on the socket. It lives no longer than its parent: the end of the socket ends it,
and on Linux the kernel does so even inside a step. What it logs goes to standard error. Signals that a terminal or a
service manager sends to everybody are the parent's to answer: it has open streams to bring to an end first.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.messages import (
    AddJob,
    CancelJob,
    Command,
    LoadProgress,
    PingCommand,
    PongReport,
    Report,
    StartCommand,
    StepReport,
    StopCommand,
    WorkerFailed,
    WorkerReady,
    encode_message,
)
from antiphon.engine.process.messages import command_decoder as order_reader
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk

log = logging.getLogger(__name__)

ENGINE_FAILED = Fault("server_error", "the engine failed; see the server's log", retryable=True)
MAX_FAILED_STEPS = 3
"""So many failed steps in a row, without a token between them, mean that the model will not recover by itself."""
RECV_BYTES = 1 << 18
PR_SET_PDEATHSIG = 1


class EngineCore(Protocol):
    """The interface of ``engine.scheduler.core.Core``, which is imported late: torch takes seconds to import."""

    info: EngineInfo

    @property
    def has_work(self) -> bool: ...  # noqa: D102
    def add(self, job: Job) -> None: ...  # noqa: D102
    def cancel(self, job_id: str) -> None: ...  # noqa: D102
    def step(self) -> list[JobChunk]: ...  # noqa: D102
    def abort(self, fault: Fault) -> list[JobChunk]: ...  # noqa: D102
    def stats(self) -> EngineStats: ...  # noqa: D102


CoreFactory = Callable[[Path, EngineOptions], EngineCore]
"""Builds a core from a model folder and options."""


class ParentConnection:
    """This side of the socket. Every method raises ``OSError`` or ``EOFError`` when the parent is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._decoder = order_reader()

    def send(self, report: Report) -> None:
        """Send it; waits while the parent is behind."""
        self._socket.sendall(encode_message(report))

    def receive_commands(self, *, wait: bool) -> list[Command]:
        """What was ordered meanwhile. ``wait``: sleep until there is something."""
        heard: list[Command] = []
        while True:
            try:
                data = self._socket.recv(RECV_BYTES, 0 if wait and not heard else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return heard
            if not data:
                raise EOFError
            heard += self._decoder.feed(data)


def serve_parent(parent: ParentConnection, load: Callable[[StartCommand], EngineCore]) -> None:
    """Everything this process does: returns when it is to end."""
    with contextlib.suppress(EOFError, OSError):
        start, *more = parent.receive_commands(wait=True)
        assert isinstance(start, StartCommand)  # the parent's first word
        try:
            with _report_progress(parent), gc_paused():
                core = load(start)
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("the engine could not start")
            parent.send(WorkerFailed(str(error) if isinstance(error, EngineError) else _describe_error(error)))
            return
        parent.send(WorkerReady(core.info, core.stats().slots, start.options.max_waiting))
        _WorkerLoop(core, parent).run_until_stopped(more)


def load_core(start: StartCommand) -> EngineCore:
    """Builds the core that the command names. Raises :class:`engine.errors.LoadError` with a one-line message."""
    module, _, name = start.core_factory.partition(":")
    factory: CoreFactory = getattr(importlib.import_module(module), name)
    return factory(Path(start.folder), start.options)


def build_torch_core(folder: Path, options: EngineOptions) -> EngineCore:
    """Builds the core of the model in a folder. Raises :class:`engine.errors.LoadError` with a one-line message."""
    log.info("importing torch")
    try:
        from antiphon.engine.builder import build_core  # noqa: PLC0415  torch is an extra, and takes seconds to import
    except ImportError as error:
        raise LoadError(f"the torch engine is not installed ({error}): pip install 'antiphon[torch]'") from None
    log.info("loading weights")
    return build_core(folder, options)


class _WorkerLoop:
    """Orders, then a step, until the parent says stop or the core is beyond help."""

    def __init__(self, core: EngineCore, line: ParentConnection) -> None:
        self._core, self._parent = core, line
        self._rejections: list[JobChunk] = []
        self._last_stats = core.stats()
        self._failed_steps = 0

    def run_until_stopped(self, commands: list[Command]) -> None:
        while not any(isinstance(order, StopCommand) for order in commands):
            for order in commands:
                self._apply_command(order)
            if (self._core.has_work or self._rejections) and not self._step_core():
                return
            commands = self._parent.receive_commands(wait=not self._core.has_work)

    def _apply_command(self, order: Command) -> None:
        if isinstance(order, AddJob):
            self._add_job(order.job)
        elif isinstance(order, CancelJob):
            self._core.cancel(order.id)
        elif isinstance(order, PingCommand):
            self._parent.send(PongReport())

    def _add_job(self, job: Job) -> None:
        try:
            self._core.add(job)
        except EngineError as error:
            fault = Fault(error.code, error.message, error.retryable)
        except Exception:
            log.exception("a fault of the engine itself")
            fault = ENGINE_FAILED
        else:
            return
        self._rejections.append((job.id, Chunk(finish="error", fault=fault)))

    def _step_core(self) -> bool:
        """Step and report. False: this was the last one. What escapes a step has left the core in pieces."""
        said, self._rejections = self._rejections, []
        reason = None
        try:
            if self._core.has_work:
                said += self._core.step()
        except Exception as error:
            log.exception("a fault of the engine itself")
            reason = _describe_error(error)
        stats = self._core.stats()
        reason = reason or self._failure_reason(said, stats)
        if reason is not None:  # told first: nobody who hears of the step's faults is to send another job here
            said += self._core.abort(ENGINE_FAILED)
            self._parent.send(WorkerFailed(reason))
        self._parent.send(StepReport(tuple(said), stats))
        return reason is None

    def _failure_reason(self, said: list[JobChunk], stats: EngineStats) -> str | None:
        """A device that is broken, or memory that stays full, fails every step; a bad request fails its own only."""
        before, self._last_stats = self._last_stats, stats
        if stats.generated_tokens > before.generated_tokens or stats.prompt_tokens > before.prompt_tokens:
            self._failed_steps = 0
        elif stats.failed_jobs > before.failed_jobs:
            self._failed_steps += any(chunk.fault and chunk.fault.code == "server_error" for _, chunk in said)
        return (
            f"the model failed in {MAX_FAILED_STEPS} steps in a row" if self._failed_steps >= MAX_FAILED_STEPS else None
        )


class _ProgressHandler(logging.Handler):
    """Passes on what the engine's modules log while a model loads."""

    def __init__(self, line: ParentConnection) -> None:
        super().__init__(logging.INFO)
        self._parent = line

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._parent.send(LoadProgress(record.getMessage()))


@contextlib.contextmanager
def _report_progress(line: ParentConnection) -> Iterator[None]:
    """While a model loads, whatever ``engine.*`` logs as information is a stage of it."""
    logger, told = logging.getLogger("antiphon.engine"), _ProgressHandler(line)
    level = logger.level
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(told)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage is looked for meanwhile, nor ever among what is there by then.

    What torch and transformers define are hundreds of thousands of objects that stay: to go through them takes a fifth
    of a second each time, a seventh of the loading, and later on between two tokens.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _describe_error(error: Exception) -> str:
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"out of memory ({said})" if short else said


def _exit_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even inside a step. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):  # where memory runs out, the server is to outlive its engine
            Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _receive_connection(control: socket.socket, module: str) -> socket.socket:
    """The line that comes through ``control``; until then, and until it is needed, ``module`` is imported."""

    def prepare() -> None:
        with contextlib.suppress(Exception):  # whoever needs it will hear why it cannot be had
            importlib.import_module(module)

    gc.disable()  # as while a model loads: see `unswept`
    threading.Thread(target=prepare, name="imports", daemon=True).start()
    with control:
        lines = socket.recv_fds(control, 1, 1)[1]
    if not lines:
        os._exit(0)  # nobody needs it
    return socket.socket(fileno=lines[0])


def run_worker(descriptor: int, parent: int, preload: str = "") -> None:
    """Serve the parent behind this file descriptor, then end without ado: there is nothing to be saved.

    With ``early``, the line to serve comes through the descriptor, and this module is imported meanwhile.
    """
    end = socket.socket(fileno=descriptor)
    _exit_with_parent(parent)
    if preload:
        end = _receive_connection(end, preload)
    end.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().handlers[0].setLevel(logging.WARNING)
    code = 1
    try:
        serve_parent(ParentConnection(end), load_core)
        code = 0
    except Exception:
        log.exception("the engine's process broke")
    finally:
        sys.stderr.flush()
        os._exit(code)
