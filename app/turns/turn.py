"""A turn: one generation request in progress.

A turn submits its jobs to the engine and turns what happens (chunks, results of tools, cancellation, silence) into
inputs of its core, whose events it appends to the log. It runs in its own task, so that it does not depend on its
readers. It knows no dialect (the core has it), no connection and no projection. `TurnManager` creates turns.

An engine error before the first event is raised as `ApiError` to the caller that started the turn; a later one becomes
an event in the log. In every case, a log with events ends with a terminal event.
"""

import asyncio
import time

import msgspec
import structlog

from antiphon.app.errors import SERVER_ERROR, ApiError, from_engine
from antiphon.app.turn_types.endings import Cause, Ending, ending_of_fault
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.turns.compaction import STAGE_INTERVAL_S, CompactionJob
from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.inputs import to_token_input
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.due_calls import DueCalls
from antiphon.app.turns.jobs import end_task, wait_for_engine
from antiphon.app.turns.media.resolver import NO_MEDIA
from antiphon.app.turns.prompts.prompt_renderer import EmptySummaryError
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.app.turns.step_writer import StepWriter
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import Chunk, Engine, EngineError, Job

_logger = structlog.get_logger(__name__)

BROKEN_MESSAGE = "The server had an error while processing the request."
CANCELLED_BEFORE_START = EngineError("cancelled", "The request was cancelled before it started.")


