"""All turns that run: opened, counted, cancelled, and seen off when the server goes."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from antiphon.app.encryption import Sealer
from antiphon.app.errors import ApiError, from_engine
from antiphon.app.event_log import EventLog
from antiphon.app.model_registry import ServedModel
from antiphon.app.observability.metrics import TurnObserver, TurnStats
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.base import ResponseStore
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.app.turns.prompt_renderer import PromptRenderer
from antiphon.app.turns.stored_history import with_ids
from antiphon.app.turns.token_history import FinishedTurn, TurnPrompt
from antiphon.app.turns.turn import SHUTTING_DOWN_MESSAGE, Turn, TurnTimeouts
from antiphon.engine.protocol import Engine, Job, overloaded_error
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.ids import NewId


def new_id(prefix: str) -> str:
    """A new id: unguessable, and safe in any path."""
    return f"{prefix}_{secrets.token_hex(24)}"


class TurnManager:
    """Opens turns and knows all that are running. `clock` gives seconds since 1970."""

    def __init__(
        self,
        store: ResponseStore,
        *,
        clock: Callable[[], float] = time.time,
        id_factory: NewId = new_id,
        reasoning_output: ReasoningOutput = "content",
        timeouts: TurnTimeouts = TurnTimeouts(),  # noqa: B008  # it is frozen
        sealer: Sealer | None = None,
        observer: TurnObserver | None = None,
    ) -> None:
        self._observer = observer
        self.store, self.sealer = store, sealer or Sealer()
        self._clock, self._new_id, self._reasoning_output, self._timeouts = (
            clock,
            id_factory,
            reasoning_output,
            timeouts,
        )
        self._renderer = PromptRenderer(timeouts.render_cpu_limit_s)
        self._running: dict[str, Turn] = {}
        self._open_turns: Counter[Engine] = Counter()
        """Turns by engine, those among them whose prompt is still being laid out."""
        self._shutting_down = False
        store.on_cancel_request(self._on_cancel_request)

    async def start_turn(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> EventLog:
        """Start one turn; its log, in which something was said already. Raises `ApiError` before any event."""
        return (await self.start_choices(model, spec, owner))[0]

    async def start_choices(
        self, model: ServedModel, spec: TurnSpec, owner: str = "", on_admitted: Callable[[], None] = lambda: None
    ) -> list[EventLog]:
        """Starts `spec.n` turns that share one prompt. If one is rejected, none runs.

        Calls `on_admitted` once their slots are counted.
        """
        self._check_can_start(model, spec)
        self._open_turns[model.engine] += spec.n
        on_admitted()
        try:
            layout = await self._renderer.render_and_check(model, spec, owner, self._clock())
        except BaseException:
            self._open_turns[model.engine] -= spec.n
            raise
        turns = [self._create_turn(model, spec, layout, number) for number in range(spec.n)]
        try:
            for turn in turns:
                await asyncio.shield(turn.started)
        except BaseException:
            await self._abort_turns(turns)
            raise
        if spec.base_response.store:
            for turn in turns:
                self.store.add_log(turn.log)
        if spec.base_response.background:
            for turn in turns:
                await (
                    turn.log.wait_published()
                )  # what a client was told of can be found, whatever happens to this process
        return [turn.log for turn in turns]

    def _check_can_start(self, model: ServedModel, spec: TurnSpec) -> None:
        """Raise `ApiError` where no such turn can be taken now, whatever it says."""
        if self._shutting_down:
            raise ApiError(503, "server_shutting_down", SHUTTING_DOWN_MESSAGE, headers=(("retry-after", "1"),))
        if spec.base_response.store and (obstacle := self.store.unavailable_reason()):
            message = f"{obstacle} Send the request with 'store' false, or again later."
            raise ApiError(503, "storage_unavailable", message, headers=(("retry-after", "1"),))
        if self.is_full(model.engine, spec.n):
            raise from_engine(overloaded_error())

    def is_full(self, engine: Engine, count: int = 1) -> bool:
        """Whether the engine has no place for so many turns more.

        It would refuse them itself, but only when their prompts have been laid out: in a flood that is late.
        """
        return self.free_slots(engine) < count

    def free_slots(self, engine: Engine) -> int:
        """How many turns more the engine has places for; less than none where it has lost some."""
        return engine.capacity() - self._open_turns[engine]

    def _on_cancel_request(self, response_id: str) -> None:
        if response_id in self._running:
            self._running[response_id].cancel_turn()

    def cancel_turn(self, log: EventLog) -> None:
        """Nobody reads this log any more: end its turn, if it still runs."""
        turn = self._running.get(log.id)
        if turn:
            turn.cancel_turn()

    def current_time(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    @property
    def num_running(self) -> int:
        """How many turns have not ended."""
        return len(self._running)

    def is_running(self, log: EventLog) -> bool:
        """Whether its turn runs here, and not in another process."""
        return log.id in self._running

    async def drain(self, seconds: float) -> None:
        """Open nothing more, let what runs come to its end for so long, then end it properly."""
        self._shutting_down = True
        running = list(self._running.values())
        if not running:
            return
        _, late = await asyncio.wait([turn.task for turn in running], timeout=seconds)
        for turn in running:
            if turn.task in late:
                turn.fail_for_shutdown()
        if late:
            await asyncio.wait(late)

    async def count_prompt_tokens(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> int:
        """Returns the number of tokens in a turn's prompt. Raises `ApiError`."""
        return len((await self._renderer.render_in_thread(model, spec, owner, self._clock())).prompt.tokens)

    def _create_turn(self, model: ServedModel, spec: TurnSpec, layout: TurnPrompt, number: int) -> Turn:
        head = msgspec.structs.replace(spec.base_response, id=self._new_id("resp"), created_at=int(self._clock()))
        spec = msgspec.structs.replace(spec, base_response=head)
        scribe = OutputProcessor(
            spec,
            layout.prompt,
            model.format,
            ids=self._new_id,
            clock=lambda: int(self._clock()),
            reasoning_as=self._reasoning_output,
            seal=partial(self.sealer.seal, layout.owner),
        )
        given = with_ids(spec.input_items, head.id) if head.store else ()
        turn = Turn(
            EventLog(head, layout.owner, given),
            scribe,
            model.engine,
            _build_job(model, spec, layout, number),
            self._timeouts,
        )
        self._running[head.id] = turn
        turn.task.add_done_callback(lambda _: self._on_turn_end(turn, layout, scribe, model.engine))
        return turn

    def _on_turn_end(self, turn: Turn, layout: TurnPrompt, scribe: OutputProcessor, engine: Engine) -> None:
        del self._running[turn.log.id]
        self._open_turns[engine] -= 1
        response = scribe.machine.response
        if self._observer is not None:
            self._observer.on_turn_end(
                turn.log.base_response.model, _turn_stats(turn, scribe, len(layout.prompt.tokens))
            )
        if response.status in ("completed", "incomplete"):
            self._renderer.token_history.add_turn(FinishedTurn(layout, tuple(scribe.generated_tokens), response.output))

    async def _abort_turns(self, turns: Iterable[Turn]) -> None:
        tasks = [turn.task for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _turn_stats(turn: Turn, scribe: OutputProcessor, prompt: int) -> TurnStats:
    """What a turn took that has just ended."""
    ending = scribe.machine.response.status if turn.log.entries else "refused"
    spoken = len(scribe.generated_tokens)
    return TurnStats(
        finish_reason=str(ending),
        elapsed_s=turn.elapsed,
        time_to_first_token_s=turn.time_to_first_token,
        prompt_tokens=prompt,
        generated_tokens=spoken,
    )


def _build_job(model: ServedModel, spec: TurnSpec, layout: TurnPrompt, number: int) -> Job:
    """The engine's share of a turn. The n-th of several choices draws other random numbers than the first."""
    seed = None if spec.sampling.seed is None else spec.sampling.seed + number
    stop_ids = tuple(dict.fromkeys((*spec.sampling.stop_ids, *model.format.stop_ids)))
    sampling = msgspec.structs.replace(spec.sampling, seed=seed, stop_ids=stop_ids)
    return Job(
        id=spec.base_response.id,
        tokens=layout.prompt.tokens,
        sampling=sampling,
        owner=layout.owner,
        grammar=layout.grammar,
    )
