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

from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, OnChunk, overloaded_error
from antiphon.engine.scripted.playback import EncodeText, play_reply
from antiphon.engine.scripted.script import ScriptedReply, ScriptError, ScriptStep, load_script, parse_script
from antiphon.engine.scripted.step_loop import StepLoop

__all__ = ["ScriptStep", "ScriptedReply", "ScriptError", "ScriptedEngine", "load_script", "parse_script"]

DecodeTokens = Callable[[Sequence[int]], str]

STOPPED_MESSAGE = "the engine was stopped"
DEFAULT_INFO = EngineInfo(
    max_model_len=131_072, vocab_size=262_144, device="none", dtype="none", description="scripted"
)


class ScriptedEngine:
    """Plays ``replies`` (see the head of this module).

    ``decode`` is needed only where a reply says ``when``. ``delay`` is the silence in seconds before every chunk of
    tokens. At most ``slots`` jobs play at once and ``queue`` wait, first come first served (priorities are ignored);
    further jobs are refused with ``server_is_overloaded``.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply],
        *,
        encode: EncodeText,
        decode: DecodeTokens | None = None,
        info: EngineInfo | None = None,
        delay: float = 0.0,
        max_num_seqs: int = 64,
        max_waiting: int = 1024,
    ) -> None:
        if not replies:
            raise ScriptError("a scripted engine needs at least one reply")
        if decode is None and any(reply.when for reply in replies):
            raise ScriptError("a script that says `when` needs a decoder for the prompt")
        self.info = info or DEFAULT_INFO
        self._conditional = [reply for reply in replies if reply.when]
        self._unconditional = [reply for reply in replies if not reply.when]
        self._encode, self._decode, self._delay = encode, decode, delay
        self._max_num_seqs, self._max_waiting = max_num_seqs, max_waiting
        self._jobs: dict[str, _ScriptedJob] = {}
        self._waiting: deque[_ScriptedJob] = deque()
        self._step_loop = StepLoop()
        self._num_served = 0
        self._is_open = True
        self._prompt_tokens = self._generated = self._finished = self._faults = 0

    async def start(self) -> None:
        """Nothing to load; a closed engine opens again."""
        self._is_open = True

    async def close(self) -> None:
        """End every job in flight with ``engine_unavailable``."""
        self._is_open = False
        for run in list(self._jobs.values()):
            run.end_with("closed")

    async def cancel(self, job_id: str) -> None:
        """End a job; unknown ids are ignored."""
        if job_id in self._jobs:
            self._jobs[job_id].end_with("cancelled")

    async def wait_ready(self) -> None:
        """A job would be taken, or refused, right away."""
        self._check_open()
        self._check_capacity()

    def unready_reason(self) -> str | None:
        """A script need not be waited for."""
        return None if self._is_open else STOPPED_MESSAGE

    def capacity(self) -> int:
        """The slots and the queue."""
        return self._max_num_seqs + self._max_waiting

    def stats(self) -> EngineStats:
        """Counts of this moment; ``kv_tokens`` counts the tokens of jobs that hold a slot."""
        admitted = [run for run in self._jobs.values() if run.admitted]
        return EngineStats(
            running=len(admitted),
            waiting=len(self._waiting),
            slots=self._max_num_seqs,
            running_cache_tokens=sum(len(run.job.tokens) + run.num_generated for run in admitted),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            finished_jobs=self._finished,
            failed_jobs=self._faults,
        )

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Play the reply that answers this job."""
        self._check_job(job)
        reply = self._choose_reply(job)
        run = self._jobs[job.id] = _ScriptedJob(job)
        try:
            await self._wait_for_slot(run)
            on_chunk(Chunk(cached_tokens=min(reply.cached_tokens, len(job.tokens))))

            def take(chunk: Chunk) -> bool:
                said = run.final_chunk() or chunk
                self._count_chunk(run, said)
                on_chunk(said)
                return said.finish is None

            chunks = play_reply(reply, job, self.info, self._encode, self._delay)
            while late := await self._step_loop.play_chunks(chunks, take):
                wait, chunk = late
                await run.sleep(wait)
                if not take(chunk):
                    return
        finally:
            self._release_slot(run)

    def _check_open(self) -> None:
        if not self._is_open:
            raise EngineError("engine_unavailable", STOPPED_MESSAGE, retryable=True)

    def _check_capacity(self) -> None:
        if len(self._jobs) >= self.capacity():
            raise overloaded_error()

    def _check_job(self, job: Job) -> None:
        self._check_open()
        if job.id in self._jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        if len(job.tokens) >= self.info.max_model_len:
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {len(job.tokens)} tokens, the context holds {self.info.max_model_len}",
            )
        self._check_capacity()

    def _choose_reply(self, job: Job) -> ScriptedReply:
        reply = self._find_reply(job)
        if reply.refusal is not None:
            piece = reply.refusal
            raise EngineError(piece.code, piece.refuse or "", piece.retryable)
        return reply

    def _find_reply(self, job: Job) -> ScriptedReply:
        if self._conditional and self._decode is not None:
            prompt = self._decode(job.tokens)
            for reply in self._conditional:
                if all(text in prompt for text in reply.when):
                    return reply
        if not self._unconditional:
            raise EngineError("server_error", "no reply of the script answers this prompt")
        reply = self._unconditional[min(self._num_served, len(self._unconditional) - 1)]
        self._num_served += 1
        return reply

    async def _wait_for_slot(self, run: "_ScriptedJob") -> None:
        if sum(other.admitted for other in self._jobs.values()) < self._max_num_seqs:
            run.admitted = True
        else:
            self._waiting.append(run)
            await run.wait_admitted()
        self._prompt_tokens += len(run.job.tokens)

    def _release_slot(self, run: "_ScriptedJob") -> None:
        """Forget the job and hand its slot to the first that waits and is not ended."""
        self._jobs.pop(run.job.id, None)
        if not run.admitted:
            if run in self._waiting:
                self._waiting.remove(run)
            return
        while self._waiting:
            follower = self._waiting.popleft()
            if follower.end_cause is None:
                follower.admitted = True
                follower.wake.set()
                return

    def _count_chunk(self, run: "_ScriptedJob", chunk: Chunk) -> None:
        run.num_generated += len(chunk.tokens)
        self._generated += len(chunk.tokens)
        self._finished += chunk.finish is not None
        self._faults += chunk.finish == "error"


