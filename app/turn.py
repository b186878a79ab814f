"""A turn: the one place where a dialect meets an engine.

A turn renders the prompt, hands the job to the engine, and writes down what the scribe says of the answer. It runs as
a task of its own, so that it goes on, or ends, whatever its readers do. It knows no HTTP and no face of the wire.

Blame decides how a fault travels: what is wrong before the engine has admitted the job is raised as `ApiError` to
whoever opened the turn; everything later is an event in the log. Whatever happens, the log ends with a terminal event.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec
import structlog

from app.catalogue import ServedModel
from app.errors import ApiError, from_engine
from app.log import Detail, Log
from app.past import identified
from app.recall import Layout, Recall, Spoken
from app.requests.spec import TurnSpec
from app.scribe import Scribe
from app.store import Store
from engine.protocol import Chunk, Engine, EngineError, Job, overloaded
from harmony.format import RenderError
from state.drafts import ReasoningAs
from state.machine import Ids

_logger = structlog.get_logger("antiphon.turn")

SHUTTING_DOWN = "The server is shutting down; send the request again."
BROKEN = "The server had an error while processing the request."
GONE = "The request was cancelled before it began."


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a turn is, in seconds."""

    queue_after: float = 1.0
    """A job that was not admitted by then is said to be queued, so that the client sees a stream."""
    remind_after: float = 60.0
    """A stream that has said nothing for so long repeats its stage: some clients give up after 300 s of silence."""
    render_within: float = 10.0
    """Laying out a prompt may take so long."""


def mint(prefix: str) -> str:
    """A new id: unguessable, and safe in any path."""
    return f"{prefix}_{secrets.token_hex(24)}"


