"""What both faces make of a body in the same way: sampling, and the Response before anything happened."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, structs

from antiphon.app.errors import invalid_value
from antiphon.engine.protocol import Sampling
from antiphon.events.response import ReasoningConfig, Response

PLAIN_TEXT_CONFIG = {"format": {"type": "text"}}
_SAMPLING_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def read_sampling(body: Mapping[str, Any], defaults: Sampling, limit: int | None, top_logprobs: int | None) -> Sampling:
    """How to sample: what the client sent wins, then the model's own defaults, then neutral.

    `limit` is the number of new tokens asked for; None leaves it to the model's defaults.
    """
    sent: dict[str, Any] = {name: float(body[name]) for name in _SAMPLING_FIELDS if body.get(name) is not None}
    if body.get("top_k") is not None:
        sent["top_k"] = max(body["top_k"], 0)
    if body.get("seed") is not None:
        sent["seed"] = body["seed"]
    if body.get("logit_bias"):
        sent["logit_bias"] = {int(token): float(added) for token, added in body["logit_bias"].items()}
    if limit is not None:
        sent["max_tokens"] = limit
    return structs.replace(defaults, **sent, top_logprobs=top_logprobs)


def conversation_of(body: Mapping[str, Any]) -> str | None:
    """The id of the conversation that a request belongs to; it may be sent bare or in an object."""
    sent = body.get("conversation")
    return sent["id"] if isinstance(sent, dict) else sent


def read_stop_strings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings. An empty one would match everywhere."""
    stop = body.get("stop")
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in found:
        raise invalid_value("stop", "Invalid 'stop': a stop string must not be empty.")
    return found


def check_stream_options(body: Mapping[str, Any]) -> None:
    """Options for a stream belong to a stream."""
    if body.get("stream_options") is not None and not body.get("stream"):
        raise invalid_value(
            "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        )


def wants_obfuscation(body: Mapping[str, Any]) -> bool:
    """Whether pieces of a stream are to be padded, so that their lengths tell nobody on the way what is said."""
    return bool((body.get("stream_options") or {}).get("include_obfuscation"))


def base_response(body: Mapping[str, Any], chosen: Sampling, **more: Any) -> Response:
    """The Response with the fields that echo the request on either face; `more` are the face's own."""
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
    """The echo of how to think; both keys are always there."""
    return ReasoningConfig(effort=effort, summary=summary)
