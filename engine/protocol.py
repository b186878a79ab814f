"""The engine's public interface: takes a job, returns chunks of token ids.

This module uses no text, no HTTP and no torch. Every message is a frozen msgspec struct, so that an engine may run in
another process, or on another machine, and exchange the same messages.

Every engine keeps these rules for the chunks of a job:

1. The first chunk carries no tokens: it marks *admission*, when the job gets its slot. An engine that is not told of
   the admission marks it with the first token.
2. Exactly one chunk has `finish` set, and it is the last.
3. An error before the first chunk is raised as `EngineError`. An error after it is reported by a last chunk with
   `finish="error"` and a `Fault`.
4. The last chunk's `tokens` end with the token that ended the turn, so that a dialect sees its own end marker.
5. Cancelling the call or `Engine.cancel` frees the slot before the engine's next step.
6. A job with `generated` tokens continues after them: its chunks hold later tokens only, and limits, penalties,
   `min_tokens`, random numbers and grammar count the earlier ones as if this run had generated them.
"""

from collections.abc import Callable, Collection
from typing import Literal, Protocol

import msgspec

from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.fallbacks import Fallback
from antiphon.engine.media_messages import ImageForm, MediaArrays, MediaSpan

FinishReason = Literal["stop", "length", "repetition", "cancelled", "error"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. The defaults are neutral: the model's own distribution, nothing filtered.

    `temperature` 0 means the most likely token. `top_k` 0, `top_p` 1 and `min_p` 0 mean *off*; the three are
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
    """Seed of the random numbers, which do not depend on other jobs. None: the engine draws a seed."""
    logit_bias: dict[int, float] = {}
    """Number to add to the logit of each token id. An id outside the vocabulary is an `invalid_request`."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the turn, besides the model's own `eos_ids`."""
    ignore_eos: bool = False
    """Continues after the model's own `eos_ids`. `stop_ids` still end the turn, and so does a complete grammar."""
    max_tokens: int | None = None
    """Maximum number of new tokens, the stop token included. None: until the context is full."""
    min_tokens: int = 0
    """Number of new tokens before which no stop token is sampled, unless a grammar is complete and allows no other."""
    top_logprobs: int | None = None
    """Most likely tokens to report besides the chosen one. 0: the chosen token only; None: no log-probabilities."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to generate: the prompt's token ids and the parameters for continuing them."""

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling = Sampling()
    grammar: str | None = None
    """Grammar over token ids for the whole turn. An engine without grammars raises `grammar_unsupported`."""
    generated: tuple[int, ...] | None = None
    """Tokens that an earlier run of this job has generated. None for a job that was never admitted."""
    owner: str = ""
    cache_salt: str = ""
    """Salt of the prefix cache. Jobs share cached prompt tokens only if both owner and salt are equal."""
    adapter: str = ""
    """Name of the adapter that changes the model; empty for none. One that is not loaded is `adapter_not_found`."""
    affinity: str = ""
    """Opaque key of the conversation: jobs with the same key find cached prompts on the same replica of an engine."""
    priority: int = 0
    """Higher runs first. At equal priority, owners take turns, and the jobs of one owner run in order of arrival."""
    deadline: float | None = None
    """Seconds after the call of `generate`, waiting included, at which the job ends with `deadline_exceeded`."""
    prompt_logprobs: int | None = None
    """Same as `Sampling.top_logprobs`, for the tokens of the prompt."""
    prefill_only: bool = False
    """True if the job only prefills the prompt for a later one: its output is discarded."""
    media: tuple[MediaSpan, ...] = ()
    """Pictures in the prompt, in the order of their offsets."""
    texts: tuple[str, ...] = ()
    """Texts around the pictures if `image_form` is `"text"`. `tokens` are theirs, and spans of pictures are empty."""
    trace_headers: tuple[tuple[str, str], ...] = ()
    """Headers of requests to other servers that run the job: its place in a trace."""
    encoder_inputs: tuple[EncoderInput, ...] = ()
    """Inputs of a job for an encoder, which generates no tokens and ignores all fields above except `id`."""
    vector_options: VectorOptions = VectorOptions()


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token's natural log-probability under the model, before temperature, penalties, bias and filters.

    `top` holds (id, logprob) of the most likely tokens, most likely first.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Fault(msgspec.Struct, frozen=True):
    """The error that ended an admitted job."""

    code: str
    message: str
    retryable: bool = False
    """True if the same job may succeed later."""


CANCELLED_WHILE_WAITING = Fault("cancelled", "the job was cancelled while waiting")
"""Fault of a job that its caller cancelled before its admission. Nothing went wrong, so there is nothing to retry."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of one engine step for one job."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token if requested, otherwise empty."""
    finish: FinishReason | None = None
    stop_id: int | None = None
    """Stop token that ended the turn; also the last of `tokens`."""
    cached_tokens: int = 0
    """Prompt tokens read from the cache, never more than the prompt has: `generated` ones that were read do not count.
    Set on the first or the last chunk; the larger number counts."""
    prompt_tokens: int = 0
    """Length of a prompt into which the engine has put tokens of pictures; 0 for others."""
    replica: str = ""
    """Server that runs the job, on the first chunk; empty for an engine of this machine."""
    attempt: int = 0
    """Number of the try on that server, from 1, on the same chunk."""
    fault: Fault | None = None
    """Error that ended the job; set exactly if `finish` is `"error"`."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """One entry per prompt token, the first one None; sent once, with the first generated token at the latest."""
    vectors: tuple[tuple[int, bytes], ...] = ()
    """Results of an encoder, in any order: the index of an input and its numbers, as little-endian float32."""


JobChunk = tuple[str, Chunk]
"""Job id and one of the job's chunks."""

OnChunk = Callable[[Chunk], None]
"""Callback for each chunk as it arrives. Runs in the event loop and must not block."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a job that an engine can honor. A request that needs another one is refused and never served without.

    The defaults are those of an engine that can do everything.
    """

    grammar: bool = True
    max_top_logprobs: int | None = None
    """Largest `Sampling.top_logprobs`; -1 if the engine reports no log-probabilities, None for no limit."""
    prompt_logprobs: bool = True
    logit_bias: bool = True
    min_tokens: bool = True
    seed: bool = True
    priority: bool = True
    continues_exactly: bool = True
    """The tokens after `Job.generated` are those that the earlier run would have generated."""
    isolates_owners: bool = True
    """Prefixes in the cache are shared by equal `owner` and `cache_salt` only."""
    counts_cached_tokens: bool = True
    """The engine reports the number of prompt tokens read from the cache."""
    grammar_remedy: str = ""
    """Setting of the engine that enables grammars, for the message of a refused request."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed properties of a started engine. `max_model_len` and `vocab_size` are numbers of tokens."""

    max_model_len: int
    vocab_size: int
    device: str = "cpu"
    dtype: str = ""
    default_sampling: Sampling = Sampling()
    """The model's own generation defaults. The caller applies them to parameters that a request does not set."""
    eos_ids: tuple[int, ...] = ()
    suppressed_ids: tuple[int, ...] = ()
    """Token ids that the model never generates, whatever a request asks for."""
    soft_ids: tuple[int, ...] = ()
    """Those of `suppressed_ids` that stand for pictures, video or audio. They occur in prompts only inside of a
    `MediaSpan`, and no `logit_bias` may prefer them."""
    image_form: ImageForm = "none"
    image_refusal: str = ""
    """One line that says why a model that has a vision tower takes no pictures; otherwise empty."""
    fallbacks: tuple[Fallback, ...] = ()
    """Checks of this start that did not pass, so that the model is slower, or lacks an ability."""
    description: str = ""
    architecture: str = ""
    """Name of the model's architecture, such as `qwen3`."""
    max_repetition_tokens: int = 0
    """Number of last tokens that end the output if they only repeat a piece; 0 for no limit. `Sampling.ignore_eos` and
    `Sampling.min_tokens` are stronger."""
    vector_size: int = 0
    """Numbers in each result of an encoder; 0 for a model that generates text."""
    capabilities: Capabilities = Capabilities()


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Current counts, then totals since the start. When idle, `running == waiting == running_cache_tokens == 0`."""

    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    running_cache_tokens: int = 0
    """Tokens that running jobs hold in the KV cache."""
    idle_cache_tokens: int = 0
    """Tokens of finished jobs that are kept in the prefix cache."""
    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens processed, those read from the cache included."""
    prefix_hit_tokens: int = 0
    """Prompt tokens read from the cache."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that were accepted."""
    finished_jobs: int = 0
    failed_jobs: int = 0
    encoded_images: int = 0
    feature_cache_hits: int = 0
    """Pictures whose features were found in the cache when a job needed them."""
    disk_hit_tokens: int = 0
    """Tokens whose keys and values were read from disk."""
    disk_pages_written: int = 0
    disk_pages_damaged: int = 0
    """Pages on disk that were damaged, or of another origin, and were deleted."""
    feature_cache_bytes: int = 0
    """Bytes of features that are kept now."""
    gpu_memory_bytes: int = 0
    """Bytes of GPUs that the engine's process holds, as its allocator counts them; 0 without a GPU."""


class EngineError(Exception):
    """A job that was not admitted, or an engine that could not start.

    Codes: `context_length_exceeded`, `invalid_request`, `grammar_unsupported`, `adapter_not_found`, `media_refused`,
    all caused by the request; `media_unavailable`, `server_is_overloaded`, `engine_unavailable`, `deadline_exceeded`,
    `cancelled`, `server_error`.
    """

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable

    @classmethod
    def from_fault(cls, fault: Fault) -> "EngineError":
        """Returns the error for a job that was not admitted because of this fault."""
        return cls(fault.code, fault.message, fault.retryable)


def overloaded_error() -> EngineError:
    """Returns the error for a job that arrives when the queue is full."""
    return EngineError("server_is_overloaded", "too many requests are waiting; try again shortly", retryable=True)


BATCH_PRIORITY = -100
"""Jobs of this priority or a lower one, such as lines of batches, take no place of a queue from other jobs."""


def is_full(capacity: int, open_jobs: Collection[int], priority: int) -> bool:
    """Tells whether there is no place for a further job of this priority. `open_jobs`: the priorities of the others.

    Of two classes, jobs above `BATCH_PRIORITY` count only each other, and the rest counts all jobs. So there are never
    more than twice `capacity`. Example: with a capacity of 2 and open jobs of (0, -100), one of 0 has a place, one of
    -100 has none.
    """
    if len(open_jobs) < capacity:
        return False
    return priority <= BATCH_PRIORITY or sum(each > BATCH_PRIORITY for each in open_jobs) >= capacity


class MediaSource(Protocol):
    """Gives prepared pictures to an engine: arrays, or files for one on another server."""

    secret: bytes  # of the names of pictures there; all front ends of one store have the same

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        """Returns the arrays of the picture `key` of a job. Raises `MediaUnavailable`."""
        ...

    async def load_png(self, job: Job, key: bytes) -> bytes:
        """Returns the picture `key` of a job as PNG without metadata. Raises `MediaUnavailable`."""
        ...


class Engine(Protocol):
    """An inference engine: token ids in, token ids out."""

    @property
    def info(self) -> EngineInfo:
        """Fixed properties of the engine; available once it has started."""
        ...

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of jobs' pictures, before `start`. One that it lacks is the fault `media_unavailable`."""
        ...

    async def start(self) -> None:
        """Loads the model. Raises `EngineError` with a one-line message for the operator."""
        ...

    async def close(self) -> None:
        """Ends every job in flight (`finish="error"`, `engine_unavailable`) and frees all resources."""
        ...

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job to its end and passes its chunks to `on_chunk`, by the rules in this module's docstring.

        Raises `EngineError` before the first chunk. An exception from `on_chunk` ends the job and is raised
        here.
        """
        ...

    async def cancel(self, job_id: str) -> None:
        """Ends a job with a last chunk `finish="cancelled"`. If it is still waiting, its call raises `cancelled`.

        Unknown ids and ids of finished jobs are ignored.
        """
        ...

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` if `generate` would."""
        ...

    def unready_reason(self) -> str | None:
        """Returns the reason why a job would have to wait, such as "loading: weights"; None if it would not."""
        ...

    def capacity(self) -> int:
        """Returns the maximum number of jobs, waiting ones included. More raise `overloaded_error`: see `is_full`."""
        ...

    def stats(self) -> EngineStats:
        """Returns the current counts; never blocks."""
        ...
