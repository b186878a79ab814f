"""Parsing that endpoints share: sampling parameters, combinations of fields, and the initial Response."""

from typing import Any

from msgspec import UNSET, structs

from antiphon.app.errors import invalid_value
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.fields.vllm import CompletionBody
from antiphon.app.requests.messages.body import MessagesBody
from antiphon.app.requests.responses.body import BackgroundOptions, ResponsesBody
from antiphon.engine.protocol import BATCH_PRIORITY, Capabilities, EngineInfo, Sampling
from antiphon.events.response import ReasoningConfig, Response

PLAIN_TEXT_CONFIG: dict[str, Any] = {"format": {"type": "text"}}
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
FLEX_PRIORITY = -50
"""Engine priority of the tier `flex`: below every request without a priority."""
LATE_WINDOWS = ("2h", "8h")
"""Completion windows in which a turn waits for all others."""
CompletionLike = ChatBody | TextCompletionBody


def read_sampling(
    body: ResponsesBody | CompletionBody | MessagesBody, info: EngineInfo, limit: int | None, top_logprobs: int | None
) -> Sampling:
    """Returns the sampling parameters: the client's values, else the model's defaults, else neutral values.

    `limit` is the requested number of new tokens; None leaves it to the model's defaults. Raises `ApiError` 400 for a
    token of `logit_bias` that the model does not have, or a preferred one that stands for pictures.
    """
    sent: dict[str, Any] = {name: getattr(body, name, None) for name in _SAMPLING_FIELDS}
    overrides = {name: value for name, value in sent.items() if value is not None}
    if body.top_k is not None:
        overrides["top_k"] = max(body.top_k, 0)
    if not isinstance(body, MessagesBody) and body.logit_bias:
        overrides["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
        for token, bias in overrides["logit_bias"].items():
            if token >= info.vocab_size:
                message = f"Invalid 'logit_bias': the model has no token {token}, only 0 to {info.vocab_size - 1}."
                raise invalid_value("logit_bias", message)
            if bias > 0 and token in info.soft_ids:
                message = f"token {token} stands for pictures and is never generated. Leave it out, or ban it."
                raise invalid_value("logit_bias", f"Invalid 'logit_bias': {message}")
    if limit is not None:
        overrides["max_tokens"] = limit
    return structs.replace(info.default_sampling, **overrides, top_logprobs=top_logprobs)


def read_engine_fields(body: CompletionBody, info: EngineInfo, sampling: Sampling) -> Sampling:
    """Returns the sampling parameters with those that only vLLM's API has. Raises `ApiError` 400."""
    stop_ids = tuple(body.stop_token_ids or ())
    for index, token in enumerate(stop_ids):
        if token >= info.vocab_size:
            message = f"the model has no token {token}, only 0 to {info.vocab_size - 1}."
            raise invalid_value(f"stop_token_ids[{index}]", f"Invalid 'stop_token_ids': {message}")
    min_tokens, limit = body.min_tokens or 0, sampling.max_tokens
    if limit is not None and min_tokens > limit:
        raise invalid_value("min_tokens", f"Invalid 'min_tokens': it must not exceed 'max_tokens', which is {limit}.")
    return structs.replace(sampling, stop_ids=stop_ids, min_tokens=min_tokens, ignore_eos=bool(body.ignore_eos))


def read_truncation(kept: int | None, info: EngineInfo, sampling: Sampling) -> int | None:
    """Returns the number of tokens to keep of each prompt for `truncate_prompt_tokens`; None for all."""
    if kept != -1:
        return kept
    return max(info.max_model_len - (sampling.max_tokens or 1), 1)


def check_best_of(body: CompletionLike) -> int:
    """Returns the number of choices to sample for each prompt. Raises `ApiError` 400 if it is less than `n`."""
    n = body.n or 1
    best_of = body.best_of or n
    if best_of < n:
        raise invalid_value("best_of", f"Invalid 'best_of': it must be at least 'n', which is {n}.")
    if body.stream and best_of > n:
        raise invalid_value("best_of", "'best_of' greater than 'n' is not allowed when 'stream' is enabled.")
    return best_of


def check_prompt_logprobs(body: CompletionBody) -> int | None:
    """Returns `prompt_logprobs`. Raises `ApiError` 400 if it is combined with `stream`."""
    if body.prompt_logprobs is not None and body.stream:
        raise invalid_value("prompt_logprobs", "'prompt_logprobs' is not allowed when 'stream' is enabled.")
    return body.prompt_logprobs


def read_priority(body: CompletionBody) -> int:
    """Returns the engine's priority. The engine runs higher ones first, vLLM's API lower ones."""
    return -(body.priority or 0)


def read_tier(body: ResponsesBody | ChatBody, capabilities: Capabilities) -> str:
    """Returns the service tier that a request gets: `flex` if it asks for that and the engine has priorities."""
    return "flex" if body.service_tier == "flex" and capabilities.priority else "default"


def tier_priority(tier: str | None) -> int:
    """Returns the engine's priority of a service tier."""
    return FLEX_PRIORITY if tier == "flex" else 0


def response_priority(tier: str | None, options: BackgroundOptions | None, capabilities: Capabilities) -> int:
    """Returns the engine's priority of a response: the lower one of its tier and its completion window."""
    is_late = options is not None and options.completion_window in LATE_WINDOWS and capabilities.priority
    return min(tier_priority(tier), BATCH_PRIORITY if is_late else 0)


def check_stream_options(body: ResponsesBody | CompletionLike) -> None:
    """Raises `ApiError` 400 if `stream_options` is sent without `stream`."""
    if body.stream_options is not None and not body.stream:
        raise invalid_value(
            "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        )


def base_response(
    body: ResponsesBody | CompletionLike | MessagesBody,
    chosen: Sampling,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  # it is frozen
    **more: Any,
) -> Response:
    """Returns the Response before the first event, which echoes the request. `more` has one endpoint's own fields."""
    fields: dict[str, Any] = {"text": PLAIN_TEXT_CONFIG, "reasoning": ReasoningConfig(), "metadata": {}, **more}
    if isinstance(body, ResponsesBody | ChatBody):
        fields |= _echo_labels(body, capabilities)
    return Response(
        id="",
        created_at=0,
        model=str(body.model),
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        presence_penalty=chosen.presence_penalty,
        frequency_penalty=chosen.frequency_penalty,
        top_logprobs=chosen.top_logprobs or 0,
        **fields,
    )


def _echo_labels(body: ResponsesBody | ChatBody, capabilities: Capabilities) -> dict[str, Any]:
    return {
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "service_tier": read_tier(body, capabilities),
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "user": UNSET if body.user is None else body.user,
    }
