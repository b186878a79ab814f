"""The engine without a clock of its own, threads or asyncio: jobs in, one step at a time, chunks out.

Whoever drives it (:mod:`engine.process.worker` does) calls :meth:`Core.add`, :meth:`Core.cancel` and, while
:attr:`Core.busy`, :meth:`Core.step`, all from one thread. A step schedules, runs the model once, and reads the result.
"""

import logging
import time
from collections.abc import Callable

import torch

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.forward import Forward
from antiphon.engine.process.messages import Said
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Fault, Job, Stats
from antiphon.engine.scheduler.cache_manager import Memory
from antiphon.engine.scheduler.grammar import Guide, Opener, prepare
from antiphon.engine.scheduler.prefill_budget import Pace
from antiphon.engine.scheduler.sampler import Dice
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scheduler.sequence import Sequence, expired
from antiphon.engine.scheduler.step_output import Feed, News, read

log = logging.getLogger(__name__)

OVERLOADED = Fault("server_is_overloaded", "too many requests are waiting; others had fewer", retryable=True)
NO_NUMBER = Fault("server_error", "the model gave no usable number for the next token", retryable=False)


class Core:
    """Runs jobs on a model.

    ``room``: how many tokens the cache may hold for all jobs, ended ones included; None: as many as the slots can fill,
    and of ended jobs one context. ``speculate``: up to how many sequences running at once get drafts; 0: none.
    ``reuse``: keep the caches of ended jobs for those that begin alike. ``guides`` opens what a grammar's masks need;
    ``kernels`` help drawing, on a CPU.

    A job's first chunk marks its admission. A job that ends before (cancelled, displaced, or out of time, while it
    waited) has no such chunk: its only one has ``finish`` set.
    """

    def __init__(  # noqa: PLR0913  what bounds a core is named one by one
        self,
        forward: Forward,
        info: EngineInfo,
        *,
        slots: int = 32,
        queue: int = 256,
        chunk: int = 512,
        room: int | None = None,
        speculate: int = 1,
        reuse: bool = True,
        guides: Opener = lambda: None,
        kernels: Kernels | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._forward = forward
        self._guides = guides
        self._kernels = kernels
        self._clock = clock
        most = room or slots * info.context
        self._pace = Pace(chunk, forward.grain) if forward.chunked else None
        self._scheduler = Scheduler(slots=slots, queue=queue, room=most, pace=self._pace)
        self._memory = Memory(forward, room=most, idle=room or info.context, reuse=reuse)
        self._speculate = speculate if forward.chunked else 0
        self._jobs: dict[str, Sequence] = {}
        self._outbox: list[Said] = []
        self._steps = self._prompt_tokens = self._cached = self._generated = self._finished = self._faults = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._jobs or self._outbox)

    def stats(self) -> Stats:
        """Counts of this moment; may be called from any thread."""
        return Stats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            slots=self._scheduler.slots,
            kv_tokens=self._scheduler.held,
            idle_tokens=self._memory.prefixes.tokens,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            generated_tokens=self._generated,
            finished=self._finished,
            faults=self._faults,
        )

    def add(self, job: Job) -> None:
        """Queue a job. Raises :class:`EngineError` if it cannot run here or the queue is full."""
        check(job, self.info)
        if job.id in self._jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        sampling = job.sampling
        stops = frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else frozenset(self.info.eos_ids))
        room = self.info.context - len(job.tokens)
        sequence = Sequence(
            job,
            Dice(sampling, job.tokens, stops, self._guide(job, stops)),
            limit=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            stops=stops,
            expires=None if job.deadline is None else self._clock() + job.deadline,
        )
        displaced = self._scheduler.add(sequence)
        self._jobs[job.id] = sequence
        if displaced is not None:
            self._end(displaced, Chunk(finish="error", fault=OVERLOADED))

    def _guide(self, job: Job, stops: frozenset[int]) -> Guide | None:
        if job.grammar is None:
            return None
        guides = self._guides()
        if guides is None:
            raise EngineError("grammar_unsupported", "this model's vocabulary cannot be held to a grammar")
        return guides.guide(job.grammar, stops)

    def cancel(self, job_id: str) -> None:
        """End a job now: its slot is free for the next step, which also tells it. Unknown ids are ignored."""
        if job_id in self._jobs:
            self._end(self._jobs[job_id], Chunk(finish="cancelled"))

    def abort(self, fault: Fault) -> list[Said]:
        """End every job with this fault, and tell it."""
        for sequence in list(self._jobs.values()):
            self._end(sequence, Chunk(finish="error", fault=fault), sound=False)
        self._memory.prefixes.clear()
        return self._flush()

    def step(self) -> list[Said]:
        """Do one thing: tell what is waiting to be told, or run the model once. Never raises for a job's sake."""
        now = self._clock()
        for sequence in list(self._jobs.values()):
            fault = expired(sequence, now)
            if fault is not None:
                self._end(sequence, Chunk(finish="error", fault=fault))
        self._admit()
        if not self._outbox and self._scheduler.running:
            self._run()
        return self._flush()

    def _flush(self) -> list[Said]:
        said, self._outbox = self._outbox, []
        return said

    def _admit(self) -> None:
        for sequence in self._scheduler.admit(self._memory.leader):
            try:
                cached = self._memory.open(sequence, self._scheduler.running)
            except Exception as failure:
                log.exception("no cache for a sequence of %d tokens", len(sequence.tokens))
                self._fail(sequence, failure)
                continue
            if not sequence.announced:
                sequence.announced = True
                self._cached += cached
                self._outbox.append((sequence.job.id, Chunk(cached=cached)))

    def _run(self) -> None:
        for sequence in self._scheduler.yielding():
            self._memory.close(sequence)
        self._memory.grow(self._scheduler.running)
        feeds = self._draft(self._scheduler.plan())
        decoding = sum(feed.sequence.pending == 1 for feed in feeds)
        self._steps += 1
        began = self._clock()
        try:
            prepare(feed.sequence.dice.guide for feed in feeds if feed.count == feed.sequence.pending)
            with torch.inference_mode():
                logits = self._forward.run([feed.work for feed in feeds])
                news = read(feeds, logits, self._kernels)
        except Exception as failure:
            log.exception("a step of %d sequences failed", len(feeds))
            for feed in feeds:
                self._fail(feed.sequence, failure)
            return
        for feed in feeds:
            self._prompt_tokens += feed.sequence.newly_read()
        self._learn(feeds, news, decoding, self._clock() - began)
        for item in news:
            self._say(item)

    def _draft(self, work: list[tuple[Sequence, int]]) -> list[Feed]:
        """No drafts before a step without them was measured: nobody could say whether they pay.

        None while a prompt is being fed either: :class:`Pace` waits for steps in which only decoding happens.
        """
        running = self._scheduler.running
        calm = len(running) <= self._speculate and all(sequence.pending == 1 for sequence in running)
        drafting = calm and self._pace is not None and self._pace.plain(len(running)) is not None
        return [Feed(sequence, count, _guess(sequence) if drafting else []) for sequence, count in work]

    def _learn(self, feeds: list[Feed], news: list[News], decoding: int, seconds: float) -> None:
        """What the step's time says about prompts, or about drafts."""
        if self._pace is None:
            return
        drafts = {feed.sequence.job.id: len(feed.draft) for feed in feeds if feed.draft}
        if not drafts:
            prompts = sum(feed.count for feed in feeds) - decoding
            self._pace.record(decoding, prompts, seconds)
            return
        plain = self._pace.plain(decoding)
        cost = seconds / plain if plain else 1.0
        for item in news:
            drafted = drafts.get(item.sequence.job.id)
            if drafted and item.tokens and not item.finish:
                item.sequence.drafter.learn(drafted, len(item.tokens) - 1, cost)

    def _say(self, news: News) -> None:
        sequence = news.sequence
        if not news.sound:
            self._end(sequence, Chunk(finish="error", fault=NO_NUMBER), sound=False)
            return
        self._generated += len(news.tokens)
        first = sequence.said == len(news.tokens)
        chunk = Chunk(
            tokens=news.tokens,
            logprobs=news.logprobs,
            finish=news.finish,
            stop_id=news.tokens[-1] if news.finish == "stop" else None,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if first else (),
        )
        if news.finish:
            self._end(sequence, chunk)
        else:
            self._outbox.append((sequence.job.id, chunk))

    def _fail(self, sequence: Sequence, failure: Exception) -> None:
        message = f"the model failed in this step ({type(failure).__name__}); see the server's log"
        self._end(sequence, Chunk(finish="error", fault=Fault("server_error", message, retryable=True)), sound=False)

    def _end(self, sequence: Sequence, chunk: Chunk, *, sound: bool = True) -> None:
        """``sound``: its cache may be read by others."""
        self._scheduler.remove(sequence)
        self._memory.close(sequence, sound=sound)
        if self._jobs.pop(sequence.job.id, None) is not None:
            self._finished += 1
            self._faults += chunk.finish == "error"
            self._outbox.append((sequence.job.id, chunk))


