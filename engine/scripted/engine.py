"""The scripted engine: replays ids or text, pauses and faults from a script, identically every time.

It keeps every rule of `engine.protocol` (slots, queue, cancel, deadlines, token limits, log-probabilities), so that
tests against it also hold for an engine with a model. Grammars are the exception: they are ignored, because the script
fixes the output. The engine handles no text: the caller passes `encode` and `decode`.

Choice of the reply: the one recorded for exactly this prompt (the next one if there are more, with the last one
repeated); otherwise the first in file order whose `when` strings all occur in the decoded prompt; otherwise the next
reply without either, in order of job arrival, with the last one repeated. Write the later turn of a conversation
before the earlier one, because its prompt contains the strings of both. A job that continues gets the first of these
that begins with its tokens, and uses up none.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from antiphon.engine.media_checks import check_media
from antiphon.engine.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineStats,
    Job,
    MediaSource,
    OnChunk,
    is_full,
    overloaded_error,
)
from antiphon.engine.scripted.media import ScriptedMedia
from antiphon.engine.scripted.playback import EncodeText, begins_with, play_reply
from antiphon.engine.scripted.script import (
    ScriptedReply,
    ScriptError,
    ScriptStep,
    load_script,
    parse_script,
    prompt_key,
)
from antiphon.engine.scripted.scripted_job import ENGINE_STOPPED_MESSAGE, ScriptedJob
from antiphon.engine.scripted.step_loop import StepLoop

__all__ = ["ScriptError", "ScriptStep", "ScriptedEngine", "ScriptedReply", "load_script", "parse_script"]

DecodeTokens = Callable[[Sequence[int]], str]

DEFAULT_INFO = EngineInfo(
    max_model_len=131_072,
    vocab_size=262_144,
    device="none",
    dtype="none",
    description="scripted",
    architecture="scripted",
)


PREFILL_REPLY = ScriptedReply(name="prefill", output=())
"""Reply to a job whose output is discarded."""


class ScriptedEngine:
    """Plays `replies`, chosen as this module's docstring describes.

    `decode` is needed only if a reply has `when`. `delay` is the pause in seconds before every chunk of tokens,
    `pause_scale` a factor for the pauses of the script.
    At most `max_num_seqs` jobs play at once and `max_waiting` wait; a free slot goes to the highest priority, then to
    the owner with the fewest, first in, first out.
    Further jobs are rejected with `server_is_overloaded`.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply],
        *,
        encode: EncodeText,
        decode: DecodeTokens | None = None,
        info: EngineInfo | None = None,
        delay: float = 0.0,
        pause_scale: float = 1.0,
        max_num_seqs: int = 64,
        max_waiting: int = 1024,
    ) -> None:
        if not replies:
            raise ScriptError("a scripted engine needs at least one reply")
        if decode is None and any(reply.when for reply in replies):
            raise ScriptError("a script with `when` needs a decoder for the prompt")
        self.info = info or DEFAULT_INFO
        self.replies = tuple(replies)
        self.on_reply: Callable[[Job, ScriptedReply], None] = lambda _job, _reply: None
        """Receives each job and its reply before the job is admitted. May raise `EngineError` to refuse it."""
        self._conditional = [reply for reply in replies if reply.when]
        self._unconditional = [reply for reply in replies if not reply.when and not reply.prompt]
        self._recorded: dict[str, deque[ScriptedReply]] = {}
        for reply in replies:
            if reply.prompt:
                self._recorded.setdefault(reply.prompt, deque()).append(reply)
        self._pause_scale = pause_scale
        self._encode, self._decode, self._delay = encode, decode, delay
        self._max_num_seqs, self._max_waiting = max_num_seqs, max_waiting
        self._jobs: dict[str, ScriptedJob] = {}
        self._media = ScriptedMedia()
        self._waiting: deque[ScriptedJob] = deque()
        self._step_loop = StepLoop()
        self._num_served = 0
        self._is_open = True
        self._prompt_tokens = self._generated = self._finished = self._faults = 0

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of the pictures of jobs. Each job loads all of its own once, and drops them."""
        self._media.source = source

    async def start(self) -> None:
        """Loads nothing; reopens a closed engine."""
        self._is_open = True

    async def close(self) -> None:
        """Ends every job in flight with `engine_unavailable`."""
        self._is_open = False
        for run in list(self._jobs.values()):
            run.end_with("closed")

    async def cancel(self, job_id: str) -> None:
        """Ends a job; unknown ids are ignored."""
        if job_id in self._jobs:
            self._jobs[job_id].end_with("cancelled")

    async def wait_ready(self) -> None:
        """Returns at once. Raises `EngineError` if the engine is closed or full."""
        self._check_open()
        self._check_capacity(0)

    def unready_reason(self) -> str | None:
        """Returns None unless the engine is closed: a script needs no loading."""
        return None if self._is_open else ENGINE_STOPPED_MESSAGE

    def capacity(self) -> int:
        """Returns the number of slots plus the length of the queue."""
        return self._max_num_seqs + self._max_waiting

    def stats(self) -> EngineStats:
        """Returns the current counts; `running_cache_tokens` are the tokens of jobs that hold a slot."""
        admitted = [run for run in self._jobs.values() if run.admitted]
        return EngineStats(
            running=len(admitted),
            waiting=len(self._waiting),
            max_num_seqs=self._max_num_seqs,
            running_cache_tokens=sum(len(run.job.tokens) + run.num_generated for run in admitted),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            encoded_images=self._media.num_loaded,
            finished_jobs=self._finished,
            failed_jobs=self._faults,
        )

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Plays the reply that matches this job."""
        self._check_job(job)
        reply = self._choose_reply(job)
        run = self._jobs[job.id] = ScriptedJob(job)
        try:
            await self._wait_for_slot(run)
            on_chunk(Chunk(cached_tokens=min(reply.cached_tokens, len(job.tokens))))

            if job.media or reply.shows_media:
                reply, fault = await self._media.answer(job, reply)
                if fault is not None:
                    self._count_chunk(run, failed := Chunk(finish="error", fault=fault))
                    on_chunk(failed)
                    return

            def deliver(chunk: Chunk) -> bool:
                output = run.final_chunk() or chunk
                self._count_chunk(run, output)
                on_chunk(output)
                return output.finish is None

            chunks = play_reply(reply, job, self.info, self._encode, self._delay, self._pause_scale)
            while delayed := await self._step_loop.play_chunks(chunks, deliver):
                wait, chunk = delayed
                await run.sleep(wait)
                if not deliver(chunk):
                    return
        finally:
            self._release_slot(run)

    def _check_open(self) -> None:
        if not self._is_open:
            raise EngineError("engine_unavailable", ENGINE_STOPPED_MESSAGE, retryable=True)

    def _check_capacity(self, priority: int) -> None:
        if is_full(self.capacity(), [run.job.priority for run in self._jobs.values()], priority):
            raise overloaded_error()

    def _check_job(self, job: Job) -> None:
        self._check_open()
        if job.adapter:
            raise EngineError("adapter_not_found", "the scripted engine has no adapters")
        if job.id in self._jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        if len(job.tokens) >= self.info.max_model_len:  # the tokens of an earlier run fitted
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {len(job.tokens)} tokens, the context holds {self.info.max_model_len}",
            )
        check_media(job, self.info)
        self._check_capacity(job.priority)

    def _choose_reply(self, job: Job) -> ScriptedReply:
        if job.prefill_only:  # it uses up no reply of the script: its output is discarded
            return PREFILL_REPLY
        reply = self._find_reply(job)
        self.on_reply(job, reply)
        if reply.refusal is not None:
            step = reply.refusal
            raise EngineError(step.code, step.refuse or "", step.retryable)
        return reply

    def _find_reply(self, job: Job) -> ScriptedReply:
        if job.generated is not None:
            return self._find_begun(job, job.generated)
        if self._recorded and (recorded := self._recorded.get(prompt_key(job.tokens))):
            return recorded.popleft() if len(recorded) > 1 else recorded[0]
        if self._conditional and self._decode is not None:
            prompt = self._decode(job.tokens)
            for reply in self._conditional:
                if all(text in prompt for text in reply.when):
                    return reply
        if not self._unconditional:
            hint = ": a recorded reply answers the very prompt that it was recorded with" if self._recorded else ""
            raise EngineError("server_error", f"no scripted reply matches this prompt{hint}")
        reply = self._unconditional[min(self._num_served, len(self._unconditional) - 1)]
        self._num_served += 1
        return reply

    def _find_begun(self, job: Job, generated: tuple[int, ...]) -> ScriptedReply:
        """Returns the reply that an earlier run of this job began to play."""
        prompt = self._decode(job.tokens) if self._conditional and self._decode is not None else ""
        matching = [reply for reply in self._conditional if all(text in prompt for text in reply.when)]
        recorded: Iterable[ScriptedReply] = self._recorded.get(prompt_key(job.tokens), ())
        for reply in (*recorded, *matching, *self._unconditional):
            if begins_with(reply, generated, self._encode):
                return reply
        raise EngineError("server_error", "no scripted reply begins with the tokens of this job")

    async def _wait_for_slot(self, run: ScriptedJob) -> None:
        if sum(other.admitted for other in self._jobs.values()) < self._max_num_seqs:
            run.admitted = True
        else:
            self._waiting.append(run)
            await run.wait_admitted()
        self._prompt_tokens += len(run.job.tokens)

    def _release_slot(self, run: ScriptedJob) -> None:
        """Removes the job and passes its slot on: to the highest priority, then to the owner with the fewest slots."""
        self._jobs.pop(run.job.id, None)
        if not run.admitted:
            if run in self._waiting:
                self._waiting.remove(run)
            return
        waiting = [waiter for waiter in self._waiting if waiter.end_cause is None]
        if waiting:
            admitted = Counter(other.job.owner for other in self._jobs.values() if other.admitted)
            chosen = min(waiting, key=lambda waiter: (-waiter.job.priority, admitted[waiter.job.owner]))
            self._waiting.remove(chosen)
            chosen.admitted = True
            chosen.wake_event.set()

    def _count_chunk(self, run: ScriptedJob, chunk: Chunk) -> None:
        run.num_generated += len(chunk.tokens)
        self._generated += len(chunk.tokens)
        self._finished += chunk.finish is not None
        self._faults += chunk.finish == "error"
