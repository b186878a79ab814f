"""What an engine is, seen from outside: a job goes in, chunks of token ids come out.

This module knows no text, no HTTP, no torch. Every message is a frozen msgspec struct, so that an engine may live in
another process, or on another machine, and speak these same words.

Rules of a stream of chunks, which every engine keeps:

1. The first chunk carries no tokens: it marks *admission*, the moment the job got its slot.
2. Exactly one chunk has ``finish`` set, and it is the last.
3. What goes wrong before the first chunk is raised as :class:`EngineError`; what goes wrong after it is told by a last
   chunk with ``finish="error"`` and a :class:`Fault`.
4. The token that ended the turn is the last of the last chunk's ``tokens``: a dialect sees its own end marker.
5. Cancelling the call or :meth:`Engine.cancel` frees the slot before the engine's next step.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

FinishReason = Literal["stop", "length", "cancelled", "error"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Neutral by default: the model's own distribution, nothing filtered.

    ``temperature`` 0 means the most likely token. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean *off*; the three are
    applied after the temperature, in the order top_k, top_p, min_p. Presence and frequency penalties count generated
    tokens only; the repetition penalty counts the prompt too.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None: the engine draws one. The same seed gives the same random numbers whatever else is running."""
    logit_bias: dict[int, float] = {}
    """Token id to a number added to its logit; an id outside the vocabulary is an ``invalid_request``."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the turn, besides the model's own ``eos_ids``."""
    ignore_eos: bool = False
    """Do not end at the model's own ``eos_ids`` (``stop_ids`` still end it)."""
    max_tokens: int | None = None
    """At most this many new tokens, the stop token among them; None: until the context is full."""
    min_tokens: int = 0
    """No stop token is chosen before this many new tokens."""
    top_logprobs: int | None = None
    """None: no log-probabilities; 0: the chosen token's only; n: also the n most likely ones."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to generate: the prompt's token ids and how to continue them."""

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling = Sampling()
    grammar: str | None = None
    """A grammar over token ids for the whole turn; an engine without grammars raises ``grammar_unsupported``."""
    owner: str = ""
    cache_salt: str = ""
    """Prompt tokens are shared through the cache only between jobs of equal owner and salt."""
    priority: int = 0
    """Higher goes first; among equals owners take turns, and one owner's jobs go in the order of arrival."""
    deadline: float | None = None
    """Seconds from the call of ``generate``, waiting included; past it the job ends with ``deadline_exceeded``."""
    prompt_logprobs: int | None = None
    """As ``Sampling.top_logprobs``, for the tokens of the prompt."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token's natural log-probability under the model, before temperature, penalties, bias and filters.

    ``top`` holds (id, logprob) of the most likely tokens, the likeliest first.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Fault(msgspec.Struct, frozen=True):
    """Why a job that had been admitted could not be finished."""

    code: str
    message: str
    retryable: bool = False


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine step brought for one job."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token where asked for, else empty."""
    finish: FinishReason | None = None
    stop_id: int | None = None
    """The stop token that ended the turn; also the last of ``tokens``."""
    cached_tokens: int = 0
    """Prompt tokens read from the cache; meaningful on the first chunk."""
    fault: Fault | None = None
    """Set exactly when ``finish`` is ``"error"``."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """One entry per prompt token, the first None; sent once, no later than with the first token."""


JobChunk = tuple[str, Chunk]
"""A job's id and one of its chunks."""

OnChunk = Callable[[Chunk], None]
"""Takes a chunk the moment it is there: called in the event loop, it must not wait."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is fixed about a started engine. ``context`` and ``vocab`` are numbers of tokens."""

    max_model_len: int
    vocab_size: int
    device: str = "cpu"
    dtype: str = ""
    default_sampling: Sampling = Sampling()
    """The model's own generation defaults; the caller applies them where a request is silent."""
    eos_ids: tuple[int, ...] = ()
    description: str = ""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of this moment, then totals since the start. ``running == waiting == kv_tokens == 0`` when idle."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    running_cache_tokens: int = 0
    """Tokens held in the KV cache by running jobs."""
    idle_cache_tokens: int = 0
    """Tokens of ended jobs that are kept for those that begin alike."""
    steps: int = 0
    prompt_tokens: int = 0
    """Those read from the cache among them."""
    prefix_hit_tokens: int = 0
    """Prompt tokens that were read from the cache."""
    generated_tokens: int = 0
    finished_jobs: int = 0
    failed_jobs: int = 0


class EngineError(Exception):
    """A job that was not admitted, or an engine that could not start.

    Codes: ``context_length_exceeded``, ``invalid_request``, ``grammar_unsupported`` (the caller's doing);
    ``server_is_overloaded``, ``engine_unavailable``, ``deadline_exceeded``, ``cancelled``, ``server_error``.
    """

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


def overloaded_error() -> EngineError:
    """The refusal of a job for which there is no place left to wait in."""
    return EngineError("server_is_overloaded", "too many requests are waiting; try again shortly", retryable=True)


class Engine(Protocol):
    """Token ids in, token ids out."""

    @property
    def info(self) -> EngineInfo:
        """What is fixed about the engine; readable once it has started."""
        ...

    async def start(self) -> None:
        """Load whatever must be loaded. Raises :class:`EngineError` with one line for a person."""
        ...

    async def close(self) -> None:
        """End every job in flight (``finish="error"``, ``engine_unavailable``) and free everything."""
        ...

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Work on a job until it is over; its chunks go to ``hear``, by the rules at the head of this module.

        Raises :class:`EngineError` before the first chunk. What ``hear`` raises ends the job and is raised here.
        """
        ...

    async def cancel(self, job_id: str) -> None:
        """End a job: its last chunk has ``finish="cancelled"`` (or, while it waits, its call raises ``cancelled``).

        An id that is unknown or already finished is ignored.
        """
        ...

    async def wait_ready(self) -> None:
        """Return as soon as a job would be taken. Raises :class:`EngineError`, as :meth:`generate` would now."""
        ...

    def unready_reason(self) -> str | None:
        """What a job would have to wait for, in a few words, such as "loading: weights"; None: nothing."""
        ...

    def capacity(self) -> int:
        """How many jobs it takes at once, those that wait among them; one more is refused with :func:`overloaded`."""
        ...

    def stats(self) -> EngineStats:
        """Counts of this moment; never blocks."""
        ...
