"""One job on its way through the engine: its tokens, how many of them are in its cache, and when it ends."""

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.engine.cache.base import KVCache
from antiphon.engine.protocol import Fault, FinishReason, Job, TokenLogprob
from antiphon.engine.scheduler.ngram import Drafter

if TYPE_CHECKING:  # it needs torch
    from antiphon.engine.scheduler.sampler import SamplingState


class Sequence:
    """``tokens`` is prompt and answer; the first ``fed`` of them are in ``state``, the cache.

    ``limit``: new tokens at most. ``expires``: when its time is over, by the core's clock.
    """

    def __init__(
        self,
        job: Job,
        sampling_state: "SamplingState",
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        deadline_at: float | None,
    ) -> None:
        self.job = job
        self.sampling_state = sampling_state
        self.tokens = array("i", job.tokens)
        self.max_new_tokens = max_new_tokens
        self.stop_ids = stop_ids
        self.deadline_at = deadline_at
        self.arrival = 0
        self.num_computed_tokens = 0
        self.cache: Any = None
        self.admitted = False
        self._num_prompt_computed = 0
        self.drafter = Drafter()
        self.prefix_leader: tuple[Sequence, int] | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = []

    @property
    def cache_key(self) -> tuple[str, str]:
        """Only sequences of equal keys may read each other's cache."""
        return (self.job.owner, self.job.cache_salt)

    @property
    def num_generated(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.job.tokens)

    @property
    def num_pending(self) -> int:
        """Tokens not yet in the cache."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def reserved_tokens(self) -> int:
        """Memory in tokens: what it holds already, and what its tokens will need."""
        return max(len(self.tokens), self.cache.capacity if isinstance(self.cache, KVCache) else 0)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are still to be told, so that the prompt has to be fed whole."""
        return self.job.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.job.tokens)

    @property
    def waiting_for_prefix(self) -> bool:
        """Whether its leader is still computing tokens that both begin with; then they are copied."""
        if self.prefix_leader is None:
            return False
        other, length = self.prefix_leader
        return other.cache is not None and other.num_computed_tokens < length

    @property
    def queue_rank(self) -> tuple[int, int]:
        """Smaller is served first."""
        return (-self.job.priority, self.arrival)

    def take_newly_computed(self) -> int:
        """Tokens of the prompt that are in the cache for the first time since this was last asked."""
        before, self._num_prompt_computed = (
            self._num_prompt_computed,
            max(self._num_prompt_computed, min(self.num_computed_tokens, len(self.job.tokens))),
        )
        return self._num_prompt_computed - before

    def append_token(self, token: int) -> FinishReason | None:
        """It says this token; why it ends with it, if it does."""
        self.tokens.append(token)
        return "stop" if token in self.stop_ids else "length" if self.num_generated >= self.max_new_tokens else None


def deadline_fault(sequence: Sequence, now: float) -> Fault | None:
    """The fault of a sequence whose time is over."""
    if sequence.deadline_at is None or now < sequence.deadline_at:
        return None
    return Fault("deadline_exceeded", f"not done within {sequence.job.deadline:g} s", retryable=True)


def common_prefix_length(one: "array[int]", two: "array[int]", limit: int) -> int:
    """How many tokens at the beginning are the same, counted up to ``most``."""
    length = min(len(one), len(two), limit)
    if length <= 0 or one[0] != two[0]:
        return 0
    differ = np.frombuffer(one, np.intc, length) != np.frombuffer(two, np.intc, length)
    first = int(differ.argmax())
    return first if differ[first] else length
