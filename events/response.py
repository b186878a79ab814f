"""The Response object, which every lifecycle event carries and every reply ends with.

Every key but the last ones is present in every snapshot, null if it has no value yet: clients check for
that. Settings that are only echoed (`tools`, `tool_choice`, `text`) are kept as plain JSON values.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.events.builtin_calls import ApplyPatchCall, LocalShellCall, ShellCall
from antiphon.events.hosted import HostedItem
from antiphon.events.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
)

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

OutputItem = (
    Message
    | Reasoning
    | FunctionCall
    | CustomToolCall
    | ShellCall
    | ApplyPatchCall
    | LocalShellCall
    | FunctionCallOutput
    | CustomToolCallOutput
    | Compaction
    | HostedItem
)


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """Numbers of prompt tokens read from, and written to, a prefix cache."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """Number of generated tokens that are reasoning."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of the engine. `total_tokens` is the sum of input and output tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """The reason for an early end: here `max_output_tokens` or `content_filter`; other servers have more."""

    reason: str | None = None


class ResponseError(Struct, frozen=True, kw_only=True):
    """The reason for a failure."""

    code: str
    message: str


class ReasoningConfig(Struct, frozen=True, kw_only=True):
    """The requested reasoning effort and summary, echoed."""

    effort: str | None = None
    summary: str | None = None


class ConversationRef(Struct, frozen=True, kw_only=True):
    """The conversation that a response belongs to."""

    id: str


class PromptCacheOptions(Struct, frozen=True, kw_only=True):
    """The requested options of the prompt cache, with the API's defaults."""

    mode: str = "implicit"
    ttl: str = "30m"
    comparison_response_id: str | UnsetType = UNSET


CacheMissReason = Literal[
    "model_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "context_compacted",
    "input_changed",
]
"""First setting in which a request differs from the one that it was compared with."""


class CacheHit(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_hit"):
    """The prompt begins with all that was computed for the compared response, and it was read from the cache."""


class CacheMiss(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The prompt differs from the compared response after `comparison_reusable_tokens` tokens."""

    reason: CacheMissReason
    cache_missed_tokens: int
    comparison_reusable_tokens: int


class ComparisonNotFound(Struct, frozen=True, kw_only=True, tag_field="type", tag="comparison_response_not_found"):
    """There is no response with this id."""


class CacheUnavailable(Struct, frozen=True, kw_only=True, tag_field="type", tag="unavailable"):
    """The tokens of the compared response are not known any more, or the cache does not have them any more."""


PromptCacheDiagnostics = CacheHit | CacheMiss | ComparisonNotFound | CacheUnavailable


class Response(Struct, frozen=True, kw_only=True):
    """One turn of a model. The state machine builds it, item by item, while it emits the events.

    `created_at` and `completed_at` are whole seconds since 1970. `output` holds the very items of the
    `output_item.done` events and, last, the item that was still open if the turn broke off.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int | float
    completed_at: int | float | None = None
    status: ResponseStatus = "in_progress"
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None = None
    instructions: str | list[Any] | None = None
    output: tuple[OutputItem, ...] = ()
    error: ResponseError | None = None
    tools: tuple[Any, ...] = ()
    tool_choice: Any = "auto"
    truncation: str | None = "disabled"
    parallel_tool_calls: bool = True
    text: Any = None
    top_p: float | None = 1.0
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    top_logprobs: int | None = 0
    temperature: float | None = 1.0
    reasoning: ReasoningConfig | None = None
    usage: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool = True
    background: bool = False
    service_tier: str | None = "default"
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    conversation: ConversationRef | None | UnsetType = UNSET
    user: str | None | UnsetType = UNSET
    prompt_cache_options: PromptCacheOptions | None | UnsetType = UNSET
    prompt_cache_diagnostics: PromptCacheDiagnostics | None | UnsetType = UNSET
