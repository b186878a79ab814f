"""All turns that run: opened, counted, cancelled, and seen off when the server goes."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial

import msgspec

from antiphon.app.encryption import Seals
from antiphon.app.errors import ApiError, from_engine
from antiphon.app.event_log import Log
from antiphon.app.http.admission import decided
from antiphon.app.model_registry import ServedModel
from antiphon.app.observability.metrics import Taken, Watch
from antiphon.app.requests.constraints import check
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.base import Store
from antiphon.app.turns.cpu_limit import within
from antiphon.app.turns.output_processor import Scribe
from antiphon.app.turns.stored_history import identified
from antiphon.app.turns.token_history import Layout, Recall, Spoken
from antiphon.app.turns.truncation import truncated
from antiphon.app.turns.turn import SHUTTING_DOWN, Pace, Turn
from antiphon.engine.protocol import Engine, Job, overloaded_error
from antiphon.harmony.format import PromptInput, RenderError
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.ids import NewId


def mint(prefix: str) -> str:
    """A new id: unguessable, and safe in any path."""
    return f"{prefix}_{secrets.token_hex(24)}"


class Turns:
    """Opens turns and knows all that are running. `clock` gives seconds since 1970."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        ids: NewId = mint,
        reasoning_as: ReasoningOutput = "content",
        pace: Pace = Pace(),  # noqa: B008  # it is frozen
        seals: Seals | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self.store, self.seals = store, seals or Seals()
        self._clock, self._ids, self._reasoning_as, self._pace = clock, ids, reasoning_as, pace
        self._recall = Recall()
        self._running: dict[str, Turn] = {}
        self._taken: Counter[Engine] = Counter()
        """Turns by engine, those among them whose prompt is still being laid out."""
        self._closing = False
        store.listen(self._asked_to_end)

    async def open(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> Log:
        """Start one turn; its log, in which something was said already. Raises `ApiError` before any event."""
        return (await self.open_all(model, spec, owner))[0]

    async def open_all(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> list[Log]:
        """Start `spec.n` turns that share one prompt. If one is refused, none runs."""
        self._check_open(model, spec)
        self._taken[model.engine] += spec.n
        decided()
        try:
            layout = await self._render(model, spec, owner)
        except BaseException:
            self._taken[model.engine] -= spec.n
            raise
        turns = [self._start(model, spec, layout, number) for number in range(spec.n)]
        try:
            for turn in turns:
                await asyncio.shield(turn.opened)
        except BaseException:
            await self._abandon(turns)
            raise
        if spec.head.store:
            for turn in turns:
                self.store.put(turn.log)
        if spec.head.background:
            for turn in turns:
                await turn.log.settled()  # what a client was told of can be found, whatever happens to this process
        return [turn.log for turn in turns]

    def _check_open(self, model: ServedModel, spec: TurnSpec) -> None:
        """Raise `ApiError` where no such turn can be taken now, whatever it says."""
        if self._closing:
            raise ApiError(503, "server_shutting_down", SHUTTING_DOWN, headers=(("retry-after", "1"),))
        if spec.head.store and (obstacle := self.store.obstacle()):
            message = f"{obstacle} Send the request with 'store' false, or again later."
            raise ApiError(503, "storage_unavailable", message, headers=(("retry-after", "1"),))
        if self.full(model.engine, spec.n):
            raise from_engine(overloaded_error())

    def full(self, engine: Engine, count: int = 1) -> bool:
        """Whether the engine has no place for so many turns more.

        It would refuse them itself, but only when their prompts have been laid out: in a flood that is late.
        """
        return self.free(engine) < count

    def free(self, engine: Engine) -> int:
        """How many turns more the engine has places for; less than none where it has lost some."""
        return engine.capacity() - self._taken[engine]

    def _asked_to_end(self, response_id: str) -> None:
        if response_id in self._running:
            self._running[response_id].cancel()

    def cancel(self, log: Log) -> None:
        """Nobody reads this log any more: end its turn, if it still runs."""
        turn = self._running.get(log.id)
        if turn:
            turn.cancel()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    @property
    def running(self) -> int:
        """How many turns have not ended."""
        return len(self._running)

    def runs(self, log: Log) -> bool:
        """Whether its turn runs here, and not in another process."""
        return log.id in self._running

    async def drain(self, seconds: float) -> None:
        """Open nothing more, let what runs come to its end for so long, then end it properly."""
        self._closing = True
        running = list(self._running.values())
        if not running:
            return
        _, late = await asyncio.wait([turn.task for turn in running], timeout=seconds)
        for turn in running:
            if turn.task in late:
                turn.shut()
        if late:
            await asyncio.wait(late)

    async def count(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> int:
        """How many tokens the prompt of a turn would have. Raises `ApiError`."""
        return len((await self._lay_out(model, spec, owner)).prompt.tokens)

    async def _render(self, model: ServedModel, spec: TurnSpec, owner: str) -> Layout:
        """The prompt, which must leave room for an answer."""
        layout = await self._lay_out(model, spec, owner)
        length, most = len(layout.prompt.tokens), model.engine.info.max_model_len
        if length >= most:
            message = f"This model's maximum context length is {most} tokens, but the input has {length}."
            raise ApiError(400, "context_length_exceeded", message, "input")
        return layout

    async def _lay_out(self, model: ServedModel, spec: TurnSpec, owner: str) -> Layout:
        """Lay out the prompt, off the event loop: templates come with models and may be slow."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        try:
            return await within(self._pace.render_within, partial(self._read, model, spec, owner, now))
        except TimeoutError:
            raise ApiError(400, "prompt_too_complex", "The prompt took too long to lay out.", "input") from None
        except RenderError as error:
            raise ApiError(400, "invalid_prompt", error.message, error.param or "input") from None

    def _read(self, model: ServedModel, spec: TurnSpec, owner: str, now: datetime) -> Layout:
        for promise in spec.promises:
            check(promise)
        layout = self._recall.read(model.format, owner, spec.conversation, now)
        if spec.truncate and len(layout.prompt.tokens) >= model.engine.info.max_model_len:
            layout = self._shortened(model, spec, layout)
        if not spec.conversation.needs_grammar:
            return layout
        grammar = model.format.build_grammar(layout.prompt, spec.conversation)
        if grammar is None:
            raise ApiError(400, "unsupported_parameter", "This model's dialect has no tool calls.", "tool_choice")
        return msgspec.structs.replace(layout, grammar=grammar)

    def _shortened(self, model: ServedModel, spec: TurnSpec, layout: Layout) -> Layout:
        """The same without its oldest items, so that there is room for an answer; as it is, where nothing helps."""
        context = model.engine.info.max_model_len
        room = context - min(spec.sampling.max_tokens or context, context // 4)

        def read(conversation: PromptInput) -> Layout:
            return self._recall.read(model.format, layout.owner, conversation, layout.now)

        def fits(conversation: PromptInput) -> bool:
            try:
                return len(read(conversation).prompt.tokens) <= room
            except RenderError:  # what is left is no conversation that the template knows
                return False

        rest = truncated(spec.conversation, fits)
        return layout if rest is None else read(rest)

    def _start(self, model: ServedModel, spec: TurnSpec, layout: Layout, number: int) -> Turn:
        head = msgspec.structs.replace(spec.head, id=self._ids("resp"), created_at=int(self._clock()))
        spec = msgspec.structs.replace(spec, head=head)
        scribe = Scribe(
            spec,
            layout.prompt,
            model.format,
            ids=self._ids,
            clock=lambda: int(self._clock()),
            reasoning_as=self._reasoning_as,
            seal=partial(self.seals.seal, layout.owner),
        )
        given = identified(spec.given, head.id) if head.store else ()
        turn = Turn(Log(head, layout.owner, given), scribe, model.engine, _job(model, spec, layout, number), self._pace)
        self._running[head.id] = turn
        turn.task.add_done_callback(lambda _: self._over(turn, layout, scribe, model.engine))
        return turn

    def _over(self, turn: Turn, layout: Layout, scribe: Scribe, engine: Engine) -> None:
        del self._running[turn.log.id]
        self._taken[engine] -= 1
        response = scribe.machine.response
        if self._watch is not None:
            self._watch.turn(turn.log.head.model, _taken(turn, scribe, len(layout.prompt.tokens)))
        if response.status in ("completed", "incomplete"):
            self._recall.remember(Spoken(layout, tuple(scribe.spoken), response.output))

    async def _abandon(self, turns: Iterable[Turn]) -> None:
        tasks = [turn.task for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _taken(turn: Turn, scribe: Scribe, prompt: int) -> Taken:
    """What a turn took that has just ended."""
    ending = scribe.machine.response.status if turn.log.frames else "refused"
    spoken = len(scribe.spoken)
    return Taken(ending=str(ending), whole=turn.whole, first=turn.first, prompt=prompt, generated=spoken)


def _job(model: ServedModel, spec: TurnSpec, layout: Layout, number: int) -> Job:
    """The engine's share of a turn. The n-th of several choices draws other random numbers than the first."""
    seed = None if spec.sampling.seed is None else spec.sampling.seed + number
    stop_ids = tuple(dict.fromkeys((*spec.sampling.stop_ids, *model.format.stop_ids)))
    sampling = msgspec.structs.replace(spec.sampling, seed=seed, stop_ids=stop_ids)
    return Job(
        id=spec.head.id, tokens=layout.prompt.tokens, sampling=sampling, owner=layout.owner, grammar=layout.grammar
    )
