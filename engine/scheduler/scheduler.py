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

from antiphon.engine.protocol import overloaded
from antiphon.engine.scheduler.prefill_budget import Pace
from antiphon.engine.scheduler.sequence import Sequence

Leader = Callable[[Sequence, list[Sequence]], tuple[Sequence, int] | None]
"""Whom it should wait for, among those that run, and until how many tokens are fed; None: nobody."""


class Scheduler:
    """At most ``slots`` sequences run and ``queue`` wait; together they hold at most ``room`` tokens in the cache.

    ``pace`` bounds the prompts' share of a step; None (a model whose prompts cannot be cut): one whole prompt a step.
    """

    def __init__(self, *, slots: int, queue: int, room: int, pace: Pace | None) -> None:
        self.slots = slots
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._queue = queue
        self._room = room
        self._pace = pace
        self._arrivals = 0
        self._turns = 0
        self._turn_of: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.fed for sequence in self.running)

    def add(self, sequence: Sequence) -> Sequence | None:
        """Queue it; the one that lost its place to it, if any. Raises :class:`EngineError` when the queue is full."""
        displaced = None
        if len(self.running) + len(self.waiting) >= self.slots + self._queue:
            displaced = self._crowding(sequence)
            if displaced is None:
                raise overloaded()
            self.waiting.remove(displaced)
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._enqueue(sequence)
        return displaced

    def remove(self, sequence: Sequence) -> None:
        """Forget it."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        if not self.running and not self.waiting:
            self._turn_of.clear()

    def admit(self, leader: Leader) -> Iterator[Sequence]:
        """Give slots to those that wait, as far as slots and cache go, one at a time.

        The caller gives each its cache before it asks for the next. Who has a leader stays behind it, out of turn.
        """
        while len(self.running) < self.slots:
            ready = [sequence for sequence in self.waiting if not sequence.waits]
            if not ready:
                return
            sequence = self._next(ready)
            sequence.leader = leader(sequence, self.running)
            if sequence.leader is not None:
                continue
            planned = sum(other.size for other in self.running) + len(sequence.tokens) + 1
            if self.running and planned > self._room:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._turns += 1
            self._turn_of[sequence.job.owner] = self._turns
            yield sequence

    def yielding(self) -> list[Sequence]:
        """Those who go back to the queue, so that what runs fits into the cache; the caller takes theirs away."""
        gone = []
        while len(self.running) > 1 and sum(sequence.size for sequence in self.running) > self._room:
            last = max(self.running, key=lambda sequence: sequence.rank)
            self.running.remove(last)
            self._enqueue(last)
            gone.append(last)
        return gone

    def plan(self) -> list[tuple[Sequence, int]]:
        """Which sequences are fed how many tokens in this step."""
        decoding = [sequence for sequence in self.running if sequence.pending == 1]
        filling = sorted((other for other in self.running if other.pending > 1), key=lambda other: other.rank)
        work = [(sequence, 1) for sequence in decoding]
        if not filling:
            return work
        if self._pace is None:
            return [*work, (filling[0], filling[0].pending)]
        return work + _shares(filling, self._pace.budget(len(decoding), len(filling)), self._pace.grain)

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda other: other.rank)

    def _next(self, ready: list[Sequence]) -> Sequence:
        busy = Counter(sequence.job.owner for sequence in self.running)

        def turn(sequence: Sequence) -> tuple[int, bool, int, int, int]:
            owner = sequence.job.owner
            last = self._turn_of.get(owner, 0)
            return (-sequence.job.priority, not sequence.announced, busy[owner], last, sequence.arrival)

        return min(ready, key=turn)

    def _crowding(self, newcomer: Sequence) -> Sequence | None:
        """The last in the queue of the owner with the most jobs, if the newcomer's owner has fewer even with it."""
        jobs = Counter(sequence.job.owner for sequence in (*self.running, *self.waiting))
        priority = newcomer.job.priority
        queued = [other for other in self.waiting if not other.announced and other.job.priority <= priority]
        crowd = max((jobs[other.job.owner] for other in queued), default=0)
        if crowd <= jobs[newcomer.job.owner] + 1:
            return None
        return max((other for other in queued if jobs[other.job.owner] == crowd), key=lambda other: other.rank)


def _shares(filling: list[Sequence], budget: int, grain: int) -> list[tuple[Sequence, int]]:
    """Divide a step's tokens among prompts, in the order of their rank: highest priority first, owners equally.

    A share ends at a multiple of ``grain`` or with its prompt, and goes on to the next one at least.
    """
    counts: dict[int, int] = {}
    for priority in dict.fromkeys(sequence.job.priority for sequence in filling):
        equals = [sequence for sequence in filling if sequence.job.priority == priority]
        while equals and budget >= grain:
            first: dict[str, Sequence] = {}
            for sequence in equals:
                first.setdefault(sequence.job.owner, sequence)
            share = max(budget // len(first), 1)
            for sequence in first.values():
                if budget < grain:
                    break
                fed = counts.get(sequence.arrival, 0)
                count = min(_portion(sequence.fed + fed, min(share, budget), grain), sequence.pending - fed)
                budget -= count
                counts[sequence.arrival] = fed + count
                if fed + count == sequence.pending:
                    equals.remove(sequence)
    return [(sequence, counts[sequence.arrival]) for sequence in filling if counts.get(sequence.arrival)]


def _portion(place: int, wanted: int, grain: int) -> int:
    """How many tokens from ``place`` on, about as many as wanted, end at a multiple of ``grain``."""
    end = (place + wanted) // grain * grain
    return end - place if end > place else grain - place % grain
