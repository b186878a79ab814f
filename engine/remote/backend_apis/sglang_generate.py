"""`/generate` of SGLang. Its Completions API names tokens of log-probabilities by text, this one by id."""

from typing import Any

import msgspec

from antiphon.engine.protocol import Capabilities, Job, TokenLogprob
from antiphon.engine.remote.backend_apis.base import (
    NO_OUTPUT,
    BackendApi,
    Decoder,
    JobTarget,
    RemoteEvent,
    RemoteFailure,
    RemoteOutput,
    create_event_decoder,
    read_finish,
    select_top,
)
from antiphon.engine.remote.backend_apis.completions import encode_sampling

RENAMED_FIELDS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}

LogprobEntry = tuple[float | None, int, str | None]
"""Log-probability, token id and text."""


class SglangFinish(msgspec.Struct):
    """End of a generation. An abort carries the error that caused it."""

    type: str
    message: str | None = None
    status_code: int | None = None


class SglangMeta(msgspec.Struct):
    """`meta_info` of an event."""

    finish_reason: SglangFinish | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    output_token_logprobs: list[LogprobEntry] | None = None
    output_top_logprobs: list[list[LogprobEntry] | None] | None = None


class SglangEvent(RemoteEvent):
    """An event of the stream."""

    output_ids: tuple[int, ...] = ()
    meta_info: SglangMeta | None = None


decode_event = msgspec.json.Decoder(SglangEvent).decode


class SglangGenerateApi(BackendApi):
    """`/generate`. Events are cumulative or incremental, as the server was started."""

    path = "/generate"
    capabilities = Capabilities(prompt_logprobs=False, seed=False, continues_exactly=False)
    image_form = "placeholder"

    def encode_job(self, job: Job, target: JobTarget) -> bytes:
        """Returns the body. The server refuses fields that it does not know."""
        sampling = encode_sampling(job, target) | {"skip_special_tokens": False, "top_k": job.sampling.top_k or -1}
        sampling = {RENAMED_FIELDS.get(name, name): value for name, value in sampling.items()}
        if target.grammar is not None:
            sampling["ebnf"] = target.grammar
        body: dict[str, Any] = {"input_ids": job.tokens, "stream": True, "rid": job.id, "priority": job.priority}
        if job.sampling.top_logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": job.sampling.top_logprobs}
        if target.cache_salt:
            body["extra_key"] = target.cache_salt
        if target.pictures:
            body["image_data"] = [picture.data_url for picture in target.pictures]
            body["mm_hashes"] = [picture.identity for picture in target.pictures]
        return msgspec.json.encode(body | {"sampling_params": sampling})

    def create_decoder(self, job: Job) -> Decoder:
        """Returns a decoder that takes the new tokens of each event: the last of those that it lists."""
        num_seen, num_top = 0, job.sampling.top_logprobs

        def read_event(event: SglangEvent) -> RemoteOutput:
            nonlocal num_seen
            meta = event.meta_info
            if meta is None:
                return NO_OUTPUT
            num_new, num_seen = meta.completion_tokens - num_seen, meta.completion_tokens
            if num_new > len(event.output_ids):
                raise ValueError("the event lacks tokens that its count includes")
            end = meta.finish_reason
            finish = None if end is None else read_finish(end.type)
            if end is not None and finish == "abort":
                message = end.message or "the engine aborted the request"
                return RemoteOutput(failure=RemoteFailure(end.status_code or 500, message))
            return RemoteOutput(
                tokens=event.output_ids[-num_new:] if num_new > 0 else (),
                logprobs=() if num_top is None or num_new <= 0 else _read_logprobs(meta, num_new, num_top),
                finish=finish,
                cached_tokens=meta.cached_tokens,
                prompt_tokens=meta.prompt_tokens,
                is_last=finish is not None,
            )

        return create_event_decoder(decode_event, read_event)


def _read_logprobs(meta: SglangMeta, num_new: int, num_top: int) -> tuple[TokenLogprob, ...]:
    chosen = (meta.output_token_logprobs or [])[-num_new:]
    tops = (meta.output_top_logprobs or [])[-num_new:] or [None] * len(chosen)
    return tuple(
        TokenLogprob(token, _floor(logprob), select_top({each[1]: _floor(each[0]) for each in top or ()}, num_top))
        for (logprob, token, _), top in zip(chosen, tops, strict=True)
    )


def _floor(logprob: float | None) -> float:
    return 0.0 if logprob is None else logprob
