"""A job in the engine: its tokens, the number of them in its KV cache, and its limits."""

from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from antiphon.engine.protocol import Fault, FinishReason, Job, Sampling, TokenLogprob
from antiphon.engine.scheduler.drafts.draft_policy import Acceptance
from antiphon.engine.scheduler.drafts.ngram import Drafter

if TYPE_CHECKING:  # importing them imports torch
    from antiphon.engine.forward.adapter_weights import LoadedAdapter
    from antiphon.engine.media.sequence_pictures import SequencePictures
    from antiphon.engine.media_messages import MediaSpan
    from antiphon.engine.prefix_disk.loading import PageLoad
    from antiphon.engine.prefix_disk.page_id import PageContext
    from antiphon.engine.scheduler.sampler import SamplingState


SUPPRESSED_BIAS = -1e9
"""Logit bias of tokens that the model never generates. It is finite, so that a grammar that allows no others works."""

MIN_REPETITIONS = 4
"""Number of times that an output has a piece if it only repeats it."""
REPETITION_STEP = 16
"""Number of tokens between two searches for a repetition."""


class Sequence:
    """A job that is queued or running.

    `tokens` holds prompt and output; the first `num_computed_tokens` of them are in `cache`. `deadline_at` is a
    time of the core's clock.
    """

    def __init__(
        self,
        job: Job,
        sampling_state: "SamplingState",
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        max_repetition_tokens: int = 0,
        deadline_at: float | None,
        adapter: "LoadedAdapter | None" = None,
        pictures: "SequencePictures | None" = None,
    ) -> None:
        self.job = job
        self.adapter = adapter
        self.pictures = pictures
        self.sampling_state = sampling_state
        self.tokens = array("i", (*job.tokens, *(job.generated or ())))
        self.match_tokens = self.tokens if pictures is None else pictures.build_match_tokens()
        """The tokens for comparisons with other sequences: soft tokens are replaced by words of their pictures."""
        self.max_new_tokens = max_new_tokens
        self.stop_ids = stop_ids
        self.max_repetition_tokens = max_repetition_tokens
        self.deadline_at = deadline_at
        self.arrival = 0
        self.num_computed_tokens = 0
        self.cache: Any = None
        self.admitted = False
        self._num_prompt_computed = 0
        self.drafter = Drafter()
        self.acceptance: Acceptance | None = None
        self.prefix_leader: tuple[Sequence, int] | None = None
        self.page_load: PageLoad | None = None
        """Pages on disk that this sequence waits for."""
        self.has_tried_disk = False
        self.page_context: PageContext | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = []

    @property
    def cache_key(self) -> tuple[str, str, int]:
        """Owner, salt and adapter. Sequences may reuse each other's caches only if their keys are equal."""
        return (self.job.owner, self.job.cache_salt, 0 if self.adapter is None else self.adapter.number)

    @property
    def is_reusable(self) -> bool:
        """False if no later job can have the same adapter."""
        return self.adapter is None or self.adapter.is_listed

    @property
    def num_generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - len(self.job.tokens)

    @property
    def num_pending(self) -> int:
        """Number of tokens that are not yet in the cache."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def spans(self) -> "tuple[MediaSpan, ...]":
        """Places of the pictures in the prompt."""
        return self.job.media

    def count_computable(self, alignment: int = 1) -> int:
        """Returns how many of the pending tokens can be computed now: up to a picture whose features are missing."""
        if self.pictures is None:
            return self.num_pending
        return self.pictures.count_computable(self.num_computed_tokens, len(self.tokens), alignment)

    @property
    def reserved_tokens(self) -> int:
        """Memory in tokens: that of the cache, or the number of tokens if that is larger."""
        return max(len(self.tokens), getattr(self.cache, "memory_tokens", 0))

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while prompt log-probabilities are missing; then no computed prefix can be reused."""
        if self.job.prompt_logprobs is None or self.job.generated:  # an earlier run has reported them
            return False
        return len(self.prompt_logprobs) < len(self.job.tokens)

    @property
    def waiting_for_prefix(self) -> bool:
        """True while the leader computes the common prefix, or pages are read, which are reused afterwards."""
        if self.page_load is not None and self.page_load.is_pending:
            return True
        if self.prefix_leader is None:
            return False
        leader, length = self.prefix_leader
        return leader.cache is not None and leader.num_computed_tokens < length

    @property
    def is_new(self) -> bool:
        """False for a sequence that was admitted before, here or in an earlier run: it continues a stream."""
        return not self.admitted and self.job.generated is None

    @property
    def queue_rank(self) -> tuple[int, int]:
        """Sort key of priority and arrival; smaller ranks first."""
        return (-self.job.priority, self.arrival)

    def take_newly_computed(self) -> int:
        """Returns the number of prompt tokens that entered the cache for the first time since the last call."""
        before, self._num_prompt_computed = (
            self._num_prompt_computed,
            max(self._num_prompt_computed, min(self.num_computed_tokens, len(self.job.tokens))),
        )
        return self._num_prompt_computed - before

    def append_token(self, token: int) -> FinishReason | None:
        """Appends a generated token. Returns the finish reason if the sequence ends with it."""
        self.tokens.append(token)
        if self.pictures is not None:
            self.match_tokens.append(token)
        if token in self.stop_ids:
            return "stop"
        if self.num_generated >= self.max_new_tokens:
            return "length"
        limit = self.max_repetition_tokens
        # The end of the output is compared once per `REPETITION_STEP` tokens; one that lasts is found then.
        is_due = limit and self.num_generated >= limit and self.num_generated % REPETITION_STEP == 0
        return "repetition" if is_due and is_repetition(self.tokens[-limit:]) else None


def deadline_fault(sequence: Sequence, now: float) -> Fault | None:
    """The fault of a sequence that is past its deadline; None before that."""
    if sequence.deadline_at is None or now < sequence.deadline_at:
        return None
    return Fault("deadline_exceeded", f"The request did not finish within {sequence.job.deadline:g} s.", retryable=True)


def is_repetition(tokens: "array[int]") -> bool:
    """Tells whether the tokens are one piece, written at least `MIN_REPETITIONS` times; the last may be cut."""
    periods = range(1, len(tokens) // MIN_REPETITIONS + 1)
    return any(tokens[-1] == tokens[-1 - period] and tokens[period:] == tokens[:-period] for period in periods)


def common_prefix_length(a: "array[int]", b: "array[int]", limit: int) -> int:
    """Length of the common prefix of two token arrays, at most `limit`."""
    length = min(len(a), len(b), limit)
    if length <= 0 or a[0] != b[0]:
        return 0
    differ = np.frombuffer(a, np.intc, length) != np.frombuffer(b, np.intc, length)
    first = int(differ.argmax())
    return first if differ[first] else length


def suppress_tokens(sampling: Sampling, ids: tuple[int, ...]) -> Sampling:
    """Adds a bias against tokens that the model never generates; it replaces the request's own bias for them."""
    if not ids:
        return sampling
    return msgspec.structs.replace(sampling, logit_bias=sampling.logit_bias | dict.fromkeys(ids, SUPPRESSED_BIAS))
