"""A turn: one generation request in progress.

A turn submits its job to the engine, passes each chunk to the output processor, and appends the events that result to
the log. It runs in its own task, so that it does not depend on its readers. It knows no dialect (the output processor
has it), no connection and no projection. `TurnManager` creates turns.

An engine error before the first event is raised as `ApiError` to the caller that started the turn; a later one becomes
an event in the log. In every case, a log with events ends with a terminal event.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from antiphon.app.errors import SERVER_ERROR, ApiError, from_engine
from antiphon.app.turn_types.endings import Cause, Ending, ending_of_fault
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.compaction import STAGE_INTERVAL_S, CompactedTurn, CompactionJob
from antiphon.app.turns.jobs import end_task, wait_for_engine
from antiphon.app.turns.media.resolver import NO_MEDIA
from antiphon.app.turns.output.output_processor import OutputProcessor
from antiphon.app.turns.prompts.prompt_renderer import EmptySummaryError
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import Chunk, Engine, EngineError, Job

_logger = structlog.get_logger(__name__)

SHUTTING_DOWN_MESSAGE = "The server is shutting down. Retry the request."
BROKEN_MESSAGE = "The server had an error while processing the request."
MAX_STORE_WAIT_S = 30.0
"""Time for which a call of a tool waits until the store has it. It is never run before."""
UNKEPT_MESSAGE = "The server could not store the call of a tool, so it did not run it."
CANCELLED_BEFORE_START = EngineError("cancelled", "The request was cancelled before it started.")


class Turn:
    """One job, from its submission to the engine to the log's last event.

    The future `started` is done when a reply can begin: the job was admitted or reported as queued. It raises
    `ApiError` if the turn ends before its first event. `grammar_param`: the request's field that needs a grammar.
    """

    def __init__(
        self,
        log: EventLog,
        processor: OutputProcessor,
        engine: Engine,
        job: Job,
        timeouts: TurnTimeouts,
        grammar_param: str | None = None,
        compaction: CompactionJob | None = None,
        rounds: RoundPlanner | None = None,
    ) -> None:
        self.log = log
        self.stats = log.stats = processor.stats
        self.compacted: CompactedTurn | None = None
        """The turn after its compaction; None if it has not been compacted."""
        self.media = NO_MEDIA  # images of the prompt, for which the engine may ask until the turn has ended
        self.release_answers: Callable[[], None] = lambda: None  # called before the last event is written
        self.is_continued = False  # true if another process began the turn; the processor is where that one was
        self._compaction, self._rounds, self._grammar_param = compaction, rounds, grammar_param
        self._processor, self.engine, self._job, self._timeouts = processor, engine, job, timeouts
        self._interruption, self._refusal = Ending("cancelled"), from_engine(CANCELLED_BEFORE_START)
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._last_write_at = time.monotonic()
        self._admitted, self._is_generating = processor.round.is_admitted, False  # a job generates until its last chunk
        self._work: asyncio.Task[None] | None = None
        self._tools: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run_turn(), name=f"turn-{log.id}")
        """It never raises."""

    def cancel_turn(self, cause: Cause = "cancelled", refusal: ApiError | None = None) -> None:
        """Ends the turn as cancelled, unless it has ended; with the error `refusal` if it has no event yet."""
        self._refusal = refusal or self._refusal
        self._interrupt(Ending(cause))

    def steer_turn(self) -> None:
        """Ends the turn as soon as no item is open, unless it has ended or waits for a tool of the client."""
        self._processor.request_steer()
        self._stop_engine()

    def end_for_shutdown(self) -> None:
        """Ends the turn as failed, since agents retry a failed request; without an event if it continues elsewhere."""
        self._interrupt(Ending("server_shutdown"))

    def _interrupt(self, ending: Ending) -> None:
        """Cancels the task after its first step: one cancelled before it never runs, and would leave the log open."""
        self._interruption = ending
        self._loop.call_soon(self.task.cancel)

    async def _run_turn(self) -> None:
        keepalive = asyncio.create_task(self._send_keepalive(), name=f"keepalive-{self.log.id}")
        try:
            await self._generate()
        except EngineError as error:
            self._fail(error.code, error.message, ending_of_fault(error.code))
            self._reject(from_engine(error, self._grammar_param))
        except ApiError as error:  # the prompt of a later job
            code = error.code or "server_error"
            cause: Cause = "compaction_empty" if isinstance(error, EmptySummaryError) else "rejected"
            self._fail(code, error.message, Ending(cause, code))
            self._reject(error)
        except asyncio.CancelledError:
            self._end_interrupted(self._interruption)
        except Exception:
            trace = [f"{state.name} {machine_input.name}" for state, machine_input in self._processor.machine.trace]
            _logger.exception("unhandled exception in turn", response=self.log.id, trace=trace)
            self._fail("server_error", BROKEN_MESSAGE, Ending("server_bug"))
            self._reject(ApiError(500, "server_error", BROKEN_MESSAGE, kind=SERVER_ERROR))
        finally:
            keepalive.cancel()
            try:
                self._write_events()
                self._processor.finish_stats(time.monotonic())
            finally:
                self.log.end_log()
                self._reject(self._refusal)

    async def _generate(self) -> None:
        """Runs the jobs on the engine until the turn is over, which may be before the engine has finished them."""
        if self.log.base_response.background:
            self._announce_queued()
        if self.is_continued:
            await wait_for_engine(self.engine, self.log.id)
        if self._compaction is not None:
            await self._compact(self._compaction)
        if self._rounds is not None and self._rounds.tools.approved and not self._processor.is_ended:
            await self._run_approved(self._rounds)
        while not self._processor.is_ended:
            await self._run_job(self._job)
            if self._rounds is not None and self._processor.is_round_over:
                await self._prepare_round(self._rounds)
            elif not self._processor.is_ended:
                raise RuntimeError("the engine returned without a last chunk that ended the turn")

    async def _run_approved(self, rounds: RoundPlanner) -> None:
        """Runs the calls that the client has approved, before the first job."""
        self._processor.begin()
        self._mark_started()
        for approved in rounds.tools.approved:
            self._processor.add_approved(approved.call, approved.arguments)
            await self._run_due_calls(rounds)
            if self._processor.is_ended:
                return
        await self._prepare_round(rounds)

    async def _prepare_round(self, rounds: RoundPlanner) -> None:
        """Renders the prompt of the next round. The turn is cut if there is no room for one."""
        processor = self._processor
        self._write_events()
        following = await rounds.plan_next(processor.round, processor.machine.output, processor.num_generated_tokens)
        if processor.is_ended:  # steered
            return
        if following is None:
            processor.cut()
            return
        processor.start_round(following.prompt)
        self._job, self._admitted = following.job, False

    async def _run_due_calls(self, rounds: RoundPlanner) -> None:
        """Runs the call that is due, and those that follow it. Each runs once its arguments are stored."""
        processor = self._processor
        while (due := processor.due_call) is not None and not processor.is_ended:
            self._write_events()
            if not await self._is_kept():
                processor.fail("server_error", UNKEPT_MESSAGE, Ending("store_unavailable"))
                break
            shorten_output = partial(rounds.shorten_output, processor.round)
            outcome = await rounds.tools.run_call(due.call, due.arguments, shorten_output)
            processor.end_call(outcome.result, outcome.output)
            self._write_events()
        self._stop_engine()

    async def _is_kept(self) -> bool:
        """Tells whether the store has all events, so that a call which a crash interrupts is never run again."""
        try:
            async with asyncio.timeout(MAX_STORE_WAIT_S):
                return await self.log.wait_kept()
        except TimeoutError:
            return False

    async def _run_job(self, job: Job) -> None:
        job_times = self.stats.begin_job(time.monotonic())
        if self.stats.trace is not None:
            job = msgspec.structs.replace(job, trace_headers=self.stats.trace.ids.build_headers())
        queued = self._loop.call_later(self._timeouts.queue_after_s, self._announce_queued)
        work = self._work = asyncio.create_task(self.engine.generate(job, self._on_chunk))
        self._is_generating = True
        try:
            await asyncio.wait({work})
            if not work.cancelled():
                work.result()
            if self._tools is not None and not self._processor.is_ended:
                await self._tools
        finally:
            queued.cancel()
            job_times.ended = time.monotonic()
            for task in filter(None, (work, self._tools)):
                await end_task(task)

    async def _compact(self, compaction: CompactionJob) -> None:
        """Generates the summary, and continues with the prompt that has it."""
        stage = asyncio.create_task(self._repeat_stage(), name=f"compaction-{self.log.id}")
        try:
            await self._run_job(compaction.job)
            if self._processor.is_ended:
                return
            compacted = self.compacted = await compaction.finish(self._processor.summary)
        finally:
            stage.cancel()
        self._processor.end_compaction(compacted.content, compacted.prompt)
        self._write_events()
        if compacted.job is not None:
            self._job, self._admitted = compacted.job, False

    async def _repeat_stage(self) -> None:
        while True:
            await asyncio.sleep(STAGE_INTERVAL_S)
            self._processor.keepalive()
            self._write_events()

    def _announce_queued(self) -> None:
        """Reports the job as queued, unless it has events already: the reply need not wait for admission."""
        if not self.log.entries:
            self._processor.on_queued()
            self._mark_started()

    def _on_chunk(self, chunk: Chunk) -> None:
        """Writes the events of a chunk. `_run_turn` writes the last ones, after the engine has freed the slot."""
        self._is_generating = self._is_generating and chunk.finish is None
        now = time.monotonic()
        if not self._admitted:
            self._admitted = True
            self.stats.admit_job(now, chunk.replica, chunk.attempt)
            self._processor.on_admitted(chunk)
            self._mark_started()
        if chunk.tokens or chunk.finish or chunk.prompt_logprobs:
            if chunk.tokens:
                self.stats.add_tokens(now)
            self._processor.process_chunk(chunk)
            if not self._processor.needs_no_more:
                self._write_events()
            self._start_tools()
        self._stop_engine()

    def _stop_engine(self) -> None:
        """Ends the job if nothing more is needed of it. One that has sent its last chunk ends by itself."""
        if self._work is not None and self._is_generating and self._processor.needs_no_more:
            self._work.cancel()

    def _start_tools(self) -> None:
        """Starts the call that is due, unless calls run. The engine continues meanwhile."""
        if self._rounds is None or self._processor.due_call is None:
            return
        if self._tools is None or (self._tools.done() and self._tools.exception() is None):
            self._tools = asyncio.create_task(self._run_due_calls(self._rounds), name=f"tools-{self.log.id}")
            self._tools.add_done_callback(self._on_tools_end)

    def _on_tools_end(self, tools: asyncio.Task[None]) -> None:
        """Ends the engine's job if the calls have ended or broken the turn. A call that broke it is not run again."""
        if self._work is not None and (tools.cancelled() or tools.exception() or self._processor.is_ended):
            self._work.cancel()

    def _mark_started(self) -> None:
        self._write_events()
        if not self.started.done():
            self.started.set_result(None)

    def _write_events(self) -> None:
        if events := self._processor.collect_events():
            now = self._last_write_at = time.monotonic()
            if self.stats.trace is not None and self.stats.trace.ids.is_sampled:
                self.stats.trace.note_events(events, now, self._processor.num_generated_tokens)
            if self._processor.is_ended:
                self._processor.finish_stats(now)  # before the store writes the last step
                self.release_answers()
            self.log.append_step(events, self._processor.take_detail(now))

    def _reject(self, error: ApiError) -> None:
        if not self.started.done():
            if not self.log.entries:  # a turn that another process began has some
                self.stats.refusal_status = error.status
            self.started.set_exception(error)
            self.started.exception()  # marks it as retrieved: asyncio logs an error that no caller has awaited

    def _fail(self, code: str, message: str, ending: Ending) -> None:
        """Ends the turn as failed, unless it has ended; without an event if it has none: the reply is an HTTP error."""
        if self.stats.ending is not None:
            return
        if not self.log.entries or self._processor.is_ended:
            self._processor.abandon(ending)
        else:
            self._processor.fail(code, message, ending)

    def _end_interrupted(self, ending: Ending) -> None:
        """Ends a turn that was interrupted, unless it has ended. At a shutdown, it fails or continues elsewhere."""
        if self.stats.ending is not None:
            return
        if not self.log.entries or (ending.cause == "server_shutdown" and self.log.continuation is not None):
            self._processor.abandon(ending)
        elif ending.cause == "server_shutdown":
            self._processor.fail("server_error", SHUTTING_DOWN_MESSAGE, ending)
        else:
            self._processor.cancel(ending)

    async def _send_keepalive(self) -> None:
        while True:
            silent_s = time.monotonic() - self._last_write_at
            if silent_s < self._timeouts.keepalive_after_s:
                await asyncio.sleep(self._timeouts.keepalive_after_s - silent_s)
                continue
            self._last_write_at = time.monotonic()
            self._processor.keepalive()
            self._write_events()
