"""One job in flight, and how it continues after tokens that were generated before.

Its servers get these tokens at the end of the prompt, and begin to count there. So the limits of tokens are reduced;
what cannot be expressed, `find_uncounted` tells.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from antiphon.engine.protocol import CANCELLED_WHILE_WAITING, Chunk, EngineError, EngineInfo, Fault, Job, OnChunk
from antiphon.engine.remote.backend_apis.base import BackendApi
from antiphon.engine.remote.faults import FailedAttempt
from antiphon.engine.remote.handshakes.handshake import ServerProfile
from antiphon.engine.remote.images.pictures import RemotePicture, check_soft_tokens
from antiphon.engine.remote.options import RemoteOptions, RemoteTimeouts
from antiphon.engine.remote.vocabulary import Vocabulary

EndCause = Literal["deadline", "cancelled", "closed"]
MAX_JOB_ATTEMPTS = 3
"""Tries of a job that was not admitted."""
MAX_MOVES = 3
"""Times that a job which has begun continues after its server was lost."""
STOPPED_FAULT = Fault("engine_unavailable", "the engine was stopped", retryable=True)


class RemoteJob:
    """A job in flight. `scope` is the timeout in which it runs: `end` ends it like a deadline."""

    def __init__(self, job: Job, on_chunk: OnChunk) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.scope = asyncio.timeout_at(None if job.deadline is None else loop.time() + job.deadline)
        self.finished: asyncio.Future[None] = loop.create_future()
        self.is_admitted = self.is_over = False
        self.num_tokens = self.cached_tokens = self.num_attempts = 0
        self.replica = ""
        """Name of the server of the latest try."""
        self.generated = list(job.generated or ())
        """Tokens of earlier runs and of this one."""
        self.uncounted: list[str] = []
        """Sampling fields that the server of the latest request would count anew if the job continues."""
        self._num_requests = 0
        self.has_failed = False
        self.pictures: tuple[RemotePicture, ...] = ()
        self._on_chunk = on_chunk
        self._cause: EndCause = "deadline"

    def receive_chunk(self, chunk: Chunk) -> None:
        """Passes a chunk to the caller. The first one gets the name of its server."""
        if not self.is_admitted and self.replica:
            chunk = msgspec.structs.replace(chunk, replica=self.replica, attempt=self.num_attempts)
        self.is_admitted = True
        self.num_tokens += len(chunk.tokens)
        self.generated += chunk.tokens
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        if chunk.finish is not None:
            self.is_over, self.has_failed = True, chunk.fault is not None
        self._on_chunk(chunk)

    @property
    def has_begun(self) -> bool:
        """True once the job was admitted, here or in an earlier run."""
        return self.is_admitted or self.job.generated is not None

    def create_request_id(self) -> str:
        """Returns an id for the next request. A server may still know the earlier ones."""
        self._num_requests += 1
        return f"{self.job.id}-{self._num_requests}"

    def finish_without_tokens(self) -> None:
        """Ends a job that has generated all its tokens before."""
        if not self.is_admitted:
            self.receive_chunk(Chunk())
        self.receive_chunk(Chunk(finish="length"))

    def end(self, cause: EndCause) -> None:
        """Ends the job from outside its task."""
        self._cause = cause
        self.scope.reschedule(asyncio.get_running_loop().time())

    def report_end(self) -> None:
        """Reports the end by `end` or by the deadline: as the last chunk, or as an error before the admission."""
        if self.is_over:
            return
        if self._cause == "cancelled" and self.is_admitted:
            self.receive_chunk(Chunk(finish="cancelled"))
        elif self._cause == "cancelled":
            raise EngineError.from_fault(CANCELLED_WHILE_WAITING)
        elif self._cause == "closed":
            self.fail(STOPPED_FAULT)
        else:
            self.fail(Fault("deadline_exceeded", f"not done within {self.job.deadline:g} s", retryable=True))

    def fail(self, fault: Fault) -> None:
        """Ends the job with a fault, or raises it as an error before the admission."""
        if not self.is_admitted:
            raise EngineError.from_fault(fault)
        self.receive_chunk(Chunk(finish="error", fault=fault))


class RetrySchedule:
    """Tells whether a job is tried again, until when, and after which pause.

    A new job is tried `MAX_JOB_ATTEMPTS` times, each time on another replica, within `retry_window_s`. A job that has
    begun continues within `continue_within_s` after its server was lost, at most `MAX_MOVES` times.
    """

    def __init__(self, run: RemoteJob, options: RemoteOptions, timeouts: RemoteTimeouts) -> None:
        self._run, self._timeouts = run, timeouts
        self._is_strict = options.continuation == "strict"
        self._tried: list[ServerProfile] = []
        self._num_seen, self._num_moves, self._is_interrupted = 0, 0, False
        self._delay_s = timeouts.min_reconnect_delay_s
        has_begun = run.job.generated is not None
        self.give_up_at = self._now() + max(timeouts.retry_window_s, timeouts.continue_within_s if has_begun else 0.0)

    @property
    def can_wait(self) -> bool:
        """True if the job may wait for a replica that was tried before."""
        return self._run.has_begun and self._timeouts.continue_within_s > 0

    def is_untried(self, profile: ServerProfile | None) -> bool:
        """Tells whether a replica is up and was not tried. After a new handshake it counts as another one."""
        return profile is not None and not any(profile is tried for tried in self._tried)

    def note_attempt(self, profile: ServerProfile) -> None:
        """Notes the replica of a try."""
        self._tried.append(profile)

    def allows_retry(self, failed: FailedAttempt) -> bool:
        """Notes a failed try. Returns false if it was the last one."""
        run, has_progress = self._run, self._run.num_tokens > self._num_seen
        self._num_seen = run.num_tokens
        if not failed.is_retryable or (run.generated and run.uncounted and self._is_strict):
            return False
        if not self.can_wait:
            return not run.num_tokens and len(self._tried) < MAX_JOB_ATTEMPTS and self._now() < self.give_up_at
        self._num_moves += failed.has_job
        if has_progress or not self._is_interrupted:
            self._is_interrupted = True
            self.give_up_at = self._now() + self._timeouts.continue_within_s
            self._delay_s = self._timeouts.min_reconnect_delay_s
        return self._num_moves <= MAX_MOVES and self._now() < self.give_up_at

    async def pause(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Returns when `wait` does, or when all replicas may be tried again. Raises `TimeoutError` at the end."""
        if self._now() >= self.give_up_at:
            raise TimeoutError
        try:
            async with asyncio.timeout_at(min(self._now() + self._delay_s, self.give_up_at)):
                await wait()
        except TimeoutError:
            self._tried.clear()
            self._delay_s = min(2 * self._delay_s, self._timeouts.max_reconnect_delay_s)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def check_job(job: Job, info: EngineInfo) -> None:
    """Refuses a job that the servers would not honor: none of its fields is dropped."""
    sampling, generated = job.sampling, job.generated or ()
    if job.adapter:
        raise EngineError("adapter_not_found", "adapters of other servers are requested as models of theirs")
    if job.media and info.image_form == "none":
        raise EngineError("invalid_request", f"the engine takes no images: {info.image_refusal}")
    if (num_tokens := count_prompt_tokens(job)) >= info.max_model_len:
        message = f"the prompt has {num_tokens} tokens, the context holds {info.max_model_len}"
        raise EngineError("context_length_exceeded", message)
    if num_tokens + len(generated) > info.max_model_len:
        message = f"{num_tokens} tokens and {len(generated)} generated ones exceed the context of {info.max_model_len}"
        raise EngineError("context_length_exceeded", message)
    if any(not 0 <= token < info.vocab_size for token in generated):
        raise EngineError("invalid_request", f"a generated token is outside the vocabulary of {info.vocab_size}")
    if any(not 0 <= token < info.vocab_size for token in sampling.logit_bias):
        raise EngineError("invalid_request", f"logit_bias: the vocabulary has {info.vocab_size} tokens")
    check_soft_tokens(job, info.soft_ids)
    capabilities = info.capabilities
    if job.grammar is not None and not capabilities.grammar:
        remedy = f"; start it with {capabilities.grammar_remedy}" if capabilities.grammar_remedy else ""
        raise EngineError("grammar_unsupported", f"the engine does not follow grammars{remedy}")
    limit = capabilities.max_top_logprobs
    checks = {
        "top_logprobs": limit is None or sampling.top_logprobs is None or sampling.top_logprobs <= limit,
        "prompt_logprobs": job.prompt_logprobs is None or (capabilities.prompt_logprobs and not job.media),
        "logit_bias": capabilities.logit_bias or not sampling.logit_bias,
        "min_tokens": capabilities.min_tokens or not sampling.min_tokens,
        "seed": capabilities.seed or sampling.seed is None,
        "priority": capabilities.priority or not job.priority,
    }
    for name, is_honored in checks.items():
        if not is_honored:
            raise EngineError("invalid_request", f"the engine does not support {name}")


