"""The engine without a clock of its own, threads or asyncio: jobs in, one step at a time, chunks out.

Whoever drives it (a thread today, a process tomorrow) calls :meth:`Core.add`, :meth:`Core.cancel` and, while
:attr:`Core.busy`, :meth:`Core.step`, all from one thread. A step schedules, runs the model once, and reads the result.
"""

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from engine.forward import Forward, Work
from engine.protocol import Chunk, EngineError, EngineInfo, Fault, Finish, Job, Stats, TokenLogprob
from engine.sampler import Dice, choose, logprobs_of
from engine.scheduler import Scheduler, Sequence, expired

log = logging.getLogger(__name__)

Said = tuple[str, Chunk]
"""A job's id and what the step brought for it."""

LOOKAHEAD = 256
"""A cache is first allocated for the prompt and at most this many tokens more."""


class Core:
    """Runs jobs on a model. ``room``: how many tokens the cache may hold over all running jobs; None: no bound.

    A job's first chunk marks its admission. A job that ends before (cancelled, or out of time, while it waited) has no
    such chunk: its only one has ``finish`` set.
    """

    def __init__(
        self,
        forward: Forward,
        info: EngineInfo,
        *,
        slots: int = 32,
        queue: int = 256,
        chunk: int = 512,
        room: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._forward = forward
        self._clock = clock
        self._scheduler = Scheduler(
            slots=slots, queue=queue, room=room or slots * info.context, chunk=chunk if forward.chunked else None
        )
        self._jobs: dict[str, Sequence] = {}
        self._outbox: list[Said] = []
        self._steps = self._prompt_tokens = self._generated = self._finished = self._faults = 0

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
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
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
            Dice(sampling, job.tokens, stops),
            limit=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            stops=stops,
            expires=None if job.deadline is None else self._clock() + job.deadline,
        )
        self._scheduler.add(sequence)
        self._jobs[job.id] = sequence

    def cancel(self, job_id: str) -> None:
        """End a job now: its slot is free for the next step, which also tells it. Unknown ids are ignored."""
        if job_id in self._jobs:
            self._end(self._jobs[job_id], Chunk(finish="cancelled"))

    def abort(self, fault: Fault) -> list[Said]:
        """End every job with this fault, and tell it."""
        for sequence in list(self._jobs.values()):
            self._end(sequence, Chunk(finish="error", fault=fault))
        return self._flush()

    def step(self) -> list[Said]:
        """Do one thing: tell what is waiting to be told, or run the model once. Never raises for a job's sake."""
        now = self._clock()
        for sequence in list(self._jobs.values()):
            fault = expired(sequence, now)
            if fault is not None:
                self._end(sequence, Chunk(finish="error", fault=fault))
        self._outbox += [(sequence.job.id, Chunk()) for sequence in self._scheduler.admit()]
        if not self._outbox:
            self._run(self._scheduler.plan())
        return self._flush()

    def _flush(self) -> list[Said]:
        said, self._outbox = self._outbox, []
        return said

    def _run(self, work: list[tuple[Sequence, int]]) -> None:
        if not work:
            return
        self._steps += 1
        try:
            with torch.inference_mode():
                logits = self._forward.run([self._work(sequence, count) for sequence, count in work])
                self._read(work, logits)
        except Exception as failure:
            log.exception("a step of %d sequences failed", len(work))
            message = f"the model failed in this step ({type(failure).__name__}); see the server's log"
            for sequence, _ in work:
                self._end(sequence, Chunk(finish="error", fault=Fault("server_error", message, retryable=True)))

    def _work(self, sequence: Sequence, count: int) -> Work:
        if sequence.state is None:
            expected = len(sequence.job.tokens) + min(sequence.limit, LOOKAHEAD)
            sequence.state = self._forward.new_state(max(expected, len(sequence.tokens)))
        ids = sequence.tokens[sequence.fed : sequence.fed + count]
        return Work(sequence.state, ids, _rows(sequence, count))

    def _read(self, work: list[tuple[Sequence, int]], logits: Tensor) -> None:
        """Take each sequence's rows: log-probabilities of its prompt, then, if it is all fed, its next token."""
        ready: list[Sequence] = []
        lines: list[int] = []
        line = 0
        for sequence, count in work:
            rows = _rows(sequence, count)
            if sequence.job.prompt_logprobs is not None and sequence.fed < len(sequence.job.tokens):
                _read_prompt(sequence, logits[line : line + rows])
            line += rows
            self._prompt_tokens += min(count, max(len(sequence.job.tokens) - sequence.fed, 0))
            sequence.fed += count
            if not sequence.pending:
                ready.append(sequence)
                lines.append(line - 1)
        if ready:
            self._choose(ready, logits[lines])

    def _choose(self, ready: list[Sequence], logits: Tensor) -> None:
        willing = [row for row, sequence in enumerate(ready) if sequence.limit > 0]
        for sequence in (sequence for sequence in ready if sequence.limit <= 0):
            self._end(sequence, Chunk(finish="length", prompt_logprobs=tuple(sequence.prompt_logprobs)))
        ready = [ready[row] for row in willing]
        logits = logits[willing]
        tokens = choose(logits, [sequence.dice for sequence in ready]) if ready else []
        for row, (sequence, token) in enumerate(zip(ready, tokens, strict=True)):
            if token is None:
                fault = Fault("server_error", "the model gave no usable number for the next token", retryable=False)
                self._end(sequence, Chunk(finish="error", fault=fault))
                continue
            top = sequence.job.sampling.top_logprobs
            self._say(sequence, token, () if top is None else tuple(logprobs_of(logits[row : row + 1], [token], top)))

    def _say(self, sequence: Sequence, token: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        first = sequence.said == 0
        sequence.tokens.append(token)
        self._generated += 1
        stopped = token in sequence.stops
        finish: Finish | None = "stop" if stopped else "length" if sequence.said >= sequence.limit else None
        chunk = Chunk(
            tokens=(token,),
            logprobs=logprobs,
            finish=finish,
            stop_id=token if stopped else None,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if first else (),
        )
        if finish:
            self._end(sequence, chunk)
        else:
            self._outbox.append((sequence.job.id, chunk))

    def _end(self, sequence: Sequence, chunk: Chunk) -> None:
        self._scheduler.remove(sequence)
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
    if job.grammar is not None:
        raise EngineError("grammar_unsupported", "this engine cannot constrain its output yet")
    s = job.sampling
    if not 0 <= min(job.tokens) <= max(job.tokens) < info.vocab:
        raise EngineError("invalid_request", f"the prompt holds token ids outside the vocabulary of {info.vocab}")
    strange = [token for token in (*s.logit_bias, *s.stop_ids) if not 0 <= token < info.vocab]
    if strange:
        raise EngineError("invalid_request", f"token id {strange[0]} is outside the vocabulary of {info.vocab}")
    if s.repetition_penalty <= 0 or s.temperature < 0 or s.top_p < 0 or s.top_k < 0 or not 0 <= s.min_p <= 1:
        raise EngineError("invalid_request", "a sampling parameter is outside its range")


def _rows(sequence: Sequence, count: int) -> int:
    """How many rows of logits this step needs of the sequence."""
    if sequence.job.prompt_logprobs is not None and sequence.fed < len(sequence.job.tokens):
        return count
    return 1 if count == sequence.pending else 0


def _read_prompt(sequence: Sequence, logits: Tensor) -> None:
    """Row i speaks about token fed + i + 1; a sequence computed for the second time has nothing new to say."""
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    prompt = sequence.job.tokens
    following = prompt[sequence.fed + 1 : sequence.fed + 1 + len(logits)]
    skip = len(sequence.prompt_logprobs) - (sequence.fed + 1)
    if skip < len(following):
        rows = logits[skip : len(following)]
        sequence.prompt_logprobs += logprobs_of(rows, following[skip:], sequence.job.prompt_logprobs or 0)
