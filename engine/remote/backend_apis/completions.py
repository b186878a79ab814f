"""`/v1/completions` with token ids, of vLLM, SGLang and TensorRT-LLM."""

from typing import Any

import msgspec

from antiphon.engine.protocol import Capabilities, Job, TokenLogprob
from antiphon.engine.remote.backend_apis.base import (
    BackendApi,
    Decoder,
    EngineKind,
    JobTarget,
    RemoteEvent,
    RemoteOutput,
    create_event_decoder,
    read_finish,
    select_top,
)

TOKEN_ID_PREFIX = "token_id:"  # noqa: S105  not a password

VLLM_CAPABILITIES = Capabilities(continues_exactly=False)
SGLANG_CAPABILITIES = Capabilities(prompt_logprobs=False, seed=False, continues_exactly=False)
TRTLLM_CAPABILITIES = Capabilities(
    max_top_logprobs=-1, prompt_logprobs=False, continues_exactly=False, isolates_owners=False
)


class RemoteLogprobs(msgspec.Struct):
    """Log-probabilities in the shape of the Completions API. Tokens are written as `token_id:59201`."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class PromptLogprob(msgspec.Struct):
    """Log-probability of one candidate for a token of the prompt."""

    logprob: float


class RemoteChoice(msgspec.Struct):
    """Choice of an event. vLLM repeats the prompt in it; fields that are not listed are skipped unparsed."""

    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    logprobs: RemoteLogprobs | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class PromptTokensDetails(msgspec.Struct):
    """Part of the usage."""

    cached_tokens: int | None = None


class RemoteUsage(msgspec.Struct):
    """Usage of a request, in its last event."""

    prompt_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionsEvent(RemoteEvent):
    """An event of the stream, or the body of a reply that is not streamed."""

    choices: tuple[RemoteChoice, ...] = ()
    usage: RemoteUsage | None = None


decode_event = msgspec.json.Decoder(CompletionsEvent).decode


class CompletionsApi(BackendApi):
    """`/v1/completions` of one kind of server."""

    path = "/v1/completions"

    def __init__(self, kind: EngineKind) -> None:
        self.kind = kind
        self.capabilities = {"sglang": SGLANG_CAPABILITIES, "trtllm": TRTLLM_CAPABILITIES}.get(kind, VLLM_CAPABILITIES)

    def encode_job(self, job: Job, target: JobTarget) -> bytes:
        """Returns the body. All sampling fields are sent: the server would apply the model's defaults to others."""
        body = encode_sampling(job, target)
        body |= {"model": target.model, "prompt": job.tokens, "stream": job.prompt_logprobs is None}
        if job.prompt_logprobs is None:
            body["stream_options"] = {"include_usage": True}
        encode = {"vllm": _encode_vllm, "sglang": _encode_sglang, "trtllm": _encode_trtllm}[self.kind]
        return msgspec.json.encode(body | encode(job, target))

    def create_decoder(self, job: Job) -> Decoder:
        """Returns a decoder of this job's events. Each event carries the tokens since the one before."""

        def read_event(event: CompletionsEvent) -> RemoteOutput:
            if event.choices:
                return _read_choice(event, job)
            return RemoteOutput(cached_tokens=read_cached(event.usage), is_last=event.usage is not None)

        return create_event_decoder(decode_event, read_event)


def encode_sampling(job: Job, target: JobTarget) -> dict[str, Any]:
    """Returns the sampling fields that the servers name alike."""
    sampling = job.sampling
    body: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": target.max_tokens,
        "min_tokens": min(sampling.min_tokens, target.max_tokens),
        "stop_token_ids": target.stop_ids,
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return body


def _encode_vllm(job: Job, target: JobTarget) -> dict[str, Any]:
    # A lower number is earlier in vLLM.
    body: dict[str, Any] = {"return_token_ids": True, "skip_special_tokens": False, "priority": -job.priority}
    if job.sampling.top_logprobs is not None:
        body |= {"logprobs": job.sampling.top_logprobs, "return_tokens_as_token_ids": True}
    if job.prompt_logprobs is not None:
        body["prompt_logprobs"] = job.prompt_logprobs
    if target.grammar is not None:
        body["structured_outputs"] = {"grammar": target.grammar}
    if target.cache_salt:
        body["cache_salt"] = target.cache_salt
    return body


def _encode_sglang(job: Job, target: JobTarget) -> dict[str, Any]:
    body: dict[str, Any] = {"return_token_ids": True, "skip_special_tokens": False, "priority": job.priority}
    body |= {"top_k": job.sampling.top_k or -1, "rid": job.id}
    if target.grammar is not None:
        body["ebnf"] = target.grammar
    if target.cache_salt:
        body["cache_salt"] = target.cache_salt
    return body


def _encode_trtllm(job: Job, target: JobTarget) -> dict[str, Any]:
    # The server refuses fields that it does not know.
    body: dict[str, Any] = {"detokenize": False, "priority": min(max(0.5 + job.priority / 20, 0.0), 1.0)}
    if target.grammar is not None:
        body["response_format"] = {"type": "ebnf", "ebnf": target.grammar}
    return body


def _read_choice(event: CompletionsEvent, job: Job) -> RemoteOutput:
    choice, num_top = event.choices[0], job.sampling.top_logprobs
    return RemoteOutput(
        tokens=choice.token_ids or (),
        logprobs=() if num_top is None else _read_logprobs(choice.logprobs, num_top),
        prompt_logprobs=_read_prompt_logprobs(choice, job),
        finish=read_finish(choice.finish_reason),
        cached_tokens=read_cached(event.usage),
        is_last=event.usage is not None and choice.finish_reason is not None,
    )


def read_cached(usage: RemoteUsage | None) -> int | None:
    """Returns the number of prompt tokens read from the cache, or None if the usage does not tell."""
    details = usage.prompt_tokens_details if usage else None
    return details.cached_tokens if details else None


def _read_logprobs(logprobs: RemoteLogprobs | None, num_top: int) -> tuple[TokenLogprob, ...]:
    if logprobs is None:
        return ()
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return tuple(
        TokenLogprob(_read_token_id(token), 0.0 if logprob is None else logprob, select_top(_by_id(top), num_top))
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
    )


def _by_id(top: dict[str, float] | None) -> dict[int, float]:
    return {_read_token_id(token): logprob for token, logprob in (top or {}).items()}


def _read_token_id(token: str) -> int:
    return int(token.removeprefix(TOKEN_ID_PREFIX))


def _read_prompt_logprobs(choice: RemoteChoice, job: Job) -> tuple[TokenLogprob | None, ...]:
    """Returns an entry for each token of the prompt. The candidates of a token include the token itself."""
    if job.prompt_logprobs is None or choice.prompt_logprobs is None:
        return ()
    entries: list[TokenLogprob | None] = []
    for token, candidates in zip(job.tokens, choice.prompt_logprobs, strict=True):
        if not candidates:
            entries.append(None)
            continue
        by_id = {int(candidate): entry.logprob for candidate, entry in candidates.items()}
        entries.append(TokenLogprob(token, by_id[token], select_top(by_id, job.prompt_logprobs)))
    return tuple(entries)
