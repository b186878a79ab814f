"""The engine that replays a script: ids or text, pauses and faults, the same every time.

It keeps every rule of ``engine.protocol`` (slots, queue, cancel, deadlines, token limits, log-probabilities), so that
what is tested on it is true of an engine that thinks; only a grammar is ignored: the script says what it says. It knows
no text: ``encode`` and ``decode`` are handed in.

Which reply answers a job: the first, in file order, whose ``when`` strings all occur in the decoded prompt; if none
does, the next of the replies without ``when``, in the order the jobs arrive, the last of them for ever. So write the
later turn of a conversation before the earlier one: its prompt holds both.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence

from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Fault, Hear, Job, Stats, overloaded
from antiphon.engine.scripted.playback import Encode, perform
from antiphon.engine.scripted.script import Piece, Reply, ScriptError, load_script, parse_script
from antiphon.engine.scripted.step_loop import Steps

__all__ = ["Piece", "Reply", "ScriptError", "ScriptedEngine", "load_script", "parse_script"]

Decode = Callable[[Sequence[int]], str]

STOPPED = "the engine was stopped"
DEFAULT_INFO = EngineInfo(context=131_072, vocab=262_144, device="none", dtype="none", description="scripted")


class ScriptedEngine:
    """Plays ``replies`` (see the head of this module).

    ``decode`` is needed only where a reply says ``when``. ``delay`` is the silence in seconds before every chunk of
    tokens. At most ``slots`` jobs play at once and ``queue`` wait, first come first served (priorities are ignored);
    further jobs are refused with ``server_is_overloaded``.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        *,
        encode: Encode,
        decode: Decode | None = None,
        info: EngineInfo | None = None,
        delay: float = 0.0,
        slots: int = 64,
        queue: int = 1024,
    ) -> None:
        if not replies:
            raise ScriptError("a scripted engine needs at least one reply")
        if decode is None and any(reply.when for reply in replies):
            raise ScriptError("a script that says `when` needs a decoder for the prompt")
        self.info = info or DEFAULT_INFO
        self._conditional = [reply for reply in replies if reply.when]
        self._plain = [reply for reply in replies if not reply.when]
        self._encode, self._decode, self._delay = encode, decode, delay
        self._slots, self._queue = slots, queue
        self._runs: dict[str, _Run] = {}
        self._waiting: deque[_Run] = deque()
        self._steps = Steps()
        self._served = 0
        self._open = True
        self._prompt_tokens = self._generated = self._finished = self._faults = 0

    async def start(self) -> None:
        """Nothing to load; a closed engine opens again."""
        self._open = True

    async def close(self) -> None:
        """End every job in flight with ``engine_unavailable``."""
        self._open = False
        for run in list(self._runs.values()):
            run.end("closed")

    async def cancel(self, job_id: str) -> None:
        """End a job; unknown ids are ignored."""
        if job_id in self._runs:
            self._runs[job_id].end("cancelled")

    async def ready(self) -> None:
        """A job would be taken, or refused, right away."""
        self._check_open()
        self._check_room()

    def obstacle(self) -> str | None:
        """A script need not be waited for."""
        return None if self._open else STOPPED

    def places(self) -> int:
        """The slots and the queue."""
        return self._slots + self._queue

    def stats(self) -> Stats:
        """Counts of this moment; ``kv_tokens`` counts the tokens of jobs that hold a slot."""
        admitted = [run for run in self._runs.values() if run.admitted]
        return Stats(
            running=len(admitted),
            waiting=len(self._waiting),
            slots=self._slots,
            kv_tokens=sum(len(run.job.tokens) + run.said for run in admitted),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            finished=self._finished,
            faults=self._faults,
        )

    async def generate(self, job: Job, hear: Hear) -> None:
        """Play the reply that answers this job."""
        self._check(job)
        reply = self._choose(job)
        run = self._runs[job.id] = _Run(job)
        try:
            await self._admit(run)
            hear(Chunk(cached=min(reply.cached, len(job.tokens))))

            def take(chunk: Chunk) -> bool:
                said = run.outcome() or chunk
                self._count(run, said)
                hear(said)
                return said.finish is None

            chunks = perform(reply, job, self.info, self._encode, self._delay)
            while late := await self._steps.play(chunks, take):
                wait, chunk = late
                await run.pause(wait)
                if not take(chunk):
                    return
        finally:
            self._release(run)

    def _check_open(self) -> None:
        if not self._open:
            raise EngineError("engine_unavailable", STOPPED, retryable=True)

    def _check_room(self) -> None:
        if len(self._runs) >= self.places():
            raise overloaded()

    def _check(self, job: Job) -> None:
        self._check_open()
        if job.id in self._runs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        if len(job.tokens) >= self.info.context:
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {len(job.tokens)} tokens, the context holds {self.info.context}",
            )
        self._check_room()

    def _choose(self, job: Job) -> Reply:
        reply = self._matching(job)
        if reply.refusal is not None:
            piece = reply.refusal
            raise EngineError(piece.code, piece.refuse or "", piece.retryable)
        return reply

    def _matching(self, job: Job) -> Reply:
        if self._conditional and self._decode is not None:
            prompt = self._decode(job.tokens)
            for reply in self._conditional:
                if all(text in prompt for text in reply.when):
                    return reply
        if not self._plain:
            raise EngineError("server_error", "no reply of the script answers this prompt")
        reply = self._plain[min(self._served, len(self._plain) - 1)]
        self._served += 1
        return reply

    async def _admit(self, run: "_Run") -> None:
        if sum(other.admitted for other in self._runs.values()) < self._slots:
            run.admitted = True
        else:
            self._waiting.append(run)
            await run.admission()
        self._prompt_tokens += len(run.job.tokens)

    def _release(self, run: "_Run") -> None:
        """Forget the job and hand its slot to the first that waits and is not ended."""
        self._runs.pop(run.job.id, None)
        if not run.admitted:
            if run in self._waiting:
                self._waiting.remove(run)
            return
        while self._waiting:
            follower = self._waiting.popleft()
            if follower.ended is None:
                follower.admitted = True
                follower.wake.set()
                return

    def _count(self, run: "_Run", chunk: Chunk) -> None:
        run.said += len(chunk.tokens)
        self._generated += len(chunk.tokens)
        self._finished += chunk.finish is not None
        self._faults += chunk.finish == "error"


