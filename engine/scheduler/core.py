"""The synchronous core of the engine: takes jobs, runs one step at a time, returns chunks. No threads, no asyncio.

The driver (`antiphon.engine.process.child.worker`) calls `Core.add`, `Core.cancel` and, while
`Core.has_work`, `Core.step`, all from one thread. A step schedules, runs the model once, and samples from
the logits.
"""

import logging
import time
from collections.abc import Callable

import torch

from antiphon.engine.adapters.registry import AdapterRegistry
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.media.image_scheduler import ImageScheduler
from antiphon.engine.prefix_disk.prefix_disk import PrefixDisk
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk
from antiphon.engine.scheduler.cache_manager import KVCacheManager
from antiphon.engine.scheduler.drafts.draft_model import DraftModel
from antiphon.engine.scheduler.drafts.drafting import Drafting
from antiphon.engine.scheduler.grammar import CompilerFactory, prefetch_masks
from antiphon.engine.scheduler.job_intake import JobIntake
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scheduler.sequence import Sequence, deadline_fault
from antiphon.engine.scheduler.step_output import SequenceOutput, explain_failure, process_logits

log = logging.getLogger(__name__)

DISPLACED = Fault(
    "server_is_overloaded",
    "Queue full: this request was displaced by one from a key with fewer queued requests.",
    retryable=True,
)


