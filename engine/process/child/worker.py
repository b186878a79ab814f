"""The worker process: loads a model, steps its core, and reads its parent's commands between two steps.

When idle, the worker sleeps on the socket. It exits with its parent: when the socket is closed, and on Linux the kernel
kills it even inside a step. It logs to standard error. It ignores signals that a terminal or a service manager sends to
all processes, because the parent has to finish its open streams first.
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

from antiphon.engine.errors import LoadError, is_out_of_memory
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.child.adapter_commands import apply_adapter_command
from antiphon.engine.process.child.gpu_memory import GpuMemory
from antiphon.engine.process.child.parent_connection import ParentConnection
from antiphon.engine.process.child.picture_exchange import PictureExchange
from antiphon.engine.process.messages import (
    AddJob,
    CancelJob,
    Command,
    LoadAdapter,
    LoadProgress,
    MediaData,
    MediaMissing,
    PingCommand,
    PongReport,
    StartCommand,
    StepReport,
    StopCommand,
    UnloadAdapter,
    WorkerFailed,
    WorkerReady,
)
from antiphon.engine.process.output import WORKER_FORMAT
from antiphon.engine.process.timeouts import FLUSH_TIMEOUT_S
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk

log = logging.getLogger(__name__)

ENGINE_FAILED = Fault("server_error", "the engine failed; see the server's log", retryable=True)
MAX_FAILED_STEPS = 3
"""Failed steps in a row, with no token processed in between, after which the worker gives up: the model will not
recover by itself."""
PR_SET_PDEATHSIG = 1


class EngineCore(Protocol):
    """The interface of `engine.scheduler.core.Core`, which is imported late: torch takes seconds to import."""

    info: EngineInfo

    @property
    def has_work(self) -> bool: ...  # noqa: D102
    def add(self, job: Job) -> None: ...  # noqa: D102
    def cancel(self, job_id: str) -> None: ...  # noqa: D102
    def step(self) -> list[JobChunk]: ...  # noqa: D102
    def stats(self) -> EngineStats: ...  # noqa: D102


CoreFactory = Callable[[Path, EngineOptions], EngineCore]
"""Builds a core from a model folder and options."""


def serve_parent(parent: ParentConnection, load: Callable[[StartCommand], EngineCore]) -> None:
    """Loads the core and serves the parent. Returns when the parent stops the worker or exits, or the core fails."""
    with contextlib.suppress(EOFError, OSError), contextlib.closing(parent.descriptors):
        start, *commands = parent.receive_commands(wait=True)
        assert isinstance(start, StartCommand)  # always the parent's first command
        try:
            with _report_progress(parent), gc_paused():
                core = load(start)
        except Exception as error:  # the server gets the fault of any load
            if not isinstance(error, EngineError):
                log.exception("the engine could not start")
            parent.send(WorkerFailed(str(error) if isinstance(error, EngineError) else _describe_error(error)))
            return
        parent.send(WorkerReady(core.info, core.stats().max_num_seqs, start.options.max_waiting))
        _WorkerLoop(core, parent).run_until_stopped(commands)


def load_core(start: StartCommand) -> EngineCore:
    """Builds the core that the command names. Raises `engine.errors.LoadError` with a one-line message."""
    module, _, name = start.core_factory.partition(":")
    factory: CoreFactory = getattr(importlib.import_module(module), name)
    return factory(Path(start.folder), start.options)


def build_torch_core(folder: Path, options: EngineOptions) -> EngineCore:
    """Builds the core of the model in a folder. Raises `engine.errors.LoadError` with a one-line message."""
    log.info("importing torch")
    try:
        from antiphon.engine.builder import build_core  # noqa: PLC0415  torch is an extra, and takes seconds to import
    except ImportError as error:
        remedy = "install torch and transformers, or use `make serve`"
        raise LoadError(f"the torch engine is not installed ({error}): {remedy}") from None
    log.info("loading weights")
    return build_core(folder, options)


class _WorkerLoop:
    """Applies commands and steps the core in turn, until the parent sends a stop command or the core fails."""

    def __init__(self, core: EngineCore, parent: ParentConnection) -> None:
        self._core, self._parent = core, parent
        self._rejections: list[JobChunk] = []
        self._last_stats = core.stats()
        self._gpu_memory = GpuMemory(core.info.device)
        self._pictures = PictureExchange(core, parent.send, parent.descriptors)
        self._failed_steps = 0

    def run_until_stopped(self, commands: list[Command]) -> None:
        while not any(isinstance(command, StopCommand) for command in commands):
            for command in commands:
                self._apply_command(command)
            if (self._core.has_work or self._rejections) and not self._step_core():
                return
            self._pictures.send_requests()
            self._pictures.wait_for_work(self._parent.fileno())
            commands = self._parent.receive_commands(wait=not self._core.has_work)
        close_core = getattr(self._core, "close", None)
        if close_core is not None:  # cores of encoders keep nothing
            close_core(FLUSH_TIMEOUT_S)

    def _apply_command(self, command: Command) -> None:
        if isinstance(command, AddJob):
            self._add_job(command.job)
        elif isinstance(command, CancelJob):
            self._core.cancel(command.id)
        elif isinstance(command, PingCommand):
            self._parent.send(PongReport())
        elif isinstance(command, MediaData | MediaMissing):
            self._pictures.apply_answer(command)
        elif isinstance(command, LoadAdapter | UnloadAdapter):
            self._parent.send(apply_adapter_command(self._core, command))

    def _add_job(self, job: Job) -> None:
        try:
            self._core.add(job)
        except EngineError as error:
            fault = Fault(error.code, error.message, error.retryable)
        except Exception:  # a fault of one job must not end the others
            log.exception("adding a job failed")
            fault = ENGINE_FAILED
        else:
            return
        self._rejections.append((job.id, Chunk(finish="error", fault=fault)))

    def _step_core(self) -> bool:
        """Steps the core and reports the step. Returns False if the core has failed.

        An exception that escapes a step leaves the core in an undefined state, and therefore counts as a failure.
        """
        chunks, self._rejections = self._rejections, []
        reason = None
        try:
            if self._core.has_work:
                chunks += self._core.step()
        except Exception as error:  # the jobs of the step end with the fault
            log.exception("engine step failed")
            reason = _describe_error(error)
        stats = self._gpu_memory.add_to(self._core.stats())
        reason = reason or self._failure_reason(chunks, stats)
        if reason is not None:  # sent first, so that no job is sent to this worker any more
            self._parent.send(WorkerFailed(reason))
        self._parent.send(StepReport(tuple(chunks), stats))
        return reason is None

    def _failure_reason(self, chunks: list[JobChunk], stats: EngineStats) -> str | None:
        """Returns a reason to give up after `MAX_FAILED_STEPS` failed steps in a row; otherwise None.

        A broken device or full memory fails every step; a bad request fails only its own job.
        """
        previous, self._last_stats = self._last_stats, stats
        if stats.generated_tokens > previous.generated_tokens or stats.prompt_tokens > previous.prompt_tokens:
            self._failed_steps = 0
        elif stats.failed_jobs > previous.failed_jobs:
            self._failed_steps += any(chunk.fault and chunk.fault.code == "server_error" for _, chunk in chunks)
        return (
            f"the model failed in {MAX_FAILED_STEPS} steps in a row" if self._failed_steps >= MAX_FAILED_STEPS else None
        )


class _ProgressHandler(logging.Handler):
    """Sends INFO records of the engine's loggers to the parent as loading stages."""

    def __init__(self, parent: ParentConnection) -> None:
        super().__init__(logging.INFO)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._parent.send(LoadProgress(record.getMessage()))


