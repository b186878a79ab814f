"""A turn: the one place where a dialect meets an engine.

A turn hands its job to the engine and writes down what the scribe says of the answer. It runs as a task of its own, so
that it goes on, or ends, whatever its readers do. It knows no HTTP and no face of the wire. `app.turns.manager` opens
it.

Blame decides how a fault travels: what is wrong before the engine has admitted the job is raised as `ApiError` to
whoever opened the turn; everything later is an event in the log. Whatever happens, the log ends with a terminal event.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from antiphon.app.errors import ApiError, from_engine
from antiphon.app.event_log import EntryDetail, EventLog
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.engine.protocol import Chunk, Engine, EngineError, Job

_logger = structlog.get_logger(__name__)

SHUTTING_DOWN_MESSAGE = "The server is shutting down; send the request again."
BROKEN_MESSAGE = "The server had an error while processing the request."
GONE_MESSAGE = "The request was cancelled before it began."


class TurnTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a turn is, in seconds."""

    queue_after_s: float = 1.0
    """A job that was not admitted by then is said to be queued, so that the client sees a stream."""
    keepalive_after_s: float = 60.0
    """A stream that has said nothing for so long repeats its stage: some clients give up after 300 s of silence."""
    render_cpu_limit_s: float = 10.0
    """Laying out a prompt may take so much CPU time."""


class Turn:
    """One job, from the engine's first chunk to the log's last event.

    `opened` is done when a reply may begin: the job was admitted, or is known to wait. It raises `ApiError` where the
    engine refused the job.
    """

    def __init__(
        self, log: EventLog, processor: OutputProcessor, engine: Engine, job: Job, timeouts: TurnTimeouts
    ) -> None:
        self.log = log
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scribe, self._engine, self._job, self._pace = processor, engine, job, timeouts
        self._ending: Callable[[], None] = processor.cancel
        self._loop = asyncio.get_running_loop()
        self._said_at = self._began = self._loop.time()
        self._first_at: float | None = None
        self._admitted = False
        self._work: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run_turn(), name=f"turn-{log.id}")

    @property
    def task(self) -> asyncio.Task[None]:
        """The task the turn runs in. It never raises."""
        return self._task

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._loop.time() - self._began

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from its begin to its first token, if one came."""
        return None if self._first_at is None else self._first_at - self._began

    def cancel_turn(self) -> None:
        """Nobody wants the rest."""
        self._task.cancel()

    def fail_for_shutdown(self) -> None:
        """The server must go: end as failed, which agents take as a reason to send the request again."""
        self._ending = lambda: self._scribe.fail("server_error", SHUTTING_DOWN_MESSAGE)
        self._task.cancel()

    async def _run_turn(self) -> None:
        keepalive = asyncio.create_task(self._send_keepalive(), name=f"keepalive-{self.log.id}")
        try:
            await self._generate()
        except EngineError as error:
            self._on_engine_error(error)
        except asyncio.CancelledError:
            self._end_turn(self._ending)
        except Exception:
            trace = [f"{state.name} {letter.name}" for state, letter in self._scribe.machine.trace]
            _logger.exception("unhandled exception in turn", response=self.log.id, trace=trace)
            self._end_turn(lambda: self._scribe.fail("server_error", BROKEN_MESSAGE))
        finally:
            keepalive.cancel()
            try:
                self._write_events()
            finally:
                self.log.end_log()
                self._reject(ApiError(503, "cancelled", GONE_MESSAGE))

    async def _generate(self) -> None:
        """Have the engine work on the job until the turn is over, which may be sooner than the engine thinks."""
        if self.log.base_response.background:
            self._announce_queued()
        queued = self._loop.call_later(self._pace.queue_after_s, self._announce_queued)
        work = self._work = asyncio.create_task(self._engine.generate(self._job, self._on_chunk))
        try:
            await asyncio.wait({work})
        finally:
            queued.cancel()
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await work
        if not work.cancelled():
            work.result()
        if not self._scribe.is_ended:
            raise RuntimeError("the engine came back without a finish")

    def _announce_queued(self) -> None:
        """Say that the job waits, once: nobody is to wait for the first word until it is admitted."""
        if not self.log.entries:
            self._scribe.on_queued()
            self._mark_started()

    def _on_chunk(self, chunk: Chunk) -> None:
        """Write down what the engine brings. The last events are shown only once the slot is free: see `_run`."""
        if not self._admitted:
            self._admitted = True
            self._scribe.on_admitted(chunk)
            self._mark_started()
        else:
            if self._first_at is None and chunk.tokens:
                self._first_at = self._loop.time()
            self._scribe.process_chunk(chunk)
            if not self._scribe.is_ended:
                self._write_events(chunk)
                return
        if self._scribe.is_ended and chunk.finish is None and self._work is not None:
            self._work.cancel()

    def _mark_started(self) -> None:
        self._write_events()
        if not self.started.done():
            self.started.set_result(None)

    def _write_events(self, chunk: Chunk | None = None) -> None:
        said = self._scribe.collect_events()
        if said:
            self._said_at = self._loop.time()
            detail = EntryDetail(tokens=chunk.tokens if chunk else (), stop_string=self._scribe.matched_stop)
            self.log.append_step(said, detail)

    def _on_engine_error(self, error: EngineError) -> None:
        if self.log.entries:
            self._end_turn(lambda: self._scribe.fail(error.code, error.message))
        else:
            self._reject(from_engine(error))

    def _reject(self, error: ApiError) -> None:
        if not self.started.done():
            self.started.set_exception(error)
            self.started.exception()  # whoever opened it may be gone: then nobody else asks for it

    def _end_turn(self, ending: Callable[[], None]) -> None:
        """Say how it ended, unless that was said, or nothing was: then the answer is an HTTP error."""
        if self.log.entries and not self._scribe.is_ended:
            ending()

    async def _send_keepalive(self) -> None:
        while True:
            silent = self._loop.time() - self._said_at
            if silent < self._pace.keepalive_after_s:
                await asyncio.sleep(self._pace.keepalive_after_s - silent)
                continue
            self._said_at = self._loop.time()
            self._scribe.keepalive()
            self._write_events()