class Turn:
    """One job, from its submission to the engine to the log's last event.

    The future `started` is done when a reply can begin: the job was admitted or reported as queued. It raises
    `ApiError` if the turn ends before its first event. `grammar_param`: the request's field that needs a grammar.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # parts of a turn
        self,
        log: EventLog,
        core: TurnCore,
        stats: TurnStats,
        engine: Engine,
        job: Job,
        timeouts: TurnTimeouts,
        grammar_param: str | None = None,
        compaction: CompactionJob | None = None,
        rounds: RoundPlanner | None = None,
    ) -> None:
        self.log, self.core = log, core
        self.stats = log.stats = stats
        self.writer = StepWriter(log, core, stats)
        self.media = NO_MEDIA  # images of the prompt, for which the engine may ask until the turn has ended
        self.is_continued = False  # true if another process began the turn; the core is where that one was
        self._compaction, self._rounds, self._grammar_param = compaction, rounds, grammar_param
        self.engine, self._job, self._timeouts = engine, job, timeouts
        self._interruption, self._refusal = Ending("cancelled"), from_engine(CANCELLED_BEFORE_START)
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        summary = core.reading.summary
        self._admitted = (
            core.figures.round.is_admitted if compaction is None else summary is not None and summary.is_admitted
        )
        self._is_generating = False  # a job generates until its last chunk
        self._work: asyncio.Task[None] | None = None
        self._calls = None if rounds is None else DueCalls(self.writer, rounds, self._cancel_work)
        self.task = asyncio.create_task(self._run_turn(), name=f"turn-{log.id}")
        """It never raises."""

    def cancel_turn(self, cause: Cause = "cancelled", refusal: ApiError | None = None) -> None:
        """Ends the turn as cancelled, unless it has ended; with the error `refusal` if it has no event yet."""
        self._refusal = refusal or self._refusal
        self._interrupt(Ending(cause))

    def steer_turn(self) -> None:
        """Ends the turn as soon as no item is open, unless it has ended or waits for a tool of the client."""
        self.writer.apply(step_inputs.SteerInput())
        self._stop_engine()

    def end_for_shutdown(self) -> None:
        """Ends the turn as failed, since agents retry a failed request; without an event if it continues elsewhere."""
        self._interrupt(Ending("server_shutdown"))

    def _interrupt(self, ending: Ending) -> None:
        """Cancels the task after its first step: one cancelled before it never runs, and would leave the log open."""
        self._interruption = ending
        self._loop.call_soon(self.task.cancel)

    async def _run_turn(self) -> None:
        sending = self.writer.send_keepalive(self._timeouts.keepalive_after_s)
        keepalive = asyncio.create_task(sending, name=f"keepalive-{self.log.id}")
        try:
            await self._generate()
        except EngineError as error:
            self.writer.fail(error.code, error.message, ending_of_fault(error.code))
            self._reject(from_engine(error, self._grammar_param))
        except ApiError as error:  # the prompt of a later job
            code = error.code or "server_error"
            cause: Cause = "compaction_empty" if isinstance(error, EmptySummaryError) else "rejected"
            self.writer.fail(code, error.message, Ending(cause, code))
            self._reject(error)
        except asyncio.CancelledError:
            self.writer.end_interrupted(self._interruption)
        except Exception:
            trace = [f"{state.name} {machine_input.name}" for state, machine_input in self.core.machine.trace]
            _logger.exception("unhandled exception in turn", response=self.log.id, trace=trace)
            self.writer.fail("server_error", BROKEN_MESSAGE, Ending("server_bug"))
            self._reject(ApiError(500, "server_error", BROKEN_MESSAGE, kind=SERVER_ERROR))
        finally:
            keepalive.cancel()
            try:
                self.writer.finish()
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
        if self._rounds is not None and self._calls is not None and not self.core.is_ended:
            await self._calls.end_interrupted()
            await self._run_approved(self._rounds, self._calls)
        while not self.core.is_ended:
            if not self.core.end.is_round_over:
                await self._run_job(self._job)
            if self._rounds is not None and self.core.end.is_round_over:
                await self._prepare_round(self._rounds)
            elif not self.core.is_ended:
                raise RuntimeError("the engine returned without a last chunk that ended the turn")

    async def _run_approved(self, rounds: RoundPlanner, calls: DueCalls) -> None:
        """Runs the calls that the client has approved, if any, before the first job."""
        approved, figures = rounds.tools.rules.approved, self.core.figures
        if not approved or figures.done_rounds:
            return
        self.writer.apply(step_inputs.StartedInput())
        self._mark_started()
        for number in range(self.core.calls.num_approved, len(approved)):
            self.writer.apply(step_inputs.ApprovedInput(number))
            await calls.run()
            if self.core.is_ended:
                return
        await self._prepare_round(rounds)

    async def _prepare_round(self, rounds: RoundPlanner) -> None:
        """Renders the prompt of the next round. The turn is cut if there is no room for one."""
        self.writer.write_events()
        following = await rounds.plan_next(self.core)
        if self.core.is_ended:  # steered
            return
        if following is None:
            self.writer.apply(step_inputs.CutInput())
            return
        self.writer.apply(step_inputs.RoundInput(following.prompt))
        self._job, self._admitted = following.job, False

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
            if self._calls is not None and not self.core.is_ended:
                await self._calls.wait_ended()
        finally:
            queued.cancel()
            job_times.ended = time.monotonic()
            await end_task(work)
            if self._calls is not None:
                await self._calls.stop()

    async def _compact(self, compaction: CompactionJob) -> None:
        """Generates the summary, and continues with the prompt that has it."""
        stage = asyncio.create_task(self._repeat_stage(), name=f"compaction-{self.log.id}")
        try:
            summary = self.core.reading.summary
            if summary is None or not summary.is_finished:
                await self._run_job(compaction.job)
            if self.core.is_ended:
                return
            compacted = await compaction.finish(self.core.reading.summary_text)
        finally:
            stage.cancel()
        self.writer.apply(step_inputs.SummaryInput(compacted.content, compacted.prompt))
        self.writer.write_events()
        if compacted.job is not None:
            self._job, self._admitted = compacted.job, False

    async def _repeat_stage(self) -> None:
        while True:
            await asyncio.sleep(STAGE_INTERVAL_S)
            self.writer.apply(step_inputs.KeepaliveInput())
            self.writer.write_events()

    def _announce_queued(self) -> None:
        """Reports the job as queued, unless it has events already: the reply need not wait for admission."""
        if not self.log.entries:
            self.writer.apply(step_inputs.QueuedInput())
            self._mark_started()

    def _on_chunk(self, chunk: Chunk) -> None:
        """Writes the events of a chunk. `_run_turn` writes the last ones, after the engine has freed the slot."""
        self._is_generating = self._is_generating and chunk.finish is None
        now = time.monotonic()
        if not self._admitted:
            self._admitted = True
            self.stats.admit_job(now, chunk.replica, chunk.attempt)
            self.writer.apply(step_inputs.AdmittedInput(chunk.cached_tokens, chunk.prompt_tokens))
            self._mark_started()
            self._stop_engine()  # it may have been steered
        if chunk.tokens or chunk.finish or chunk.prompt_logprobs:
            if chunk.tokens:
                self.stats.add_tokens(now)
            self.writer.apply(to_token_input(chunk))
            if self.core.needs_no_more:
                self._stop_engine()
            else:
                self.writer.write_events()
            if self._calls is not None:
                self._calls.start()

    def _stop_engine(self) -> None:
        """Ends the job if nothing more is needed of it. One that has sent its last chunk ends by itself."""
        if self._work is not None and self._is_generating and self.core.needs_no_more:
            self._work.cancel()

    def _cancel_work(self) -> None:
        """Ends the engine's job: the calls beside it have ended or broken the turn."""
        if self._work is not None:
            self._work.cancel()

    def _mark_started(self) -> None:
        self.writer.write_events()
        if not self.started.done():
            self.started.set_result(None)

    def _reject(self, error: ApiError) -> None:
        if not self.started.done():
            if not self.log.entries:  # a turn that another process began has some
                self.stats.refusal_status = error.status
            self.started.set_exception(error)
            self.started.exception()  # marks it as retrieved: asyncio logs an error that no caller has awaited
