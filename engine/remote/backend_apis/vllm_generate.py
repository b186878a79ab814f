"""`/inference/v1/generate` of vLLM: token ids in and out, without an echo of the prompt."""

from typing import Any

import msgspec

from antiphon.engine.protocol import Capabilities, Job, TokenLogprob
from antiphon.engine.remote.backend_apis.base import (
    BackendApi,
    Decoder,
    JobTarget,
    RemoteEvent,
    RemoteOutput,
    create_event_decoder,
    read_finish,
    select_top,
)
from antiphon.engine.remote.backend_apis.completions import RemoteUsage, encode_sampling, read_cached


class GenerateCandidate(msgspec.Struct):
    """A token and its log-probability."""

    token_id: int
    logprob: float


class GenerateLogprob(msgspec.Struct):
    """Log-probabilities at one position."""

    token_id: int
    logprob: float
    top_logprobs: list[GenerateCandidate] = []


class GenerateLogprobs(msgspec.Struct):
    """Log-probabilities of the tokens of an event."""

    content: list[GenerateLogprob] = []


class GenerateChoice(msgspec.Struct):
    """Choice of an event. Fields of the prompt are in the first event, in the choice or beside it."""

    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    mm_placeholders: Any = None
    finish_reason: str | None = None
    logprobs: GenerateLogprobs | None = None


class GenerateEvent(RemoteEvent):
    """An event of the stream. `mm_placeholders` tells where the server has put the tokens of pictures."""

    choices: tuple[GenerateChoice, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    mm_placeholders: Any = None
    usage: RemoteUsage | None = None


decode_event = msgspec.json.Decoder(GenerateEvent).decode


class VllmGenerateApi(BackendApi):
    """`/inference/v1/generate`. Since vLLM 0.30 the server needs `--enable-scale-out` for it."""

    path = "/inference/v1/generate"
    capabilities = Capabilities(prompt_logprobs=False, continues_exactly=False)
    image_form = "placeholder"

    def encode_job(self, job: Job, target: JobTarget) -> bytes:
        """Returns the body. `reasoning_ended`: the grammar begins at the first token."""
        sampling = encode_sampling(job, target) | {"detokenize": False, "skip_special_tokens": False}
        if job.sampling.top_logprobs is not None:
            sampling["logprobs"] = job.sampling.top_logprobs + 1  # the chosen token counts
        body: dict[str, Any] = {"model": target.model, "token_ids": job.tokens, "stream": True}
        body |= {"priority": -job.priority, "stream_options": {"include_usage": True}}
        if target.grammar is not None:
            sampling["structured_outputs"] = {"grammar": target.grammar}
            body["reasoning_ended"] = True
        if target.cache_salt:
            body["cache_salt"] = target.cache_salt
        if target.pictures:
            body["return_token_ids"] = True
            body["content_parts"] = [
                {"type": "image_url", "url": picture.data_url, "uuid": picture.identity} for picture in target.pictures
            ]
        return msgspec.json.encode(body | {"sampling_params": sampling})

    def create_decoder(self, job: Job) -> Decoder:
        """Returns a decoder of this job's events. Each event carries the tokens since the one before."""
        num_top = job.sampling.top_logprobs

        def read_event(event: GenerateEvent) -> RemoteOutput:
            cached, counted = read_cached(event.usage), event.usage.prompt_tokens if event.usage else 0
            if not event.choices:
                return RemoteOutput(cached_tokens=cached, prompt_tokens=counted, is_last=event.usage is not None)
            choice = event.choices[0]
            prompt_ids = event.prompt_token_ids or choice.prompt_token_ids or ()
            return RemoteOutput(
                prompt_tokens=len(prompt_ids) or counted,
                prompt_ids=prompt_ids,
                has_placeholders=bool(event.mm_placeholders or choice.mm_placeholders),
                tokens=choice.token_ids,
                logprobs=() if num_top is None else _read_logprobs(choice.logprobs, num_top),
                finish=read_finish(choice.finish_reason),
                cached_tokens=cached,
            )

        return create_event_decoder(decode_event, read_event)


def _read_logprobs(logprobs: GenerateLogprobs | None, num_top: int) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            entry.token_id,
            entry.logprob,
            select_top({each.token_id: each.logprob for each in entry.top_logprobs}, num_top),
        )
        for entry in (logprobs.content if logprobs else ())
    )
