"""Scheduling of sequences: admission, fairness between owners, chunked prefill, preemption when the cache is full.

The scheduler handles tokens only as counts: no model, no tensors, no clock. Its guarantees:

- Admission order: higher priorities first; among equals, preempted sequences first, then the owner with the fewest
  running jobs, then the owner whose last admission is longest ago. One owner's jobs are admitted in order of arrival.
- Queue: while it has free places, any owner may use them. When it is full, a new job displaces the last queued one of
  the owner with the most jobs, provided that this owner then still has at least as many jobs as the new job's owner.
  Jobs of `BATCH_PRIORITY` or a lower one take no place from others: see `is_full`.
- Prefix: a sequence may stay in the queue until a running sequence has computed their common prefix, or until one has
  been read from disk.
- Each step decodes one token of every decoding sequence and spends a budget on prompts: higher priorities first, then
  in equal shares for owners. One owner's prompts are computed in order of arrival.
- While a prompt of higher priority is computed, sequences of batches pause. They are preempted for others that wait.
- When the cache is full, the youngest sequence of the lowest priority is preempted; it is recomputed later.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import BATCH_PRIORITY, is_full, overloaded_error
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.sequence import Sequence

FindPrefixLeader = Callable[[Sequence, list[Sequence]], tuple[Sequence, int] | None]
"""The running sequence whose prefix to wait for, and the token count at which it becomes reusable; None if none.