def count_prompt_tokens(job: Job) -> int:
    """Returns the length of a prompt with the rows of pictures that the server puts into it, as far as known."""
    return len(job.tokens) + sum(max(span.rows - span.length, 0) for span in job.media)


def continue_job(job: Job, generated: Sequence[int], request_id: str) -> Job:
    """Returns the job as a server gets it after these tokens. Its id is that of the request."""
    job = msgspec.structs.replace(job, id=request_id, generated=None)
    if not generated:
        return job
    sampling = job.sampling
    sampling = msgspec.structs.replace(
        sampling,
        min_tokens=max(sampling.min_tokens - len(generated), 0),
        seed=None if sampling.seed is None else sampling.seed ^ len(generated),  # not the same random numbers again
    )
    # An earlier run has reported the log-probabilities of the prompt.
    return msgspec.structs.replace(job, tokens=(*job.tokens, *generated), sampling=sampling, prompt_logprobs=None)


def end_with_grammar(job: Job, *, is_masked: bool) -> Job:
    """Returns a job whose grammar ends it: the server must not ignore the token of its end.

    A request for one token under a mask may get any of these, the last one of the output included.
    """
    sampling = msgspec.structs.replace(job.sampling, ignore_eos=False)
    if is_masked:
        sampling = msgspec.structs.replace(sampling, min_tokens=0)
    return msgspec.structs.replace(job, sampling=sampling)


def continue_texts(job: Job, generated: Sequence[int], vocabulary: Vocabulary | None) -> Job:
    """Returns a job whose prompt is text, with the text of these tokens. Raises `EngineError` if that is another text.

    A server makes tokens of the text again. They must be the same ones.
    """
    before = job.texts[-1] if job.texts else ""
    text = None if vocabulary is None else vocabulary.find_text(before, generated)
    if text is None:
        message = "a job with images cannot go on here: the engine takes text, which would be other tokens"
        raise EngineError("media_unavailable", message)
    return msgspec.structs.replace(job, texts=(*job.texts[:-1], before + text))


def find_uncounted(job: Job, api: BackendApi) -> list[str]:
    """Returns the sampling fields of a job that the server would count anew, in the order of the interface."""
    sampling = job.sampling
    used = {
        "presence_penalty": bool(sampling.presence_penalty),
        "frequency_penalty": bool(sampling.frequency_penalty),
        "seed": sampling.seed is not None and sampling.temperature > 0,
    }
    return [name for name in api.uncounted_fields if used[name]]