def check(job: Job, info: EngineInfo) -> None:
    """Raises :class:`EngineError` if the job could never run on this engine. Pure: any thread may ask."""
    count = len(job.tokens)
    if not count:
        raise EngineError("invalid_request", "the prompt is empty")
    if count >= info.context:
        message = f"the prompt has {count} tokens; with room for an answer the context holds {info.context}"
        raise EngineError("context_length_exceeded", message)
    s = job.sampling
    if not 0 <= min(job.tokens) <= max(job.tokens) < info.vocab:
        raise EngineError("invalid_request", f"the prompt holds token ids outside the vocabulary of {info.vocab}")
    strange = [token for token in (*s.logit_bias, *s.stop_ids) if not 0 <= token < info.vocab]
    if strange:
        raise EngineError("invalid_request", f"token id {strange[0]} is outside the vocabulary of {info.vocab}")
    if s.repetition_penalty <= 0 or s.temperature < 0 or s.top_p < 0 or s.top_k < 0 or not 0 <= s.min_p <= 1:
        raise EngineError("invalid_request", "a sampling parameter is outside its range")


def _guess(sequence: Sequence) -> list[int]:
    """A draft that neither passes the sequence's limit nor needs more memory than it has."""
    if sequence.measures:
        return []
    room = sequence.state.capacity - len(sequence.tokens)
    return sequence.drafter.draft(sequence.tokens, min(room, sequence.limit - sequence.said - 1))