Called with the sequence to admit and the running sequences.
"""


class Scheduler:
    """Decides which sequences run and how many tokens of each are computed in a step.

    At most `max_num_seqs` sequences run and `max_waiting` wait. Running sequences hold at most `max_cache_tokens`
    tokens in the cache, and each takes `state_tokens` more; a single one may exceed that. `prefill_budget` limits
    the prompt tokens of a step. With None, for a model without chunked prefill, a step computes one whole prompt.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_waiting: int,
        max_cache_tokens: int,
        prefill_budget: PrefillBudget | None,
        state_tokens: int = 0,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.loading_tokens = 0
        """Cache taken by a prefix that is being read from disk, in tokens."""
        self._max_waiting = max_waiting
        self.max_cache_tokens = max_cache_tokens
        self._state_tokens = state_tokens
        self._prefill_budget = prefill_budget
        self._arrivals = 0
        self._num_admitted = 0
        self._last_admission: dict[str, int] = {}

    @property
    def cached_tokens(self) -> int:
        """Number of tokens that running sequences have in the cache."""
        return sum(sequence.num_computed_tokens for sequence in self.running)

    def add(self, sequence: Sequence) -> Sequence | None:
        """Queues a sequence. Returns the sequence that it displaced, if any.

        Raises `EngineError` if the queue is full and no sequence can be displaced.
        """
        displaced = None
        open_jobs = [other.job.priority for other in (*self.running, *self.waiting)]
        if is_full(self.max_num_seqs + self._max_waiting, open_jobs, sequence.job.priority):
            displaced = self._find_displaceable(sequence)
            if displaced is None:
                raise overloaded_error()
            self.waiting.remove(displaced)
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._insert_waiting(sequence)
        return displaced

    def remove(self, sequence: Sequence) -> None:
        """Removes a running or waiting sequence."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        if not self.running and not self.waiting:
            self._last_admission.clear()

    def admit_waiting(self, find_leader: FindPrefixLeader) -> Iterator[Sequence]:
        """Admits waiting sequences, one at a time, while slots and cache allow.

        The caller allocates the cache of each before it requests the next. A sequence for which `find_leader` returns
        a leader stays in the queue until the leader's prefix is computed; others are admitted before it.
        """
        while len(self.running) < self.max_num_seqs:
            ready = [sequence for sequence in self.waiting if not sequence.waiting_for_prefix]
            if not ready:
                return
            sequence = self._next_to_admit(ready)
            sequence.prefix_leader = find_leader(sequence, self.running)
            if sequence.prefix_leader is not None or sequence.waiting_for_prefix:
                continue
            if not self._fits_cache(sequence):
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._num_admitted += 1
            self._last_admission[sequence.job.owner] = self._num_admitted
            yield sequence

    def yield_places(self) -> list[Sequence]:
        """Preempts sequences of batches for which others wait, the youngest first, and returns them.

        The caller frees their caches. They give slots to all others that wait, and cache to the next one.
        """
        preempted: list[Sequence] = []
        while victim := self._find_yielding():
            self.running.remove(victim)
            self._insert_waiting(victim)
            preempted.append(victim)
        return preempted

    def preempt(self) -> list[Sequence]:
        """Preempts sequences until the rest fits in the cache and returns them; the caller frees their caches.

        A preempted sequence goes back to the queue. The last running one is never preempted.
        """
        preempted = []
        while (
            len(self.running) > 1 and sum(sequence.reserved_tokens for sequence in self.running) > self.max_cache_tokens
        ):
            victim = max(self.running, key=lambda sequence: sequence.queue_rank)
            self.running.remove(victim)
            self._insert_waiting(victim)
            preempted.append(victim)
        return preempted

    def schedule(self) -> list[tuple[Sequence, int]]:
        """Returns the sequences of this step, each with the number of tokens to compute.

        While a prompt of higher priority is computed, sequences of `BATCH_PRIORITY` or a lower one pause.
        """
        running = self.running
        if any(sequence.num_pending > 1 and sequence.job.priority > BATCH_PRIORITY for sequence in running):
            running = [sequence for sequence in running if sequence.job.priority > BATCH_PRIORITY]
        alignment = 1 if self._prefill_budget is None else self._prefill_budget.alignment
        running = [sequence for sequence in running if sequence.count_computable(alignment)]
        decoding = [sequence for sequence in running if sequence.num_pending == 1]
        prefilling = sorted((other for other in running if other.num_pending > 1), key=lambda other: other.queue_rank)
        scheduled = [(sequence, 1) for sequence in decoding]
        if not prefilling:
            return scheduled
        if self._prefill_budget is None:
            return [*scheduled, (prefilling[0], prefilling[0].num_pending)]
        # Steps of batches stay short, since a new prompt of others waits for the end of one.
        num_urgent = sum(sequence.job.priority > BATCH_PRIORITY for sequence in prefilling)
        budget = self._prefill_budget.next_budget(len(decoding), max(num_urgent, 1))
        return scheduled + _divide_budget(prefilling, budget, self._prefill_budget.alignment)

    def _insert_waiting(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda other: other.queue_rank)

    def _next_to_admit(self, ready: list[Sequence]) -> Sequence:
        running_counts = Counter(sequence.job.owner for sequence in self.running)

        def turn(sequence: Sequence) -> tuple[int, bool, int, int, int]:
            owner = sequence.job.owner
            last_admission = self._last_admission.get(owner, 0)
            return (
                -sequence.job.priority,
                sequence.is_new,
                running_counts[owner],
                last_admission,
                sequence.arrival,
            )

        return min(ready, key=turn)

    def _fits_cache(self, sequence: Sequence) -> bool:
        new_tokens = len(sequence.tokens) + 1 + self._state_tokens + self.loading_tokens
        planned = sum(other.reserved_tokens for other in self.running) + new_tokens
        return not self.running or planned <= self.max_cache_tokens

    def _find_yielding(self) -> Sequence | None:
        """The youngest running sequence of a batch, if another sequence waits for its slot or its cache."""
        running = [other for other in self.running if other.job.priority <= BATCH_PRIORITY]
        if not running:
            return None
        waiting = [
            other for other in self.waiting if other.job.priority > BATCH_PRIORITY and not other.waiting_for_prefix
        ]
        if not waiting:
            return None
        if len(waiting) <= self.max_num_seqs - len(self.running) and self._fits_cache(self._next_to_admit(waiting)):
            return None
        return max(running, key=lambda other: other.queue_rank)

    def _find_displaceable(self, newcomer: Sequence) -> Sequence | None:
        """The queued sequence that the newcomer displaces: the last one of the owner with the most jobs, or None.

        None if the newcomer's owner, with it, would have as many jobs. Sequences of higher priority and preempted ones
        are never displaced.
        """
        job_counts = Counter(sequence.job.owner for sequence in (*self.running, *self.waiting))
        priority = newcomer.job.priority
        candidates = [other for other in self.waiting if other.is_new and other.job.priority <= priority]
        max_jobs = max((job_counts[other.job.owner] for other in candidates), default=0)
        if max_jobs <= job_counts[newcomer.job.owner] + 1:
            return None
        return max(
            (other for other in candidates if job_counts[other.job.owner] == max_jobs),
            key=lambda other: other.queue_rank,
        )


def _divide_budget(prefilling: list[Sequence], budget: int, alignment: int) -> list[tuple[Sequence, int]]:
    """Divides the prompt tokens of a step among sequences: highest priority first, equal shares for owners.

    A share ends at a multiple of `alignment` or with its prompt, and reaches at least the next multiple.
    """
    counts: dict[int, int] = {}
    for priority in dict.fromkeys(sequence.job.priority for sequence in prefilling):
        peers = [sequence for sequence in prefilling if sequence.job.priority == priority]
        while peers and budget >= alignment:
            next_by_owner: dict[str, Sequence] = {}
            for sequence in peers:
                next_by_owner.setdefault(sequence.job.owner, sequence)
            share = max(budget // len(next_by_owner), 1)
            for sequence in next_by_owner.values():
                if budget < alignment:
                    break
                assigned = counts.get(sequence.arrival, 0)
                computable = sequence.count_computable(alignment)
                first = sequence.num_computed_tokens + assigned
                count = min(_align_chunk(first, min(share, budget), alignment), computable - assigned)
                if sequence.pictures is not None:
                    count = sequence.pictures.fit_end(first, first + count) - first
                budget -= count
                counts[sequence.arrival] = assigned + count
                if assigned + count == computable:
                    peers.remove(sequence)
    return [(sequence, counts[sequence.arrival]) for sequence in prefilling if counts.get(sequence.arrival)]


def _align_chunk(start: int, count: int, alignment: int) -> int:
    """Length of a chunk of about `count` tokens (at least 1) from `start` to a multiple of `alignment`."""
    end = (start + count) // alignment * alignment
    return end - start if end > start else alignment - start % alignment
