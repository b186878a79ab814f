"""Who runs next: admission, chunked prefill, and giving way when the cache is full.

It knows tokens only by their number: no model, no tensors, no clock. Admission is by priority, then by arrival; a step
feeds every sequence that is generating its one token and spends what is left of the step on prompts, oldest first.
"""

from bisect import insort
from typing import Any

from engine.protocol import EngineError, Fault, Job, TokenLogprob
from engine.sampler import Dice


class Sequence:
    """One job on its way: ``tokens`` is prompt and answer; the first ``fed`` of them are in the cache."""

    def __init__(self, job: Job, dice: Dice, *, limit: int, stops: frozenset[int], expires: float | None) -> None:
        self.job = job
        self.dice = dice
        self.tokens = list(job.tokens)
        self.limit = limit
        self.stops = stops
        self.expires = expires
        self.arrival = 0
        self.fed = 0
        self.state: Any = None
        self.announced = False
        self.prompt_logprobs: list[TokenLogprob | None] = []

    @property
    def said(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.job.tokens)

    @property
    def pending(self) -> int:
        """Tokens not yet in the cache."""
        return len(self.tokens) - self.fed

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is served first."""
        return (-self.job.priority, self.arrival)


class Scheduler:
    """At most ``slots`` sequences run and ``queue`` wait; together they hold at most ``room`` tokens in the cache.

    ``chunk`` bounds the tokens of one step; None (a model whose prompts cannot be cut): one whole prompt a step.
    """

    def __init__(self, *, slots: int, queue: int, room: int, chunk: int | None) -> None:
        self.slots = slots
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._queue = queue
        self._room = room
        self._chunk = chunk
        self._arrivals = 0

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.fed for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue it. Raises :class:`EngineError` when the queue is full."""
        if len(self.running) + len(self.waiting) >= self.slots + self._queue:
            raise EngineError(
                "server_is_overloaded", "too many requests are waiting; try again shortly", retryable=True
            )
        self._arrivals += 1
        sequence.arrival = self._arrivals
        insort(self.waiting, sequence, key=lambda other: other.rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget it and what it holds."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        sequence.state, sequence.fed = None, 0

    def admit(self) -> list[Sequence]:
        """Give slots to those that wait, as far as slots and cache go; those admitted for the first time."""
        planned = sum(len(sequence.tokens) for sequence in self.running)
        admitted = []
        while self.waiting and len(self.running) < self.slots:
            sequence = self.waiting[0]
            planned += len(sequence.tokens) + 1
            if self.running and planned > self._room:
                break
            self.running.append(self.waiting.pop(0))
            if not sequence.announced:
                sequence.announced = True
                admitted.append(sequence)
        return admitted

    def plan(self) -> list[tuple[Sequence, int]]:
        """Which sequences are fed how many tokens in this step."""
        self._make_room()
        work = [(sequence, 1) for sequence in self.running if sequence.pending == 1]
        left = None if self._chunk is None else max(self._chunk - len(work), 1)
        for sequence in (sequence for sequence in self.running if sequence.pending > 1):
            if left is None:
                return [*work, (sequence, sequence.pending)]
            count = min(left, sequence.pending)
            if count > 0:
                work.append((sequence, count))
                left -= count
        return work

    def _make_room(self) -> None:
        """Send the last in rank back to the queue, to be computed again, until what runs fits into the cache."""
        while len(self.running) > 1 and sum(len(sequence.tokens) for sequence in self.running) > self._room:
            last = max(self.running, key=lambda sequence: sequence.rank)
            self.remove(last)
            insort(self.waiting, last, key=lambda other: other.rank)


def expired(sequence: Sequence, now: float) -> Fault | None:
    """The fault of a sequence whose time is over."""
    if sequence.expires is None or now < sequence.expires:
        return None
    return Fault("deadline_exceeded", f"not done within {sequence.job.deadline:g} s", retryable=True)