@contextlib.contextmanager
def _report_progress(parent: ParentConnection) -> Iterator[None]:
    """Reports INFO records of `antiphon.engine` loggers as loading stages inside the `with` block."""
    logger, handler = logging.getLogger("antiphon.engine"), _ProgressHandler(parent)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the garbage collector inside the `with` block, and freezes everything allocated by its end.

    Importing torch and transformers leaves hundreds of thousands of permanent objects. Scanning them takes a fifth of a
    second each time: a seventh of the loading time, and later a pause between two tokens.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _describe_error(error: Exception) -> str:
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return f"out of memory ({message})" if is_out_of_memory(error) else message


def _exit_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent exits, even inside a step. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):  # if memory runs out, the engine is killed before the server
            Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _receive_connection(control: socket.socket, module: str) -> socket.socket:
    """Waits for the connection that the parent passes through `control`. Imports `module` while waiting."""

    def import_module() -> None:
        with contextlib.suppress(Exception):  # the import is repeated, and its error reported, when the module is used
            importlib.import_module(module)

    gc.disable()  # for the same reason as in `gc_paused`, which enables it again
    threading.Thread(target=import_module, name="imports", daemon=True).start()
    with control:
        descriptors = socket.recv_fds(control, 1, 1)[1]
    if not descriptors:
        os._exit(0)  # the parent does not need this worker
    return socket.socket(fileno=descriptors[0])


def run_worker(descriptor: int, parent: int, preload: str = "") -> None:
    """Serves the parent over the socket `descriptor`, then exits without cleanup: there is no state to save.

    With `preload`, the connection to serve is received through that socket, and the module `preload` is imported
    while waiting for it.
    """
    connection = socket.socket(fileno=descriptor)
    _exit_with_parent(parent)
    if preload:
        connection = _receive_connection(connection, preload)
    connection.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format=WORKER_FORMAT)
    logging.getLogger().handlers[0].setLevel(logging.WARNING)
    code = 1
    try:
        serve_parent(ParentConnection(connection), load_core)
        code = 0
    except Exception:  # the exit status tells the server that the worker failed
        log.exception("the worker process failed")
    finally:
        sys.stderr.flush()
        os._exit(code)
