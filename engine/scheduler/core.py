"""The engine without a clock of its own, threads or asyncio: jobs in, one step at a time, chunks out.

Whoever drives it (:mod:`engine.process.worker` does) calls :meth:`Core.add`, :meth:`Core.cancel` and, while
:attr:`Core.busy`, :meth:`Core.step`, all from one thread. A step schedules, runs the model once, and reads the result.
"""

import logging
import time
from collections.abc import Callable

import torch

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.forward import ForwardPass
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk
from antiphon.engine.scheduler.cache_manager import KVCacheManager
from antiphon.engine.scheduler.grammar import CompilerFactory, GrammarMatcher, prefetch_masks
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.sampler import SamplingState
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scheduler.sequence import Sequence, deadline_fault
from antiphon.engine.scheduler.step_output import ScheduledTokens, SequenceOutput, process_logits

log = logging.getLogger(__name__)

DISPLACED = Fault("server_is_overloaded", "too many requests are waiting; others had fewer", retryable=True)
NON_FINITE_LOGITS = Fault("server_error", "the model gave no usable number for the next token", retryable=False)


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
        forward: ForwardPass,
        info: EngineInfo,
        *,
        max_num_seqs: int = 32,
        max_waiting: int = 256,
        max_batched_tokens: int = 512,
        max_cache_tokens: int | None = None,
        max_draft_seqs: int = 1,
        enable_prefix_caching: bool = True,
        grammars: CompilerFactory = lambda: None,
        kernels: Kernels | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._forward = forward
        self._grammars = grammars
        self._kernels = kernels
        self._clock = clock
        most = max_cache_tokens or max_num_seqs * info.max_model_len
        self._prefill_budget = (
            PrefillBudget(max_batched_tokens, forward.prompt_alignment) if forward.supports_chunked_prefill else None
        )
        self._scheduler = Scheduler(
            max_num_seqs=max_num_seqs,
            max_waiting=max_waiting,
            max_cache_tokens=most,
            prefill_budget=self._prefill_budget,
        )
        self._cache_manager = KVCacheManager(
            forward,
            max_tokens=most,
            max_idle_tokens=max_cache_tokens or info.max_model_len,
            enable_prefix_caching=enable_prefix_caching,
        )
        self._max_draft_seqs = max_draft_seqs if forward.supports_chunked_prefill else 0
        self._jobs: dict[str, Sequence] = {}
        self._outbox: list[JobChunk] = []
        self._num_steps = self._prompt_tokens = self._prefix_hit_tokens = self._generated_tokens = (
            self._finished_jobs
        ) = self._failed_jobs = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._jobs or self._outbox)

    def stats(self) -> EngineStats:
        """Counts of this moment; may be called from any thread."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            slots=self._scheduler.max_num_seqs,
            running_cache_tokens=self._scheduler.cached_tokens,
            idle_cache_tokens=self._cache_manager.prefix_cache.num_tokens,
            steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            generated_tokens=self._generated_tokens,
            finished_jobs=self._finished_jobs,
            failed_jobs=self._failed_jobs,
        )

    def add(self, job: Job) -> None:
        """Queue a job. Raises :class:`EngineError` if it cannot run here or the queue is full."""
        check_job(job, self.info)
        if job.id in self._jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        sampling = job.sampling
        stops = frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else frozenset(self.info.eos_ids))
        room = self.info.max_model_len - len(job.tokens)
        sequence = Sequence(
            job,
            SamplingState(sampling, job.tokens, stops, self._grammar_matcher(job, stops)),
            max_new_tokens=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            stop_ids=stops,
            deadline_at=None if job.deadline is None else self._clock() + job.deadline,
        )
        displaced = self._scheduler.add(sequence)
        self._jobs[job.id] = sequence
        if displaced is not None:
            self._end_job(displaced, Chunk(finish="error", fault=DISPLACED))

    def _grammar_matcher(self, job: Job, stops: frozenset[int]) -> GrammarMatcher | None:
        if job.grammar is None:
            return None
        guides = self._grammars()
        if guides is None:
            raise EngineError("grammar_unsupported", "this model's vocabulary cannot be held to a grammar")
        return guides.create_matcher(job.grammar, stops)

    def cancel(self, job_id: str) -> None:
        """End a job now: its slot is free for the next step, which also tells it. Unknown ids are ignored."""
        if job_id in self._jobs:
            self._end_job(self._jobs[job_id], Chunk(finish="cancelled"))

    def abort(self, fault: Fault) -> list[JobChunk]:
        """End every job with this fault, and tell it."""
        for sequence in list(self._jobs.values()):
            self._end_job(sequence, Chunk(finish="error", fault=fault), keep_cache=False)
        self._cache_manager.prefix_cache.clear()
        return self._take_outbox()

    def step(self) -> list[JobChunk]:
        """Do one thing: tell what is waiting to be told, or run the model once. Never raises for a job's sake."""
        now = self._clock()
        for sequence in list(self._jobs.values()):
            fault = deadline_fault(sequence, now)
            if fault is not None:
                self._end_job(sequence, Chunk(finish="error", fault=fault))
        self._admit_waiting()
        if not self._outbox and self._scheduler.running:
            self._run_model()
        return self._take_outbox()

    def _take_outbox(self) -> list[JobChunk]:
        said, self._outbox = self._outbox, []
        return said

    def _admit_waiting(self) -> None:
        for sequence in self._scheduler.admit_waiting(self._cache_manager.prefix_leader):
            try:
                cached = self._cache_manager.allocate(sequence, self._scheduler.running)
            except Exception as failure:
                log.exception("no cache for a sequence of %d tokens", len(sequence.tokens))
                self._fail_sequence(sequence, failure)
                continue
            if not sequence.admitted:
                sequence.admitted = True
                self._prefix_hit_tokens += cached
                self._outbox.append((sequence.job.id, Chunk(cached_tokens=cached)))

    def _run_model(self) -> None:
        for sequence in self._scheduler.preempt():
            self._cache_manager.free(sequence)
        self._cache_manager.grow_caches(self._scheduler.running)
        feeds = self._add_drafts(self._scheduler.schedule())
        decoding = sum(feed.sequence.num_pending == 1 for feed in feeds)
        self._num_steps += 1
        began = self._clock()
        try:
            prefetch_masks(
                feed.sequence.sampling_state.grammar for feed in feeds if feed.count == feed.sequence.num_pending
            )
            with torch.inference_mode():
                logits = self._forward.run([feed.model_input for feed in feeds])
                news = process_logits(feeds, logits, self._kernels)
        except Exception as failure:
            log.exception("a step of %d sequences failed", len(feeds))
            for feed in feeds:
                self._fail_sequence(feed.sequence, failure)
            return
        for feed in feeds:
            self._prompt_tokens += feed.sequence.take_newly_computed()
        self._record_timing(feeds, news, decoding, self._clock() - began)
        for item in news:
            self._emit_output(item)

    def _add_drafts(self, work: list[tuple[Sequence, int]]) -> list[ScheduledTokens]:
        """No drafts before a step without them was measured: nobody could say whether they pay.

        None while a prompt is being fed either: :class:`Pace` waits for steps in which only decoding happens.
        """
        running = self._scheduler.running
        calm = len(running) <= self._max_draft_seqs and all(sequence.num_pending == 1 for sequence in running)
        drafting = (
            calm and self._prefill_budget is not None and self._prefill_budget.decode_seconds(len(running)) is not None
        )
        return [
            ScheduledTokens(sequence, count, _propose_draft(sequence) if drafting else []) for sequence, count in work
        ]

    def _record_timing(
        self, feeds: list[ScheduledTokens], news: list[SequenceOutput], decoding: int, seconds: float
    ) -> None:
        """What the step's time says about prompts, or about drafts."""
        if self._prefill_budget is None:
            return
        drafts = {feed.sequence.job.id: len(feed.draft) for feed in feeds if feed.draft}
        if not drafts:
            prompts = sum(feed.count for feed in feeds) - decoding
            self._prefill_budget.record_step(decoding, prompts, seconds)
            return
        plain = self._prefill_budget.decode_seconds(decoding)
        cost = seconds / plain if plain else 1.0
        for item in news:
            drafted = drafts.get(item.sequence.job.id)
            if drafted and item.tokens and not item.finish:
                item.sequence.drafter.update(drafted, len(item.tokens) - 1, cost)

    def _emit_output(self, news: SequenceOutput) -> None:
        sequence = news.sequence
        if not news.is_valid:
            self._end_job(sequence, Chunk(finish="error", fault=NON_FINITE_LOGITS), keep_cache=False)
            return
        self._generated_tokens += len(news.tokens)
        first = sequence.num_generated == len(news.tokens)
        chunk = Chunk(
            tokens=news.tokens,
            logprobs=news.logprobs,
            finish=news.finish,
            stop_id=news.tokens[-1] if news.finish == "stop" else None,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if first else (),
        )
        if news.finish:
            self._end_job(sequence, chunk)
        else:
            self._outbox.append((sequence.job.id, chunk))

    def _fail_sequence(self, sequence: Sequence, failure: Exception) -> None:
        message = f"the model failed in this step ({type(failure).__name__}); see the server's log"
        self._end_job(
            sequence, Chunk(finish="error", fault=Fault("server_error", message, retryable=True)), keep_cache=False
        )

    def _end_job(self, sequence: Sequence, chunk: Chunk, *, keep_cache: bool = True) -> None:
        """``sound``: its cache may be read by others."""
        self._scheduler.remove(sequence)
        self._cache_manager.free(sequence, keep=keep_cache)
        if self._jobs.pop(sequence.job.id, None) is not None:
            self._finished_jobs += 1
            self._failed_jobs += chunk.finish == "error"
            self._outbox.append((sequence.job.id, chunk))