class _Run:
    """One job in flight: whether it has its slot, whether somebody ended it, and when its time is over."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.admitted = False
        self.ended: str | None = None
        self.said = 0
        self.wake = asyncio.Event()
        self.expires = math.inf if job.deadline is None else asyncio.get_running_loop().time() + job.deadline

    def end(self, how: str) -> None:
        if self.ended is None:
            self.ended = how
            self.wake.set()

    async def admission(self) -> None:
        """Wait for a slot. Raises :class:`EngineError` if the job is ended first."""
        await self.pause(math.inf)
        if not self.admitted:
            fault = self._fault()
            raise EngineError(fault.code, fault.message, fault.retryable)
        if self.ended is None:
            self.wake.clear()

    def outcome(self) -> Chunk | None:
        """The chunk that ends the job, if its end has come."""
        self._expire()
        if self.ended == "cancelled":
            return Chunk(finish="cancelled")
        return Chunk(finish="error", fault=self._fault()) if self.ended else None

    async def pause(self, seconds: float) -> None:
        """Wait, at most until the job's end."""
        wait = min(seconds, self.expires - asyncio.get_running_loop().time())
        if wait > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), None if wait == math.inf else wait)
        self._expire()

    def _expire(self) -> None:
        if self.ended is None and self.expires < math.inf and asyncio.get_running_loop().time() >= self.expires:
            self.ended = "deadline"

    def _fault(self) -> Fault:
        if self.ended == "closed":
            return Fault("engine_unavailable", STOPPED, True)
        if self.ended == "deadline":
            return Fault("deadline_exceeded", f"not done within {self.job.deadline:g} s", True)
        return Fault("cancelled", "the job was cancelled while it waited")