class Turn:
    """One job, from the engine's first chunk to the log's last event.

    `opened` is done when a reply may begin: the job was admitted, or is known to wait. It raises `ApiError` where the
    engine refused the job.
    """

    def __init__(self, log: Log, scribe: Scribe, engine: Engine, job: Job, pace: Pace) -> None:
        self.log = log
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scribe, self._engine, self._job, self._pace = scribe, engine, job, pace
        self._ending: Callable[[], None] = scribe.cancel
        self._loop = asyncio.get_running_loop()
        self._said_at = self._loop.time()
        self._admitted = False
        self._work: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name=f"turn {log.id}")

    @property
    def task(self) -> asyncio.Task[None]:
        """The task the turn runs in. It never raises."""
        return self._task

    def cancel(self) -> None:
        """Nobody wants the rest."""
        self._task.cancel()

    def shut(self) -> None:
        """The server must go: end as failed, which agents take as a reason to send the request again."""
        self._ending = lambda: self._scribe.fail("server_error", SHUTTING_DOWN)
        self._task.cancel()

    async def _run(self) -> None:
        reminder = asyncio.create_task(self._remind(), name=f"reminder {self.log.id}")
        try:
            await self._generate()
        except EngineError as error:
            self._refused(error)
        except asyncio.CancelledError:
            self._end(self._ending)
        except Exception:
            trace = [f"{state.name} {letter.name}" for state, letter in self._scribe.machine.trace]
            _logger.exception("turn broke", response=self.log.id, trace=trace)
            self._end(lambda: self._scribe.fail("server_error", BROKEN))
        finally:
            reminder.cancel()
            try:
                self._write()
            finally:
                self.log.end()
                self._refuse(ApiError(503, "cancelled", GONE))

    async def _generate(self) -> None:
        """Have the engine work on the job until the turn is over, which may be sooner than the engine thinks."""
        if self.log.head.background:
            self._queue()
        queued = self._loop.call_later(self._pace.queue_after, self._queue)
        work = self._work = asyncio.create_task(self._engine.generate(self._job, self._hear))
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
        if not self._scribe.ended:
            raise RuntimeError("the engine came back without a finish")

    def _queue(self) -> None:
        """Say that the job waits, once: nobody is to wait for the first word until it is admitted."""
        if not self._admitted and not self.log.frames:
            self._scribe.queue()
            self._open()

    def _hear(self, chunk: Chunk) -> None:
        """Write down what the engine brings. The last events are shown only once the slot is free: see `_run`."""
        if not self._admitted:
            self._admitted = True
            self._scribe.begin(chunk)
            self._open()
        else:
            self._scribe.take(chunk)
            if not self._scribe.ended:
                self._write(chunk)
        if self._scribe.ended and self._work is not None:
            self._work.cancel()

    def _open(self) -> None:
        self._write()
        if not self.opened.done():
            self.opened.set_result(None)

    def _write(self, chunk: Chunk | None = None) -> None:
        said = self._scribe.collect()
        if said:
            self._said_at = self._loop.time()
            detail = Detail(tokens=chunk.tokens if chunk else (), stop=self._scribe.stop)
            self.log.append(said, detail)

    def _refused(self, error: EngineError) -> None:
        if self.log.frames:
            self._end(lambda: self._scribe.fail(error.code, error.message))
        else:
            self._refuse(from_engine(error))

    def _refuse(self, error: ApiError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # whoever opened it may be gone: then nobody else asks for it

    def _end(self, ending: Callable[[], None]) -> None:
        """Say how it ended, unless that was said, or nothing was: then the answer is an HTTP error."""
        if self.log.frames and not self._scribe.ended:
            ending()

    async def _remind(self) -> None:
        while True:
            silent = self._loop.time() - self._said_at
            if silent < self._pace.remind_after:
                await asyncio.sleep(self._pace.remind_after - silent)
                continue
            self._said_at = self._loop.time()
            self._scribe.remind()
            self._write()


class Turns:
    """Opens turns and knows all that are running. `clock` gives seconds since 1970."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        ids: Ids = mint,
        reasoning_as: ReasoningAs = "content",
        pace: Pace = Pace(),  # noqa: B008  # it is frozen
    ) -> None:
        self.store = store
        self._clock, self._ids, self._reasoning_as, self._pace = clock, ids, reasoning_as, pace
        self._recall = Recall()
        self._running: dict[str, Turn] = {}
        self._taken: Counter[Engine] = Counter()
        """Turns by engine, those among them whose prompt is still being laid out."""
        self._closing = False

    async def open(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> Log:
        """Start one turn; its log, in which something was said already. Raises `ApiError` before any event."""
        return (await self.open_all(model, spec, owner))[0]

    async def open_all(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> list[Log]:
        """Start `spec.n` turns that share one prompt. If one is refused, none runs."""
        if self._closing:
            raise ApiError(503, "server_shutting_down", SHUTTING_DOWN, headers=(("retry-after", "1"),))
        if self.full(model.engine, spec.n):
            raise from_engine(overloaded())
        self._taken[model.engine] += spec.n
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
        return [turn.log for turn in turns]

    def full(self, engine: Engine, count: int = 1) -> bool:
        """Whether the engine has no place for so many turns more.

        It would refuse them itself, but only when their prompts have been laid out: in a flood that is late.
        """
        return self._taken[engine] + count > engine.places()

    def cancel(self, log: Log) -> None:
        """Nobody reads this log any more: end its turn, if it still runs."""
        turn = self._running.get(log.id)
        if turn:
            turn.cancel()

    @property
    def running(self) -> int:
        """How many turns have not ended."""
        return len(self._running)

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

    async def _render(self, model: ServedModel, spec: TurnSpec, owner: str) -> Layout:
        """Lay out the prompt, off the event loop: templates come with models and may be slow."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        try:
            async with asyncio.timeout(self._pace.render_within):
                layout = await asyncio.to_thread(self._recall.read, model.format, owner, spec.conversation, now)
        except TimeoutError:
            raise ApiError(400, "prompt_too_complex", "The prompt took too long to lay out.", "input") from None
        except RenderError as error:
            raise ApiError(400, "invalid_prompt", error.message, error.param or "input") from None
        length, most = len(layout.prompt.tokens), model.engine.info.context
        if length >= most:
            message = f"This model's maximum context length is {most} tokens, but the input has {length}."
            raise ApiError(400, "context_length_exceeded", message, "input")
        return layout

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
        )
        given = identified(spec.given, head.id) if head.store else ()
        turn = Turn(Log(head, layout.owner, given), scribe, model.engine, _job(model, spec, layout, number), self._pace)
        self._running[head.id] = turn
        turn.task.add_done_callback(lambda _: self._over(turn, layout, scribe, model.engine))
        return turn

    def _over(self, turn: Turn, layout: Layout, scribe: Scribe, engine: Engine) -> None:
        del self._running[turn.log.id]
        self._taken[engine] -= 1
        response = turn.log.response
        if response.status in ("completed", "incomplete"):
            self._recall.remember(Spoken(layout, tuple(scribe.spoken), response.output))

    async def _abandon(self, turns: Iterable[Turn]) -> None:
        tasks = [turn.task for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _job(model: ServedModel, spec: TurnSpec, layout: Layout, number: int) -> Job:
    """The engine's share of a turn. The n-th of several choices draws other random numbers than the first."""
    seed = None if spec.sampling.seed is None else spec.sampling.seed + number
    stop_ids = tuple(dict.fromkeys((*spec.sampling.stop_ids, *model.format.stop_ids)))
    sampling = msgspec.structs.replace(spec.sampling, seed=seed, stop_ids=stop_ids)
    return Job(id=spec.head.id, tokens=layout.prompt.tokens, sampling=sampling, owner=layout.owner)
