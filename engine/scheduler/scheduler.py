"""Who runs next: admission, fair shares, chunked prefill, and giving way when the cache is full.

It knows tokens only by their number: no model, no tensors, no clock. What it promises:

- Higher priorities go first. Among equals the owner with the fewest running jobs is next, then the one whose last turn
  is longest ago; one owner's jobs go in the order of arrival. Who has run already goes on before anybody begins.
- Every owner has an equal share of the places. While there are free ones, anybody may take them; when none is left, a
  newcomer takes the place of the last one in the queue of the owner with the most, if that leaves them no fewer.
- A step feeds everybody who is generating, and spends what is left of it on prompts: owners share it equally, and one
  owner's prompts come in the order of arrival.
- When the cache is full, the lowest priority gives way, and among equals the youngest; it is computed again later.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import overloaded_error
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.sequence import Sequence

FindPrefixLeader = Callable[[Sequence, list[Sequence]], tuple[Sequence, int] | None]
"""Whom it should wait for, among those that run, and until how many tokens are fed; None: nobody."""


class Scheduler:
    """At most ``slots`` sequences run and ``queue`` wait; together they hold at most ``room`` tokens in the cache.

    ``pace`` bounds the prompts' share of a step; None (a model whose prompts cannot be cut): one whole prompt a step.
    """

    def __init__(
        self, *, max_num_seqs: int, max_waiting: int, max_cache_tokens: int, prefill_budget: PrefillBudget | None
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._max_waiting = max_waiting
        self._max_cache_tokens = max_cache_tokens
        self._prefill_budget = prefill_budget
        self._arrivals = 0
        self._num_admitted = 0
        self._last_admission: dict[str, int] = {}

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.num_computed_tokens for sequence in self.running)

    def add(self, sequence: Sequence) -> Sequence | None:
        """Queue it; the one that lost its place to it, if any. Raises :class:`EngineError` when the queue is full."""
        displaced = None
        if len(self.running) + len(self.waiting) >= self.max_num_seqs + self._max_waiting:
            displaced = self._find_displaceable(sequence)
            if displaced is None:
                raise overloaded_error()
            self.waiting.remove(displaced)
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._insert_waiting(sequence)
        return displaced

    def remove(self, sequence: Sequence) -> None:
        """Forget it."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        if not self.running and not self.waiting:
            self._last_admission.clear()

    def admit_waiting(self, find_leader: FindPrefixLeader) -> Iterator[Sequence]:
        """Give slots to those that wait, as far as slots and cache go, one at a time.

        The caller gives each its cache before it asks for the next. Who has a leader stays behind it, out of turn.
        """
        while len(self.running) < self.max_num_seqs:
            ready = [sequence for sequence in self.waiting if not sequence.waiting_for_prefix]
            if not ready:
                return
            sequence = self._next_to_admit(ready)
            sequence.prefix_leader = find_leader(sequence, self.running)
            if sequence.prefix_leader is not None:
                continue
            planned = sum(other.reserved_tokens for other in self.running) + len(sequence.tokens) + 1
            if self.running and planned > self._max_cache_tokens:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._num_admitted += 1
            self._last_admission[sequence.job.owner] = self._num_admitted
            yield sequence

    def preempt(self) -> list[Sequence]:
        """Those who go back to the queue, so that what runs fits into the cache; the caller takes theirs away."""
        gone = []
        while (
            len(self.running) > 1
            and sum(sequence.reserved_tokens for sequence in self.running) > self._max_cache_tokens
        ):
            last = max(self.running, key=lambda sequence: sequence.queue_rank)
            self.running.remove(last)
            self._insert_waiting(last)
            gone.append(last)
        return gone

    def schedule(self) -> list[tuple[Sequence, int]]:
        """Which sequences are fed how many tokens in this step."""
        decoding = [sequence for sequence in self.running if sequence.num_pending == 1]
        filling = sorted((other for other in self.running if other.num_pending > 1), key=lambda other: other.queue_rank)
        work = [(sequence, 1) for sequence in decoding]
        if not filling:
            return work
        if self._prefill_budget is None:
            return [*work, (filling[0], filling[0].num_pending)]
        return work + _divide_budget(
            filling, self._prefill_budget.next_budget(len(decoding), len(filling)), self._prefill_budget.alignment
        )

    def _insert_waiting(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda other: other.queue_rank)

    def _next_to_admit(self, ready: list[Sequence]) -> Sequence:
        busy = Counter(sequence.job.owner for sequence in self.running)

        def turn(sequence: Sequence) -> tuple[int, bool, int, int, int]:
            owner = sequence.job.owner
            last = self._last_admission.get(owner, 0)
            return (-sequence.job.priority, not sequence.admitted, busy[owner], last, sequence.arrival)

        return min(ready, key=turn)

    def _find_displaceable(self, newcomer: Sequence) -> Sequence | None:
        """The last in the queue of the owner with the most jobs, if the newcomer's owner has fewer even with it."""
        jobs = Counter(sequence.job.owner for sequence in (*self.running, *self.waiting))
        priority = newcomer.job.priority
        queued = [other for other in self.waiting if not other.admitted and other.job.priority <= priority]
        crowd = max((jobs[other.job.owner] for other in queued), default=0)
        if crowd <= jobs[newcomer.job.owner] + 1:
            return None
        return max((other for other in queued if jobs[other.job.owner] == crowd), key=lambda other: other.queue_rank)


def _divide_budget(prefilling: list[Sequence], budget: int, alignment: int) -> list[tuple[Sequence, int]]:
    """Divide a step's tokens among prompts, in the order of their rank: highest priority first, owners equally.

    A share ends at a multiple of ``grain`` or with its prompt, and goes on to the next one at least.
    """
    counts: dict[int, int] = {}
    for priority in dict.fromkeys(sequence.job.priority for sequence in prefilling):
        equals = [sequence for sequence in prefilling if sequence.job.priority == priority]
        while equals and budget >= alignment:
            first: dict[str, Sequence] = {}
            for sequence in equals:
                first.setdefault(sequence.job.owner, sequence)
            share = max(budget // len(first), 1)
            for sequence in first.values():
                if budget < alignment:
                    break
                fed = counts.get(sequence.arrival, 0)
                count = min(
                    _align_chunk(sequence.num_computed_tokens + fed, min(share, budget), alignment),
                    sequence.num_pending - fed,
                )
                budget -= count
                counts[sequence.arrival] = fed + count
                if fed + count == sequence.num_pending:
                    equals.remove(sequence)
    return [(sequence, counts[sequence.arrival]) for sequence in prefilling if counts.get(sequence.arrival)]


def _align_chunk(start: int, wanted: int, alignment: int) -> int:
    """How many tokens from ``place`` on, about as many as wanted, end at a multiple of ``grain``."""
    end = (start + wanted) // alignment * alignment
    return end - start if end > start else alignment - start % alignment