def check_job(job: Job, info: EngineInfo) -> None:
    """Raises :class:`EngineError` if the job could never run on this engine. Pure: any thread may ask."""
    count = len(job.tokens)
    if not count:
        raise EngineError("invalid_request", "the prompt is empty")
    if count >= info.max_model_len:
        message = f"the prompt has {count} tokens; with room for an answer the context holds {info.max_model_len}"
        raise EngineError("context_length_exceeded", message)
    s = job.sampling
    if not 0 <= min(job.tokens) <= max(job.tokens) < info.vocab_size:
        raise EngineError("invalid_request", f"the prompt holds token ids outside the vocabulary of {info.vocab_size}")
    strange = [token for token in (*s.logit_bias, *s.stop_ids) if not 0 <= token < info.vocab_size]
    if strange:
        raise EngineError("invalid_request", f"token id {strange[0]} is outside the vocabulary of {info.vocab_size}")
    if s.repetition_penalty <= 0 or s.temperature < 0 or s.top_p < 0 or s.top_k < 0 or not 0 <= s.min_p <= 1:
        raise EngineError("invalid_request", "a sampling parameter is outside its range")


def _propose_draft(sequence: Sequence) -> list[int]:
    """A draft that neither passes the sequence's limit nor needs more memory than it has."""
    if sequence.needs_prompt_logprobs:
        return []
    room = sequence.cache.capacity - len(sequence.tokens)
    return sequence.drafter.propose(sequence.tokens, min(room, sequence.max_new_tokens - sequence.num_generated - 1))
