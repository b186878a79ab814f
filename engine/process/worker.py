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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from antiphon.engine.checkpoint.files import LoadError
from antiphon.engine.process.messages import (
    Add,
    Cancel,
    Failed,
    Order,
    Ping,
    Pong,
    Ready,
    Report,
    Said,
    Stage,
    Start,
    Step,
    Stop,
    pack,
)
from antiphon.engine.process.messages import orders as order_reader
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Fault, Job, Stats

log = logging.getLogger(__name__)

FAILED = Fault("server_error", "the engine failed; see the server's log", retryable=True)
BARREN = 3
"""So many failed steps in a row, without a token between them, mean that the model will not recover by itself."""
READ = 1 << 18
PR_SET_PDEATHSIG = 1


class Steps(Protocol):
    """The interface of ``engine.scheduler.core.Core``, which is imported late: torch takes seconds to import."""

    info: EngineInfo

    @property
    def busy(self) -> bool: ...  # noqa: D102
    def add(self, job: Job) -> None: ...  # noqa: D102
    def cancel(self, job_id: str) -> None: ...  # noqa: D102
    def step(self) -> list[Said]: ...  # noqa: D102
    def abort(self, fault: Fault) -> list[Said]: ...  # noqa: D102
    def stats(self) -> Stats: ...  # noqa: D102


Build = Callable[[Path, Mapping[str, Any]], tuple[Steps, int]]
"""Makes a core of a folder and options, and says how many jobs may wait for a slot."""


class Line:
    """This side of the socket. Every method raises ``OSError`` or ``EOFError`` when the parent is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._orders = order_reader()

    def say(self, report: Report) -> None:
        """Send it; waits while the parent is behind."""
        self._end.sendall(pack(report))

    def hear(self, *, wait: bool) -> list[Order]:
        """What was ordered meanwhile. ``wait``: sleep until there is something."""
        heard: list[Order] = []
        while True:
            try:
                data = self._end.recv(READ, 0 if wait and not heard else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return heard
            if not data:
                raise EOFError
            heard += self._orders.feed(data)


def serve(line: Line, load: Callable[[Start], tuple[Steps, int]]) -> None:
    """Everything this process does: returns when it is to end."""
    with contextlib.suppress(EOFError, OSError):
        start, *more = line.hear(wait=True)
        assert isinstance(start, Start)  # the parent's first word
        try:
            with _stages(line), unswept():
                core, queue = load(start)
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("the engine could not start")
            line.say(Failed(str(error) if isinstance(error, EngineError) else _one_line(error)))
            return
        line.say(Ready(core.info, core.stats().slots, queue))
        _Service(core, line).run(more)


def load(start: Start) -> tuple[Steps, int]:
    """The core that the order names. Raises :class:`engine.checkpoint.files.LoadError` with one line for a person."""
    module, _, name = start.build.partition(":")
    build: Build = getattr(importlib.import_module(module), name)
    return build(Path(start.folder), start.options)


def torch_core(folder: Path, given: Mapping[str, Any]) -> tuple[Steps, int]:
    """The model of a folder; ``given`` are fields of ``engine.builder.Options``. Raises as :func:`load` does."""
    log.info("importing torch")
    try:
        from antiphon.engine.builder import Options, build_core  # noqa: PLC0415 - torch is an extra, and takes seconds to import
    except ImportError as error:
        raise LoadError(f"the torch engine is not installed ({error}): pip install 'antiphon[torch]'") from None
    if strange := set(given) - set(Options.__struct_fields__):
        raise LoadError(f"unknown engine options: {', '.join(sorted(strange))}")
    try:
        options = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise LoadError(f"engine options: {error}") from None
    log.info("loading weights")
    return build_core(folder, options), options.queue


class _Service:
    """Orders, then a step, until the parent says stop or the core is beyond help."""

    def __init__(self, core: Steps, line: Line) -> None:
        self._core, self._line = core, line
        self._refused: list[Said] = []
        self._before = core.stats()
        self._barren = 0

    def run(self, heard: list[Order]) -> None:
        while not any(isinstance(order, Stop) for order in heard):
            for order in heard:
                self._obey(order)
            if (self._core.busy or self._refused) and not self._step():
                return
            heard = self._line.hear(wait=not self._core.busy)

    def _obey(self, order: Order) -> None:
        if isinstance(order, Add):
            self._add(order.job)
        elif isinstance(order, Cancel):
            self._core.cancel(order.id)
        elif isinstance(order, Ping):
            self._line.say(Pong())

    def _add(self, job: Job) -> None:
        try:
            self._core.add(job)
        except EngineError as error:
            fault = Fault(error.code, error.message, error.retryable)
        except Exception:
            log.exception("a fault of the engine itself")
            fault = FAILED
        else:
            return
        self._refused.append((job.id, Chunk(finish="error", fault=fault)))

    def _step(self) -> bool:
        """Step and report. False: this was the last one. What escapes a step has left the core in pieces."""
        said, self._refused = self._refused, []
        reason = None
        try:
            if self._core.busy:
                said += self._core.step()
        except Exception as error:
            log.exception("a fault of the engine itself")
            reason = _one_line(error)
        stats = self._core.stats()
        reason = reason or self._hopeless(said, stats)
        if reason is not None:  # told first: nobody who hears of the step's faults is to send another job here
            said += self._core.abort(FAILED)
            self._line.say(Failed(reason))
        self._line.say(Step(tuple(said), stats))
        return reason is None

    def _hopeless(self, said: list[Said], stats: Stats) -> str | None:
        """A device that is broken, or memory that stays full, fails every step; a bad request fails its own only."""
        before, self._before = self._before, stats
        if stats.generated_tokens > before.generated_tokens or stats.prompt_tokens > before.prompt_tokens:
            self._barren = 0
        elif stats.faults > before.faults:
            self._barren += any(chunk.fault and chunk.fault.code == "server_error" for _, chunk in said)
        return f"the model failed in {BARREN} steps in a row" if self._barren >= BARREN else None


class _Told(logging.Handler):
    """Passes on what the engine's modules log while a model loads."""

    def __init__(self, line: Line) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._line.say(Stage(record.getMessage()))


@contextlib.contextmanager
def _stages(line: Line) -> Iterator[None]:
    """While a model loads, whatever ``engine.*`` logs as information is a stage of it."""
    logger, told = logging.getLogger("engine"), _Told(line)
    level = logger.level
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(told)


@contextlib.contextmanager
def unswept() -> Iterator[None]:
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


def _one_line(error: Exception) -> str:
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"out of memory ({said})" if short else said


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even inside a step. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):  # where memory runs out, the server is to outlive its engine
            Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _called(control: socket.socket, module: str) -> socket.socket:
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


def main(descriptor: int, parent: int, early: str = "") -> None:
    """Serve the parent behind this file descriptor, then end without ado: there is nothing to be saved.

    With ``early``, the line to serve comes through the descriptor, and this module is imported meanwhile.
    """
    end = socket.socket(fileno=descriptor)
    _die_with(parent)
    if early:
        end = _called(end, early)
    end.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().handlers[0].setLevel(logging.WARNING)
    code = 1
    try:
        serve(Line(end), load)
        code = 0
    except Exception:
        log.exception("the engine's process broke")
    finally:
        sys.stderr.flush()
        os._exit(code)
