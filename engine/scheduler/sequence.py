"""One job on its way through the engine: its tokens, how many of them are in its cache, and when it ends."""

from array import array
from typing import Any

import numpy as np

from antiphon.engine.cache.contiguous import KV
from antiphon.engine.protocol import Fault, Finish, Job, TokenLogprob
from antiphon.engine.scheduler.ngram import Drafter
from antiphon.engine.scheduler.sampler import Dice


class Sequence:
    """``tokens`` is prompt and answer; the first ``fed`` of them are in ``state``, the cache.

    ``limit``: new tokens at most. ``expires``: when its time is over, by the core's clock.
    """

    def __init__(self, job: Job, dice: Dice, *, limit: int, stops: frozenset[int], expires: float | None) -> None:
        self.job = job
        self.dice = dice
        self.tokens = array("i", job.tokens)
        self.limit = limit
        self.stops = stops
        self.expires = expires
        self.arrival = 0
        self.fed = 0
        self.state: Any = None
        self.announced = False
        self._read = 0
        self.drafter = Drafter()
        self.leader: tuple[Sequence, int] | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = []

    @property
    def key(self) -> tuple[str, str]:
        """Only sequences of equal keys may read each other's cache."""
        return (self.job.owner, self.job.cache_salt)

    @property
    def said(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.job.tokens)

    @property
    def pending(self) -> int:
        """Tokens not yet in the cache."""
        return len(self.tokens) - self.fed

    @property
    def size(self) -> int:
        """Memory in tokens: what it holds already, and what its tokens will need."""
        return max(len(self.tokens), self.state.capacity if isinstance(self.state, KV) else 0)

    @property
    def measures(self) -> bool:
        """Whether log-probabilities of its prompt are still to be told, so that the prompt has to be fed whole."""
        return self.job.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.job.tokens)

    @property
    def waits(self) -> bool:
        """Whether its leader is still computing tokens that both begin with; then they are copied."""
        if self.leader is None:
            return False
        other, length = self.leader
        return other.state is not None and other.fed < length

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is served first."""
        return (-self.job.priority, self.arrival)

    def newly_read(self) -> int:
        """Tokens of the prompt that are in the cache for the first time since this was last asked."""
        before, self._read = self._read, max(self._read, min(self.fed, len(self.job.tokens)))
        return self._read - before

    def take(self, token: int) -> Finish | None:
        """It says this token; why it ends with it, if it does."""
        self.tokens.append(token)
        return "stop" if token in self.stops else "length" if self.said >= self.limit else None


def expired(sequence: Sequence, now: float) -> Fault | None:
    """The fault of a sequence whose time is over."""
    if sequence.expires is None or now < sequence.expires:
        return None
    return Fault("deadline_exceeded", f"not done within {sequence.job.deadline:g} s", retryable=True)


def shared(one: "array[int]", two: "array[int]", most: int) -> int:
    """How many tokens at the beginning are the same, counted up to ``most``."""
    length = min(len(one), len(two), most)
    if length <= 0 or one[0] != two[0]:
        return 0
    differ = np.frombuffer(one, np.intc, length) != np.frombuffer(two, np.intc, length)
    first = int(differ.argmax())
    return first if differ[first] else length