class _ScriptedJob:
    """One job in flight: whether it has its slot, whether somebody ended it, and when its time is over."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.admitted = False
        self.end_cause: str | None = None
        self.num_generated = 0
        self.wake = asyncio.Event()
        self.deadline_at = math.inf if job.deadline is None else asyncio.get_running_loop().time() + job.deadline

    def end_with(self, cause: str) -> None:
        if self.end_cause is None:
            self.end_cause = cause
            self.wake.set()

    async def wait_admitted(self) -> None:
        """Wait for a slot. Raises :class:`EngineError` if the job is ended first."""
        await self.sleep(math.inf)
        if not self.admitted:
            fault = self._build_fault()
            raise EngineError(fault.code, fault.message, fault.retryable)
        if self.end_cause is None:
            self.wake.clear()

    def final_chunk(self) -> Chunk | None:
        """The chunk that ends the job, if its end has come."""
        self._check_deadline()
        if self.end_cause == "cancelled":
            return Chunk(finish="cancelled")
        return Chunk(finish="error", fault=self._build_fault()) if self.end_cause else None

    async def sleep(self, seconds: float) -> None:
        """Wait, at most until the job's end."""
        wait = min(seconds, self.deadline_at - asyncio.get_running_loop().time())
        if wait > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), None if wait == math.inf else wait)
        self._check_deadline()

    def _check_deadline(self) -> None:
        if (
            self.end_cause is None
            and self.deadline_at < math.inf
            and asyncio.get_running_loop().time() >= self.deadline_at
        ):
            self.end_cause = "deadline"

    def _build_fault(self) -> Fault:
        if self.end_cause == "closed":
            return Fault("engine_unavailable", STOPPED_MESSAGE, True)
        if self.end_cause == "deadline":
            return Fault("deadline_exceeded", f"not done within {self.job.deadline:g} s", True)
        return Fault("cancelled", "the job was cancelled while it waited")
