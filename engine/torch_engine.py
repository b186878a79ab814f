"""The torch engine's asyncio face: a thread runs the core's steps, streams receive what the steps bring.

It knows nothing of models: whatever :class:`Core` can do, it passes on. The thread and the event loop share only an
inbox of commands; a step wakes the loop once, however many tokens it brings.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.build import Options, build_core
from engine.core import Core, Said, check
from engine.protocol import Chunk, EngineError, EngineInfo, Fault, Job, Stats

log = logging.getLogger(__name__)

Command = Callable[[Core], None]
T = TypeVar("T")

STOPPED = Fault("engine_unavailable", "the engine was stopped", retryable=True)
FAILED = Fault("server_error", "the engine failed; see the server's log", retryable=True)


class TorchEngine:
    """Serves the model of ``source``, a local folder, with :class:`Options`; or the core that ``build`` makes.

    ``build`` runs in the engine's thread, so that the event loop stays free while a model loads.
    """

    def __init__(
        self, source: str | Path = "", options: Options | None = None, *, build: Callable[[], Core] | None = None
    ) -> None:
        self._build = build or (lambda: build_core(Path(source), options or Options()))
        self._streams: dict[str, asyncio.Queue[Chunk]] = {}
        self._inbox: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._core: Core | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def info(self) -> EngineInfo:
        """What is fixed about the model; raises ``engine_unavailable`` before :meth:`start`."""
        return self._ready().info

    async def start(self) -> None:
        """Load the model. Raises :class:`EngineError` (``LoadError``) with one line for a person."""
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._inbox.clear()
        loaded: asyncio.Future[Core] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, args=(self._loop, loaded), name="engine", daemon=True)
        self._thread.start()
        self._core = await loaded

    async def close(self) -> None:
        """End every job in flight and stop the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
        self._core = None
        for stream in self._streams.values():
            stream.put_nowait(Chunk(finish="error", fault=STOPPED))

    async def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The job's chunks, by the rules of ``engine.protocol``."""
        core = self._ready()
        check(job, core.info)
        if job.id in self._streams:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        stream = self._streams[job.id] = asyncio.Queue()
        ended = admitted = False
        try:
            self._post(lambda core: self._add(core, job))
            while not ended:
                chunk = await stream.get()
                ended = chunk.finish is not None
                if ended and not admitted:
                    fault = chunk.fault or Fault("cancelled", "the job was cancelled while it waited", retryable=True)
                    raise EngineError(fault.code, fault.message, fault.retryable)
                admitted = True
                yield chunk
        finally:
            del self._streams[job.id]
            if not ended:
                await self.cancel(job.id)

    async def cancel(self, job_id: str) -> None:
        """End a job before the next step."""
        self._post(lambda core: core.cancel(job_id))

    def stats(self) -> Stats:
        """Counts of this moment; all zero while there is no model."""
        return self._core.stats() if self._core else Stats()

    def _ready(self) -> Core:
        if self._core is None:
            raise EngineError("engine_unavailable", "the engine is not running", retryable=True)
        return self._core

    def _post(self, command: Command) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # What follows runs in the engine's thread.

    def _work(self, loop: asyncio.AbstractEventLoop, loaded: "asyncio.Future[Core]") -> None:
        try:
            core = self._build()
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("the engine could not start")
                error = EngineError("engine_unavailable", f"{type(error).__name__}: {error}")
            _tell(loop, partial(_settle, loaded), error)
            return
        _tell(loop, partial(_settle, loaded), core)
        while not self._stopping:
            said = self._turn(core)
            if said:
                _tell(loop, self._deliver, said)
        _tell(loop, self._deliver, core.abort(STOPPED))

    def _turn(self, core: Core) -> list[Said]:
        """Commands, then one step. A fault of the core itself, unlike one of the model, fails everybody."""
        try:
            return core.step() if self._collect(core) else []
        except Exception:
            log.exception("a fault of the engine itself")
            return core.abort(FAILED)

    def _collect(self, core: Core) -> bool:
        """Carry out what was asked for; wait while there is nothing to do. False: stop."""
        while True:
            with self._wake:
                while not (self._inbox or core.busy or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    return False
            while self._inbox:
                self._inbox.popleft()(core)
            if core.busy:
                return True

    def _add(self, core: Core, job: Job) -> None:
        try:
            core.add(job)
        except EngineError as error:
            fault = Fault(error.code, error.message, error.retryable)
        except Exception:
            log.exception("a fault of the engine itself")
            fault = FAILED
        else:
            return
        if self._loop is not None:
            _tell(self._loop, self._deliver, [(job.id, Chunk(finish="error", fault=fault))])

    def _deliver(self, said: list[Said]) -> None:
        """In the event loop: hand each chunk to its stream; streams that were closed meanwhile are passed over."""
        for job_id, chunk in said:
            if job_id in self._streams:
                self._streams[job_id].put_nowait(chunk)


def _settle(loaded: "asyncio.Future[Core]", outcome: Core | Exception) -> None:
    """Tell :meth:`TorchEngine.start` how it went, unless nobody waits for it any more."""
    if loaded.done():
        return
    if isinstance(outcome, Exception):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[T], object], value: T) -> None:
    """Call back in the event loop, unless it is closed already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, value)
