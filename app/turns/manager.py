"""Starts, tracks and cancels turns, and drains them on shutdown."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from antiphon.app.errors import storage_unavailable
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.keys.key_checks import refuse_key
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.options.settings import DEFAULT_SETTINGS
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.approved_calls import AnswerClaim
from antiphon.app.tools.tool_host import ToolHost, create_tool_host
from antiphon.app.tracing.tracer import Tracer
from antiphon.app.turn_types.encryption import Sealer
from antiphon.app.turn_types.endings import Cause
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turn_types.turn_stats import NO_ORIGIN, TurnOrigin, TurnStats, TurnTimes, create_stats
from antiphon.app.turns import turn_groups
from antiphon.app.turns.capacity import TurnCapacity, TurnSlot
from antiphon.app.turns.continuation.continuer import TurnContinuer
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn
from antiphon.app.turns.core.dice import TurnDice
from antiphon.app.turns.jobs import wait_for_engine
from antiphon.app.turns.left_turns import LeftTurns
from antiphon.app.turns.media.resolver import MediaResolver
from antiphon.app.turns.prompts.preparation import TurnPreparer
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.stored_history import identify_turn
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.app.turns.turn import Turn
from antiphon.app.turns.turn_descriptions import TurnTracing, describe_finished
from antiphon.app.turns.turn_factory import TurnFactory
from antiphon.app.turns.turn_groups import Preparations, abort_turns, end_turns
from antiphon.app.usage.meter import UsageMeter
from antiphon.engine.protocol import Engine
from antiphon.state.drafts import OutputSettings
from antiphon.state.ids import NewId


class TurnManager:
    """Starts turns and tracks those that are running. `clock` returns seconds since 1970."""

    def __init__(  # noqa: PLR0913  # components of the server
        self,
        store: ResponseStore,
        capacity: TurnCapacity,
        *,
        clock: Callable[[], float] = time.time,
        new_id: NewId = new_id,
        dice: Callable[[bytes], TurnDice] = TurnDice,
        output_settings: OutputSettings = OutputSettings(),  # noqa: B008  # it is frozen
        timeouts: TurnTimeouts = TurnTimeouts(),  # noqa: B008  # it is frozen
        sealer: Sealer | None = None,
        tool_host: ToolHost | None = None,
        media: MediaResolver | None = None,
        on_turn_end: Callable[[TurnStats], None] | None = None,
        recorder: TurnRecorder | None = None,
        tracer: Tracer | None = None,
        meter: UsageMeter | None = None,
    ) -> None:
        self._meter = meter or UsageMeter()
        self.store, self.sealer = store, sealer or Sealer()
        self._capacity, self._report_end, self.recorder = capacity, on_turn_end, recorder
        self._tracing = TurnTracing(tracer)
        self.clock, self._new_id = clock, new_id
        self._renderer = PromptRenderer(timeouts.render_cpu_limit_s)
        tool_host = tool_host or create_tool_host(DEFAULT_SETTINGS, self.sealer, new_id)
        media = media or MediaResolver(store, DEFAULT_SETTINGS)
        self.preparer = TurnPreparer(store, self._renderer, tool_host, media, clock)
        self._preparations = Preparations()
        self._running: dict[str, Turn] = {}
        self._last_turns: list[Turn] = []
        """Turns that have run since the shutdown began."""
        self.continuer = TurnContinuer(store, self.resume_turn)
        self._factory = TurnFactory(
            *(self._renderer, self.preparer, self.continuer, self._tracing, recorder),
            clock=clock,
            dice=dice,
            settings=output_settings,
            timeouts=timeouts,
            sealer=self.sealer,
        )
        self._shutting_down = False
        self._left = LeftTurns(timeouts.disconnect_grace_s)
        capacity.count_left = self._left.count
        store.on_cancel_request(self.cancel_turn)

    async def start_turn(
        self, model: ServedModel, spec: TurnSpec, owner: str = "", origin: TurnOrigin = NO_ORIGIN
    ) -> EventLog:
        """Starts one turn and returns its log, which has at least one event. Raises `ApiError` before any event."""
        return (await self.start_prompts(model, (spec,), owner, origin=origin))[0]

    async def start_prompts(
        self,
        model: ServedModel,
        specs: Sequence[TurnSpec],
        owner: str = "",
        on_admitted: Callable[[], None] = lambda: None,
        *,
        origin: TurnOrigin = NO_ORIGIN,
        is_large: bool = False,
    ) -> list[EventLog]:
        """Starts the turns of several prompts together, `n` for each, in order. If one is rejected, none runs.

        All have the same settings of storage. Calls `on_admitted` once their slots are counted. `origin` is the
        request. `is_large`: rendering the prompts takes long.
        """
        spec = specs[0]
        self._check_can_start(spec)
        turns, claim = list[Turn](), AnswerClaim(self.store, owner)
        try:
            async with self._preparations.count(origin.key):
                turns += await self._prepare_turns(model, specs, claim, on_admitted, origin, is_large=is_large)
            for turn in turns:
                await asyncio.shield(turn.started)
        except BaseException as error:
            await abort_turns(turns, error)
            await claim.release_answers(has_begun=any(turn.log.entries for turn in turns))
            raise
        if spec.base_response.store:
            turn_groups.store_logs(self.store, spec, [turn.log for turn in turns])
        if spec.base_response.background or any(turn.log.continuation is not None for turn in turns):
            try:
                await turn_groups.wait_stored(turns)
            except asyncio.CancelledError:
                for turn in turns:
                    self._left.add(turn, knows_id=False)
                raise
        return [turn.log for turn in turns]

    async def _prepare_turns(
        self,
        model: ServedModel,
        specs: Sequence[TurnSpec],
        claim: AnswerClaim,
        on_admitted: Callable[[], None],
        origin: TurnOrigin,
        *,
        is_large: bool,
    ) -> list[Turn]:
        """Returns the turns of a request once they run, with its answers claimed: all or none. Raises `ApiError`."""
        spec, parsed = specs[0], time.monotonic()
        if spec.base_response.store:
            await self.continuer.wait_started(is_needed=bool(spec.base_response.background))
        num_turns = sum(each.n for each in specs)
        if not origin.is_batch:
            await self.make_room(model.engine, num_turns)
        slots = self._capacity.acquire(model.engine, num_turns, spec.priority)
        turns: list[Turn] = []
        try:
            if not origin.is_batch:
                self._meter.hold_turns(origin.key, slots)
            on_admitted()
            choices = await self.preparer.prepare_choices(model, specs, claim.owner, is_large=is_large)
            rendered = time.monotonic()
            await claim.claim_answers([answer for choice in choices for answer in choice.spec.answers])
            identified = [await identify_turn(choice.spec, self._new_id, int(self.clock())) for choice in choices]
            for choice, (each, stored_input), slot in zip(choices, identified, slots, strict=True):
                times = TurnTimes(arrived=origin.arrived, parsed=parsed, rendered=rendered)
                stats = create_stats(each.base_response, origin, times, self.clock())
                stats.trace = self._tracing.begin(origin, background=bool(each.base_response.background))
                stats.counts_input, stats.counts_request = choice.number == 0, not turns
                turn = self._factory.create_turn(model, choice, each, stored_input, stats, origin)
                self._track_turn(model, turn, slot)
                turn.writer.release_answers = partial(claim.release_failed, turn.log, each.answers, choice.tools)
                turns.append(turn)
                if choice.number == 0:
                    self._meter.charge_prompt(stats, choice.prompt.prompt.num_tokens)
        except BaseException as error:
            await abort_turns(turns, error)
            for slot in slots:  # a turn has released its slot when it ended; this frees slots without a turn
                slot.release()
            raise
        return turns

    def _check_can_start(self, spec: TurnSpec) -> None:
        """Raises `ApiError` 503 if the server shuts down, or cannot store the response."""
        if self._shutting_down:
            raise turn_groups.shutting_down_error()
        if spec.base_response.store and (reason := self.store.unavailable_reason()):
            raise storage_unavailable(f"{reason} Set 'store' to false, or retry later.")

    def cancel_turn(self, response_id: str, cause: Cause = "cancelled") -> None:
        """Cancels the turn of this response if it runs in this process."""
        if turn := self._running.get(response_id):
            turn.cancel_turn(cause)

    def cancel_turns_of_keys(self, digests: frozenset[bytes]) -> int:
        """Cancels the turns of these API keys, also those that are being prepared. Returns their number."""
        turns = [turn for turn in self._running.values() if turn.stats.key.digest in digests]
        refusal = refuse_key("This API key is not valid any more.")
        for turn in turns:
            turn.cancel_turn(refusal=refusal)
        return len(turns) + self._preparations.refuse_keys(digests, refusal)

    async def make_room(self, engine: Engine, num_turns: int = 1) -> None:
        """Ends turns without a reader if an engine has no room for more turns: see `LeftTurns`."""
        await self._left.make_room(engine, lambda: num_turns - self._capacity.free_slots(engine))

    def is_read_here(self, log: EventLog) -> bool:
        """Tells whether the turn of this log runs for a reader here, and would end without it."""
        turn = self._running.get(log.id)
        return turn is not None and log.readers > 0 and not turn.is_continued

    def join_turn(self, log: EventLog) -> None:
        """Lets the turn of a log run to its end: it has a reader."""
        if turn := self._running.get(log.id):
            self._left.remove(turn)

    def leave_turn(self, log: EventLog, *, knows_id: bool) -> None:
        """Ends the turn of a log without readers, at once or later: see `LeftTurns`."""
        if turn := self._running.get(log.id):
            self._left.add(turn, knows_id=knows_id)

    def steer_turn(self, response_id: str) -> None:
        """Ends the turn of this response between two items, if it runs in this process and has called no tool."""
        if turn := self._running.get(response_id):
            turn.steer_turn()

    @property
    def num_running(self) -> int:
        """Number of turns that have not ended."""
        return len(self._running)

    def is_running(self, log: EventLog) -> bool:
        """Tells whether the turn of this log runs in this process."""
        return log.id in self._running and not log.is_lost

    async def hand_over(self, engines: Sequence[Engine]) -> None:
        """Ends the turns of these engines with which another process can continue, without a terminal event."""
        for turn in list(self._running.values()):
            if turn.engine in engines and turn.writer.continues_elsewhere:
                turn.end_for_shutdown()
                await asyncio.wait({turn.task})

    async def drain(self, seconds: float) -> None:
        """Rejects new turns, waits up to `seconds` for the running ones, then ends those left.

        A turn counts as running from its admission on. Those that another process can continue stay open in the
        store. The others end as failed.
        """
        self._last_turns = list(self._running.values())
        self._shutting_down = True
        deadline = time.monotonic() + seconds
        await self.continuer.close()
        await self._preparations.wait_ended(seconds)
        await end_turns(list(self._running.values()), deadline)
        await self.preparer.close()
        if self.recorder is not None:
            await self.recorder.close()
        await turn_groups.wait_published(self._last_turns)

    def _track_turn(self, model: ServedModel, turn: Turn, slot: TurnSlot) -> None:
        self._running[turn.log.id] = turn
        if self._shutting_down:
            self._last_turns.append(turn)
        turn.task.add_done_callback(lambda _: self._on_turn_end(model, turn, slot))

    async def resume_turn(self, model: ServedModel, stored: ContinuableTurn, log: EventLog) -> None:
        """Continues a turn that another process began, and whose log belongs to this one now.

        Raises `ReplayError` or `ValueError` if the stored events are not those that the stored tokens give here.
        """
        base, owner, now = log.base_response, log.owner, time.monotonic()
        figures, log.keeps_details = stored.figures, stored.keeps_details
        key = self._meter.find_worker(owner, figures.key_id, model.names[0]) or ApiKey(digest=b"", owner=owner)
        origin = TurnOrigin(api=figures.api, key=key)
        stats = create_stats(base, origin, TurnTimes(parsed=now), float(base.created_at))
        stats.counts_input, stats.counts_request = figures.counts_input, figures.counts_request
        if stored.later is not None:  # its prompts depend on the model's properties, which a loading engine has not
            await wait_for_engine(model.engine, log.id)
        rebuilt = await self._factory.rebuild_turn(model, stored, log)
        slot = await self._capacity.wait_slot(model.engine, stored.job.priority)
        self.store.adopt_log(log)
        turn = self._factory.continue_turn(model, rebuilt, stats)
        tools = None if rebuilt.rounds is None else rebuilt.rounds.tools
        turn.writer.release_answers = partial(AnswerClaim(self.store, owner).release_failed, log, stored.answers, tools)
        turn.stats.trace = self._tracing.begin(NO_ORIGIN, background=True)
        self._track_turn(model, turn, slot)
        if log.cancel_requested:
            turn.cancel_turn()

    def _on_turn_end(self, model: ServedModel, turn: Turn, slot: TurnSlot) -> None:
        slot.release()
        del self._running[turn.log.id]
        self._left.remove(turn)
        self._meter.end_turn(turn.stats, turn.log.owner)
        response = turn.core.machine.response
        if self._report_end is not None:
            self._report_end(turn.stats)
        self._tracing.end(turn.log, turn.stats)
        if self.recorder is not None:
            self.recorder.finish(turn.log.owner, turn.log.id)
        if response.status in ("completed", "incomplete") and not turn.core.rules.is_plain_text:
            finished = describe_finished(turn, response, model.names[0])
            self._renderer.prompt_token_cache.add_turn(finished)
