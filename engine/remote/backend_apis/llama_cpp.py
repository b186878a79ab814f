"""`/completion` of llama.cpp's server."""

from typing import Any

import msgspec

from antiphon.engine.protocol import Capabilities, Job, TokenLogprob
from antiphon.engine.remote.backend_apis.base import (
    BackendApi,
    Decoder,
    Finish,
    GrammarSyntax,
    JobTarget,
    RemoteEvent,
    RemoteOutput,
    create_event_decoder,
    select_top,
)

STOP_TYPES: dict[str, Finish] = {"eos": "stop", "limit": "length"}
GRAMMAR_PREFIX = "%llguidance {}\n"
"""First line of a grammar that llguidance reads, not the server's own parser."""
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""Order of the sampling steps: that of `engine.protocol`."""
RESPONSE_FIELDS = (
    "tokens",
    "stop",
    "stop_type",
    "completion_probabilities",
    "prompt_progress",
    "timings",
    "tokens_evaluated",
    "error",
)
"""Fields of each event. Without this list, the last one repeats every setting."""


class LlamaCandidate(msgspec.Struct):
    """A token and its log-probability."""

    id: int
    logprob: float


class LlamaLogprob(msgspec.Struct):
    """Log-probabilities at one position."""

    id: int
    logprob: float
    top_logprobs: list[LlamaCandidate] = []


class LlamaProgress(msgspec.Struct):
    """Progress of the prompt. An event with it carries a token that is none."""

    cache: int = 0


class LlamaTimings(msgspec.Struct):
    """Counts of the last event."""

    cache_n: int | None = None


class LlamaEvent(RemoteEvent):
    """An event of the stream."""

    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[LlamaLogprob] | None = None
    prompt_progress: LlamaProgress | None = None
    timings: LlamaTimings | None = None
    tokens_evaluated: int = 0


decode_event = msgspec.json.Decoder(LlamaEvent).decode


class LlamaCppApi(BackendApi):
    """`/completion`. The server knows neither stop ids, owners nor priorities.

    `grammar_syntax`: every build reads GBNF, one with llguidance reads Lark, too.
    """

    path = "/completion"
    image_form = "text"
    uncounted_fields = ("seed",)  # its penalties count the prompt
    capabilities = Capabilities(
        prompt_logprobs=False, min_tokens=False, priority=False, continues_exactly=False, isolates_owners=False
    )

    def __init__(self, grammar_syntax: GrammarSyntax = "lark") -> None:
        self.grammar_syntax = grammar_syntax

    def encode_job(self, job: Job, target: JobTarget) -> bytes:
        """Returns the body. All sampling fields are sent: the server's defaults are not neutral.

        With API keys, the prompt is not cached: all requests share the server's slots.
        """
        sampling = job.sampling
        body: dict[str, Any] = {
            "prompt": job.tokens,
            "n_predict": target.max_tokens,
            "n_keep": 0,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": not target.cache_salt,
            "response_fields": RESPONSE_FIELDS,
            "samplers": SAMPLERS,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": len(job.tokens) + target.max_tokens,  # newer servers refuse -1, the whole context
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed & 0xFFFF_FFFF
        biases: dict[int, float | bool] = {**sampling.logit_bias, **dict.fromkeys(target.banned_ids, False)}
        if biases:
            body["logit_bias"] = list(biases.items())
        if sampling.top_logprobs is not None:
            body["n_probs"] = max(sampling.top_logprobs, 1)  # 0 turns all log-probabilities off
        if target.pictures:
            body["prompt"] = {
                "prompt_string": target.media_marker.join(job.texts),
                "multimodal_data": [picture.base64_text for picture in target.pictures],
            }
        if target.grammar is not None:
            body["grammar"] = (GRAMMAR_PREFIX if self.grammar_syntax == "lark" else "") + target.grammar
        return msgspec.json.encode(body)

    def create_decoder(self, job: Job) -> Decoder:
        """Returns a decoder of this job's events. Each event carries the tokens since the one before."""
        num_top = job.sampling.top_logprobs

        def read_event(event: LlamaEvent) -> RemoteOutput:
            if event.prompt_progress is not None and not event.stop:
                return RemoteOutput(is_admission=True, cached_tokens=event.prompt_progress.cache)
            return RemoteOutput(
                tokens=event.tokens,
                logprobs=() if num_top is None else _read_logprobs(event.completion_probabilities, num_top),
                finish=STOP_TYPES.get(event.stop_type, "abort") if event.stop else None,
                cached_tokens=event.timings.cache_n if event.timings else None,
                prompt_tokens=event.tokens_evaluated,
                is_last=event.stop,
            )

        return create_event_decoder(decode_event, read_event)


def _read_logprobs(entries: list[LlamaLogprob] | None, num_top: int) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            entry.id, entry.logprob, select_top({each.id: each.logprob for each in entry.top_logprobs}, num_top)
        )
        for entry in entries or ()
    )
