"""Parsing that both endpoints share: sampling parameters, stop strings, and the initial Response."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, structs

from antiphon.app.base.errors import invalid_value
from antiphon.engine.protocol import EngineInfo, Sampling
from antiphon.events.response import ReasoningConfig, Response

PLAIN_TEXT_CONFIG = {"format": {"type": "text"}}
_SAMPLING_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def read_sampling(body: Mapping[str, Any], info: EngineInfo, limit: int | None, top_logprobs: int | None) -> Sampling:
    """Returns the sampling parameters: the client's values, else the model's defaults, else neutral values.

    `limit` is the requested number of new tokens; None leaves it to the model's defaults. Raises `ApiError` 400 for a
    token of `logit_bias` that the model does not have.
    """
    overrides: dict[str, Any] = {name: float(body[name]) for name in _SAMPLING_FIELDS if body.get(name) is not None}
    if body.get("top_k") is not None:
        overrides["top_k"] = max(body["top_k"], 0)
    if body.get("seed") is not None:
        overrides["seed"] = body["seed"]
    if body.get("logit_bias"):
        overrides["logit_bias"] = {int(token): float(bias) for token, bias in body["logit_bias"].items()}
        for token in overrides["logit_bias"]:
            if token >= info.vocab_size:
                message = f"Invalid 'logit_bias': the model has no token {token}, only 0 to {info.vocab_size - 1}."
                raise invalid_value("logit_bias", message)
    if limit is not None:
        overrides["max_tokens"] = limit
    return structs.replace(info.default_sampling, **overrides, top_logprobs=top_logprobs)


def read_engine_fields(body: Mapping[str, Any], info: EngineInfo, sampling: Sampling) -> Sampling:
    """Returns the sampling parameters with those that only vLLM's API has. Raises `ApiError` 400."""
    stop_ids = tuple(body.get("stop_token_ids") or ())
    for index, token in enumerate(stop_ids):
        if token >= info.vocab_size:
            message = f"the model has no token {token}, only 0 to {info.vocab_size - 1}."
            raise invalid_value(f"stop_token_ids[{index}]", f"Invalid 'stop_token_ids': {message}")
    min_tokens, limit = body.get("min_tokens") or 0, sampling.max_tokens
    if limit is not None and min_tokens > limit:
        raise invalid_value("min_tokens", f"Invalid 'min_tokens': it must not exceed 'max_tokens', which is {limit}.")
    return structs.replace(sampling, stop_ids=stop_ids, min_tokens=min_tokens, ignore_eos=bool(body.get("ignore_eos")))


def read_truncation(body: Mapping[str, Any], info: EngineInfo, sampling: Sampling) -> int | None:
    """Returns the number of tokens to keep of each prompt; None for all."""
    kept: int | None = body.get("truncate_prompt_tokens")
    if kept != -1:
        return kept
    return max(info.max_model_len - (sampling.max_tokens or 1), 1)


def check_best_of(body: Mapping[str, Any]) -> int:
    """Returns the number of choices to sample for each prompt. Raises `ApiError` 400 if it is less than `n`."""
    n = body.get("n") or 1
    best_of: int = body.get("best_of") or n
    if best_of < n:
        raise invalid_value("best_of", f"Invalid 'best_of': it must be at least 'n', which is {n}.")
    if body.get("stream") and best_of > n:
        raise invalid_value("best_of", "'best_of' greater than 'n' is not allowed when 'stream' is enabled.")
    return best_of


def check_prompt_logprobs(body: Mapping[str, Any]) -> int | None:
    """Returns `prompt_logprobs`. Raises `ApiError` 400 if it is combined with `stream`."""
    count: int | None = body.get("prompt_logprobs")
    if count is not None and body.get("stream"):
        raise invalid_value("prompt_logprobs", "'prompt_logprobs' is not allowed when 'stream' is enabled.")
    return count


def read_priority(body: Mapping[str, Any]) -> int:
    """Returns the engine's priority. The engine runs higher ones first, vLLM's API lower ones."""
    return -(body.get("priority") or 0)


def conversation_of(body: Mapping[str, Any]) -> str | None:
    """Returns the id of the request's conversation, sent as a string or in an object; None if there is none."""
    conversation = body.get("conversation")
    return conversation["id"] if isinstance(conversation, dict) else conversation


def read_stop_strings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the stop strings. Raises `ApiError` 400 for an empty one, which would match everywhere."""
    stop = body.get("stop")
    stop_strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in stop_strings:
        raise invalid_value("stop", "Invalid 'stop': a stop string must not be empty.")
    return stop_strings


def check_stream_options(body: Mapping[str, Any]) -> None:
    """Raises `ApiError` 400 if `stream_options` is sent without `stream`."""
    if body.get("stream_options") is not None and not body.get("stream"):
        raise invalid_value(
            "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        )


def wants_obfuscation(body: Mapping[str, Any]) -> bool:
    """Tells whether to pad the chunks of a stream, so that their lengths do not reveal the text to an eavesdropper."""
    return bool((body.get("stream_options") or {}).get("include_obfuscation"))


def base_response(body: Mapping[str, Any], chosen: Sampling, **more: Any) -> Response:
    """Returns the Response with the fields that echo the request; `more` are the fields of one endpoint."""
    tier = body.get("service_tier")
    return Response(
        id="",
        created_at=0,
        model=body["model"],
        tool_choice=body.get("tool_choice") or "auto",
        parallel_tool_calls=body.get("parallel_tool_calls") is not False,
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        presence_penalty=chosen.presence_penalty,
        frequency_penalty=chosen.frequency_penalty,
        top_logprobs=chosen.top_logprobs or 0,
        service_tier="default" if tier in (None, "auto") else tier,
        metadata=body.get("metadata") or {},
        safety_identifier=body.get("safety_identifier"),
        prompt_cache_key=body.get("prompt_cache_key"),
        user=UNSET if body.get("user") is None else body["user"],
        **more,
    )


def reasoning_config(effort: str | None, summary: str | None) -> ReasoningConfig:
    """Returns the echo of the reasoning settings; both keys are always present."""
    return ReasoningConfig(effort=effort, summary=summary)