class Core:
    """Runs jobs on a model.

    `max_cache_tokens` limits the KV caches of running and finished jobs together; None means the full context for
    each of `max_num_seqs` jobs, with finished jobs limited to one context. `max_draft_seqs` is the number of
    running sequences up to which n-gram drafts are used; 0 disables them. `draft_model` drafts where no n-gram does.
    `enable_prefix_caching` keeps the caches of finished jobs for jobs with a common prefix. `grammars` returns the
    grammar compiler; `kernels` speed up sampling on a CPU. `before_pass` is called before each pass of the model. Jobs
    may name one of the `adapters`. `pictures` gets the features of their pictures.
    `prefix_disk` keeps prefixes for later starts.

    A job's first chunk marks its admission. A job that ends in the queue (cancelled, displaced, or past its deadline)
    has no such chunk: its only chunk has `finish` set.

    The parts `forward`, `scheduler`, `cache_manager`, `drafting`, `intake`, `jobs` and `clock` are public for
    benchmarks and tests, which use them between two steps.
    """

    waits_for_pictures = False
    """True after a step if no sequence can continue before a picture has come or has been encoded."""

    def __init__(  # noqa: PLR0913  each limit is a keyword argument of its own
        self,
        forward: ForwardPass,
        info: EngineInfo,
        *,
        max_num_seqs: int = 32,
        max_waiting: int = 256,
        max_batched_tokens: int = 512,
        max_cache_tokens: int | None = None,
        max_draft_seqs: int = 1,
        draft_model: DraftModel | None = None,
        enable_prefix_caching: bool = True,
        grammars: CompilerFactory = lambda: None,
        kernels: Kernels | None = None,
        adapters: AdapterRegistry | None = None,
        pictures: ImageScheduler | None = None,
        prefix_disk: PrefixDisk | None = None,
        before_pass: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info, self.forward = info, forward
        self.adapters, self.pictures = adapters, pictures
        self.intake = JobIntake(info, grammars, adapters, pictures, clock)
        self._kernels, self._before_pass, self.clock = kernels, before_pass, clock
        cache_tokens = max_cache_tokens or max_num_seqs * info.max_model_len
        self._prefill_budget = (
            PrefillBudget(max_batched_tokens, forward.prompt_alignment) if forward.supports_chunked_prefill else None
        )
        self.scheduler = Scheduler(
            max_num_seqs=max_num_seqs,
            max_waiting=max_waiting,
            max_cache_tokens=cache_tokens,
            prefill_budget=self._prefill_budget,
            state_tokens=forward.state_tokens,
        )
        self.cache_manager = KVCacheManager(
            forward,
            max_tokens=cache_tokens,
            max_idle_tokens=max_cache_tokens or info.max_model_len,
            enable_prefix_caching=enable_prefix_caching,
            prefix_disk=prefix_disk,
        )
        if adapters is not None:
            adapters.on_unload = self.cache_manager.prefix_cache.remove_adapter
        self.drafting = Drafting(self._prefill_budget, clock, max_draft_seqs, draft_model, info.suppressed_ids)
        self.jobs: dict[str, Sequence] = {}
        self._outbox: list[JobChunk] = []
        self._num_steps = self._prompt_tokens = self._prefix_hit_tokens = self._generated_tokens = (
            self._finished_jobs
        ) = self._failed_jobs = 0

    @property
    def has_work(self) -> bool:
        """True if `step` has a job to run or a chunk to return."""
        return bool(self.jobs or self._outbox)

    def stats(self) -> EngineStats:
        """Returns current counts and totals since the start. May be called from any thread."""
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            max_num_seqs=self.scheduler.max_num_seqs,
            running_cache_tokens=self.scheduler.cached_tokens,
            idle_cache_tokens=self.cache_manager.prefix_cache.num_tokens,
            steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            generated_tokens=self._generated_tokens,
            drafted_tokens=self.drafting.num_drafted,
            accepted_tokens=self.drafting.num_accepted,
            finished_jobs=self._finished_jobs,
            failed_jobs=self._failed_jobs,
            encoded_images=0 if self.pictures is None else self.pictures.num_encoded,
            feature_cache_hits=0 if self.pictures is None else self.pictures.num_hits,
            disk_hit_tokens=self.cache_manager.disk.num_hit_tokens,
            disk_pages_written=self.cache_manager.disk.num_written,
            disk_pages_damaged=self.cache_manager.disk.num_damaged,
            feature_cache_bytes=0 if self.pictures is None else self.pictures.cache.num_bytes,
        )

    def add(self, job: Job) -> None:
        """Queues a job. Raises `EngineError` if it cannot run on this engine or the queue is full."""
        if job.id in self.jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        sequence = self.intake.build_sequence(job)
        displaced = self.scheduler.add(sequence)
        self.jobs[job.id] = sequence
        if displaced is not None:
            self._end_job(displaced, Chunk(finish="error", fault=DISPLACED))

    def cancel(self, job_id: str) -> None:
        """Ends a job and frees its slot. The next step returns its last chunk. Unknown ids are ignored."""
        if job_id in self.jobs:
            self._end_job(self.jobs[job_id], Chunk(finish="cancelled"))

    def step(self) -> list[JobChunk]:
        """Admits waiting jobs, then returns pending chunks or, if there are none, runs the model once.

        Never raises because of a job: the job ends with a fault instead.
        """
        now = self.clock()
        for sequence in list(self.jobs.values()):
            fault = deadline_fault(sequence, now)
            if fault is not None:
                self._end_job(sequence, Chunk(finish="error", fault=fault))
        self._admit_waiting()
        if self.pictures is not None:
            for user, fault in self.pictures.update(self.scheduler.running):
                self._end_job(self.jobs[user.job.id], Chunk(finish="error", fault=fault))
        self.waits_for_pictures = False
        if not self._outbox and self.scheduler.running:
            self._run_model()
        elif not self._outbox:
            self.cache_manager.disk.wait_for_load()
        return self._take_outbox()

    def close(self, timeout_s: float) -> None:
        """Keeps the caches of running jobs on disk as well, waiting at most this time. No step follows."""
        for sequence in self.scheduler.running:
            self.cache_manager.free(sequence, keep=sequence.is_reusable)
        self.cache_manager.disk.close(timeout_s)

    def _take_outbox(self) -> list[JobChunk]:
        chunks, self._outbox = self._outbox, []
        return chunks

    def _admit_waiting(self) -> None:
        for sequence in self.scheduler.yield_places():
            self._free_memory(sequence)
        self.cache_manager.take_loaded(self.scheduler.running)
        for sequence in self.scheduler.admit_waiting(self._find_leader):
            try:
                cached_tokens = self.cache_manager.allocate(sequence, self.scheduler.running)
            except Exception as failure:  # the sequence ends with the fault, and others are served
                log.exception("allocating a cache for %d tokens failed", len(sequence.tokens))
                self._fail_sequence(sequence, failure)
                continue
            if not sequence.admitted:
                sequence.admitted = True
                cached_tokens = min(cached_tokens, len(sequence.job.tokens))  # an earlier run may have generated more
                self._prefix_hit_tokens += cached_tokens
                self._outbox.append((sequence.job.id, Chunk(cached_tokens=cached_tokens)))

    def _find_leader(self, sequence: Sequence, running: list[Sequence]) -> tuple[Sequence, int] | None:
        leader = self.cache_manager.find_leader(sequence, running)
        self.scheduler.loading_tokens = self.cache_manager.disk.num_loading_tokens
        return leader

    def _run_model(self) -> None:
        for sequence in self.scheduler.preempt():
            self._free_memory(sequence)
        self.cache_manager.grow_caches(self.scheduler.running)
        scheduled = self.drafting.add(self.scheduler.schedule(), self.scheduler.running)
        if not scheduled:
            self.waits_for_pictures = not self.cache_manager.disk.wait_for_load()
            return
        num_decoding = sum(entry.sequence.num_pending == 1 for entry in scheduled)
        self._num_steps += 1
        self._before_pass()
        started_at = self.clock()
        try:
            prefetch_masks(
                entry.sequence.sampling_state.grammar
                for entry in scheduled
                if entry.count == entry.sequence.num_pending
            )
            with torch.inference_mode():
                logits = self.forward.run([entry.model_input for entry in scheduled])
                outputs = process_logits(scheduled, logits, self._kernels)
        except Exception as failure:  # the sequences of the step end with the fault
            log.exception("a step of %d sequences failed", len(scheduled))
            for entry in scheduled:
                self._fail_sequence(entry.sequence, failure)
            return
        for entry in scheduled:
            self._prompt_tokens += entry.sequence.take_newly_computed()
        self.drafting.record(scheduled, outputs, num_decoding, self.clock() - started_at)
        for output in outputs:
            self._emit_output(output)

    def _emit_output(self, output: SequenceOutput) -> None:
        sequence = output.sequence
        if not output.is_valid:
            self._end_job(sequence, Chunk(finish="error", fault=explain_failure(sequence)), keep_cache=False)
            return
        self._generated_tokens += len(output.tokens)
        is_first = sequence.num_generated == len(output.tokens)
        chunk = Chunk(
            tokens=output.tokens,
            logprobs=output.logprobs,
            finish=output.finish,
            stop_id=output.tokens[-1] if output.finish == "stop" and output.tokens else None,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
        )
        if output.finish:
            self._end_job(sequence, chunk)
        else:
            self._outbox.append((sequence.job.id, chunk))

    def _fail_sequence(self, sequence: Sequence, failure: Exception) -> None:
        message = f"A step of the model failed ({type(failure).__name__}). See the server log."
        self._end_job(
            sequence, Chunk(finish="error", fault=Fault("server_error", message, retryable=True)), keep_cache=False
        )

    def _free_memory(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Takes the cache and the features of a sequence that no longer runs."""
        if self.pictures is not None:
            self.pictures.release(sequence)
        self.drafting.release(sequence, keep=keep)
        self.cache_manager.free(sequence, keep=keep)

    def _end_job(self, sequence: Sequence, chunk: Chunk, *, keep_cache: bool = True) -> None:
        """Removes a job and queues its last chunk. Its cache may be reused by other jobs if `keep_cache` is set."""
        self.scheduler.remove(sequence)
        self._free_memory(sequence, keep=keep_cache and sequence.is_reusable)
        if self.jobs.pop(sequence.job.id, None) is not None:
            self._finished_jobs += 1
            self._failed_jobs += chunk.finish == "error"
            self._outbox.append((sequence.job.id, chunk))
