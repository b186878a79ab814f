"""Runs the jobs of an encoder in padded passes of bounded size: the core of its worker process. Needs no torch.

The inputs of a job are sorted by length, so that the inputs of a pass are about equally long. Jobs take turns to begin
a pass, which inputs of other jobs fill up; so a short job does not wait for the end of a long one.
"""

import logging
from collections.abc import Callable, Sequence

from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineStats,
    Fault,
    Job,
    JobChunk,
    overloaded_error,
)

log = logging.getLogger(__name__)

PASS_FAILED = Fault("server_error", "the model failed in this pass; see the server's log", retryable=True)

EncodeBatch = Callable[[Sequence[EncoderInput], Sequence[VectorOptions]], list[bytes]]
"""Computes the results of several inputs in one pass: little-endian float32 numbers for each."""


class _OpenJob:
    """A job with inputs that have not been computed. `waiting` holds their indices, the longest one last."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.waiting = sorted(range(len(job.encoder_inputs)), key=lambda index: len(job.encoder_inputs[index].tokens))

    def longest(self) -> int:
        """Returns the length in tokens of the longest waiting input."""
        return len(self.job.encoder_inputs[self.waiting[-1]].tokens)


class EncoderCore:
    """Implements `engine.process.child.worker.EngineCore`."""

    def __init__(
        self,
        encode_batch: EncodeBatch,
        info: EngineInfo,
        *,
        max_num_seqs: int,
        max_waiting: int,
        max_batched_tokens: int,
        before_pass: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self._encode_batch, self._before_pass = encode_batch, before_pass
        self._max_num_seqs, self._max_jobs = max_num_seqs, max_num_seqs + max_waiting
        self._max_batched_tokens = max_batched_tokens
        self._jobs: dict[str, _OpenJob] = {}
        """Open jobs by id. The first one begins the next pass."""
        self._outbox: list[JobChunk] = []
        self._steps = self._tokens = self._finished = self._failed = 0

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return bool(self._jobs or self._outbox)

    def add(self, job: Job) -> None:
        """Admits a job. Raises `EngineError`."""
        if len(self._jobs) >= self._max_jobs:
            raise overloaded_error()
        if not job.encoder_inputs:
            raise EngineError("invalid_request", "a job for an encoder needs inputs")
        for number, each in enumerate(job.encoder_inputs):
            if not 0 < len(each.tokens) <= self.info.max_model_len:
                raise EngineError("context_length_exceeded", f"input {number} has {len(each.tokens)} tokens")
            if not all(0 <= token < self.info.vocab_size for token in each.tokens):
                raise EngineError("invalid_request", f"input {number} has a token outside of the vocabulary")
        self._jobs[job.id] = _OpenJob(job)
        self._outbox.append((job.id, Chunk()))

    def cancel(self, job_id: str) -> None:
        """Ends a job before the next pass. Unknown ids are ignored."""
        if job_id in self._jobs:
            self._finish(job_id, Chunk(finish="cancelled"))

    def step(self) -> list[JobChunk]:
        """Returns the admissions and ends since the last step; if there are none, computes a pass.

        Admissions are sent before the pass: a job that ends the process must not be sent to the next worker, too.
        """
        if self._jobs and not self._outbox:
            self._run_pass(self._take_batch())
        chunks, self._outbox = self._outbox, []
        return chunks

    def stats(self) -> EngineStats:
        """Returns the current counts."""
        return EngineStats(
            running=len(self._jobs),
            max_num_seqs=self._max_num_seqs,
            steps=self._steps,
            prompt_tokens=self._tokens,
            finished_jobs=self._finished,
            failed_jobs=self._failed,
        )

    def _take_batch(self) -> list[tuple[str, int]]:
        """Removes the inputs of the next pass from their jobs. Returns their job ids and indices."""
        first_id = next(iter(self._jobs))
        self._jobs[first_id] = self._jobs.pop(first_id)  # the next pass begins with another job
        longest = self._jobs[first_id].longest()
        room = max(self._max_batched_tokens // longest, 1)
        batch: list[tuple[str, int]] = []
        for job_id in (first_id, *(other for other in self._jobs if other != first_id)):
            waiting = self._jobs[job_id].waiting
            while (
                waiting and len(batch) < room and self._fits(self._jobs[job_id].longest(), longest, job_id == first_id)
            ):
                batch.append((job_id, waiting.pop()))
        return batch

    @staticmethod
    def _fits(length: int, longest: int, is_first: bool) -> bool:
        """Tells whether an input is computed with one of `longest` tokens.

        Another job's input is not padded to more than twice its length. The inputs of one job are sorted, so that only
        few of them are padded by much.
        """
        return is_first or longest <= 2 * length <= 2 * longest

    def _run_pass(self, batch: list[tuple[str, int]]) -> None:
        self._before_pass()
        jobs = [self._jobs[job_id].job for job_id, _ in batch]
        inputs = [job.encoder_inputs[index] for job, (_, index) in zip(jobs, batch, strict=True)]
        self._steps += 1
        try:
            vectors = self._encode_batch(inputs, [job.vector_options for job in jobs])
        except Exception:  # any failure fails the jobs of this pass alone
            log.exception("a pass over %d inputs failed", len(inputs))
            for job_id in dict.fromkeys(job_id for job_id, _ in batch):
                self._failed += 1
                self._finish(job_id, Chunk(finish="error", fault=PASS_FAILED))
            return
        self._tokens += sum(len(each.tokens) for each in inputs)
        results: dict[str, list[tuple[int, bytes]]] = {}
        for (job_id, index), vector in zip(batch, vectors, strict=True):
            results.setdefault(job_id, []).append((index, vector))
        for job_id, pairs in results.items():
            if self._jobs[job_id].waiting:
                self._outbox.append((job_id, Chunk(vectors=tuple(pairs))))
            else:
                self._finish(job_id, Chunk(vectors=tuple(pairs), finish="stop"))

    def _finish(self, job_id: str, chunk: Chunk) -> None:
        del self._jobs[job_id]
        self._finished += 1
        self._outbox.append((job_id, chunk))
