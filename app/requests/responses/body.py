"""Bodies of `/v1/responses`, of its compaction, and of conversations."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, structs

from antiphon.app.requests.fields import Accepted, Echoed, Honoured, RequestBody, refused
from antiphon.app.requests.fields.common import (
    CacheOptions,
    CacheRetentionField,
    Effort,
    JsonObjectFormat,
    JsonSchemaSettings,
    Label64,
    Label128,
    Label256,
    Metadata,
    ModerationField,
    Objects,
    ParallelCallsField,
    PlainTextFormat,
    PositiveInt,
    SampledBody,
    ServiceTier,
    Text,
    ToolChoiceField,
    ToolsField,
    TopLogprobs,
    Verbosity,
)

MAX_ADDED_ITEMS = 20
"""Maximum number of items in one request that adds items to a conversation."""
MIN_COMPACT_THRESHOLD = 1000
"""Smallest `compact_threshold`, as in OpenAI's API."""
RESPONSE_ID_PATTERN = re.compile(r"^resp_[A-Za-z0-9_-]+\Z")
"""An id in the body or in the path of a request."""
ResponseId = Annotated[str, Meta(max_length=128, pattern=RESPONSE_ID_PATTERN.pattern)]
ConversationId = Annotated[str, Meta(max_length=128, pattern=r"^conv_[A-Za-z0-9_-]+\Z")]
Summary = Literal["auto", "concise", "detailed"]
Includable = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ReasoningSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of reasoning."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Label64 | None = None


class NamedSchemaFormat(
    JsonSchemaSettings, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """Text that matches a JSON Schema."""


AnyTextFormat = PlainTextFormat | JsonObjectFormat | NamedSchemaFormat


class TextSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the text for the user."""

    format: AnyTextFormat | None = None
    verbosity: Verbosity | None = None


class ResponsesStreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream of events."""

    include_obfuscation: bool | None = None
    reasoning_summary_delivery: Literal["auto", "sequential_cutoff"] | None = None


class ConversationReference(Struct, frozen=True, forbid_unknown_fields=True):
    """A conversation, named by an object."""

    id: ConversationId


class ResponsesCacheOptions(CacheOptions, frozen=True, forbid_unknown_fields=True):
    """Settings of the prompt cache, and what a request asks of it."""

    prewarm: bool | None = None
    comparison_response_id: Label128 | None = None


class BackgroundOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """When a background response must be complete."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: Label256 | None = None


class CompactionEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The number of tokens in a prompt above which the conversation is compacted."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=MIN_COMPACT_THRESHOLD)] | None = None


class ResponsesBody(SampledBody, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`."""

    tools: ToolsField = None
    tool_choice: ToolChoiceField = None
    parallel_tool_calls: ParallelCallsField = None
    prompt_cache_retention: CacheRetentionField = None
    prompt_cache_options: Honoured[ResponsesCacheOptions] = None
    """`prewarm`: the prompt is processed for a later request, and nothing is generated.
    `comparison_response_id`: the final Response has `prompt_cache_diagnostics`, which say how much of the prompt the
    compared response has computed, and which setting differs first. `mode` and `ttl` are returned,
    and change nothing: every prompt is cached as long as there is room. So are the parts of the input that have a
    `prompt_cache_breakpoint`."""
    moderation: ModerationField = None
    service_tier: Honoured[ServiceTier] = None
    """`flex`: requests of other tiers run first, if the model's engine has priorities; the Response then returns
    `flex`. Every other value is `default`, since no client overtakes another."""
    metadata: Echoed[Metadata] = None
    """At most 16 pairs; keys of up to 64 characters, values of up to 512."""
    safety_identifier: Echoed[Label128] = None
    """At most 128 characters."""
    prompt_cache_key: Echoed[Label64] = None
    """At most 64 characters. Does not affect caching: requests with one API key share common prefixes in any case."""
    input: Honoured[Text | Objects] = None
    """A string or an array of items (see below). Required unless `previous_response_id` or `conversation` is set."""
    instructions: Honoured[Text] = None
    """Placed before the input as the first system text."""
    max_output_tokens: Honoured[PositiveInt] = None
    """1 to 2147483647; includes reasoning tokens."""
    max_tool_calls: Honoured[PositiveInt] = None
    """At least 1; the turn ends after this number of complete calls."""
    top_logprobs: Honoured[TopLogprobs] = None
    """0 to 20; a value above 0 turns log probabilities on."""
    include: Honoured[list[Includable]] = None
    """`message.output_text.logprobs` turns log probabilities on. `reasoning.encrypted_content` adds an encrypted copy
    of the reasoning that the client can send back. `code_interpreter_call.outputs`, `file_search_call.results` and
    `web_search_call.action.sources` show what tools of the server returned, which is left out else, in every reply; the
    model reads it in any case. The other values have no effect: they concern lists of items and tools that run
    elsewhere."""
    reasoning: Honoured[ReasoningSettings] = None
    """`effort` is applied when the prompt is rendered. `summary` is echoed, but no summary is generated. `context` and
    `mode` are accepted: the model's template decides how reasoning that the client sends back is rendered."""
    text: Honoured[TextSettings] = None
    """`format`: `text`, `json_object` or `json_schema`; enforced during sampling in the text for the user, not in
    reasoning. `verbosity` is echoed."""
    stream_options: Honoured[ResponsesStreamOptions] = None
    """Only with `stream`. `include_obfuscation` pads every delta; `reasoning_summary_delivery` is accepted."""
    store: Honoured[bool] = None
    """Default true: the response and its input are stored. False: no part of them is ever written to the store."""
    truncation: Honoured[Literal["auto", "disabled"]] = None
    """`disabled`: a prompt that does not fit returns 400. `auto`: the oldest items are left out, each as a whole."""
    client_metadata: Accepted[dict[str, str]] = None
    """A flat map of strings, sent by Codex."""
    background: Honoured[bool] = None
    """True: the reply is returned at once with status `queued`, and the turn runs whether or not a client reads it. Not
    with `store` false."""
    background_options: Honoured[BackgroundOptions] = None
    """`completion_window`: `2h` and `8h` need `background`, and exclude `stream`; the engine then runs the turn after
    those of all other requests, `flex` included. `soonest` changes nothing. `continuation_id` is accepted."""
    previous_response_id: Honoured[ResponseId] = None
    """Prepends the input and output items of that response and its predecessors. Instructions are not inherited."""
    conversation: Honoured[ConversationId | ConversationReference] = None
    """An id, or an object with an `id`. Prepends the conversation's items to `input`. The items of a stored turn are
    appended to the conversation when the turn ends as `completed` or `incomplete`. Not with `previous_response_id`."""
    prompt: Annotated[Any, refused("Stored prompt templates are not supported.")] = None
    context_management: Honoured[Annotated[list[CompactionEntry], Meta(max_length=1)]] = None
    """One entry, `{"type": "compaction", "compact_threshold": N}`: a prompt of more than N tokens is compacted first. N
    is at least 1000; without it, or if it is larger, it is 90 % of the context window."""
    image: Annotated[Any, refused("Image generation is not supported.")] = None
    request_country: Accepted[Label64] = None
    """A hint of Codex without effect here: this server has no rules by country."""
    access_programs: Annotated[Any, refused("Not supported by this server.")] = None


_COMPACT_NAMES = frozenset(
    """model input instructions previous_response_id prompt_cache_key prompt_cache_retention prompt_cache_options
    service_tier reasoning image tools parallel_tool_calls text""".split()
)
_compact_body: Any = msgspec.defstruct(
    "CompactBody",
    [(field.name, field.type, None) for field in structs.fields(ResponsesBody) if field.name in _COMPACT_NAMES],
    bases=(RequestBody,),
    namespace={"described_in": ResponsesBody},
    frozen=True,
    kw_only=True,
)
CompactBody: type[RequestBody] = _compact_body
"""Body of `POST /v1/responses/compact`, which is then read as that of a Responses request."""

NewItems = Annotated[Objects, Meta(max_length=MAX_ADDED_ITEMS)]


class NewConversationBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/conversations`, which may be empty."""

    items: Honoured[NewItems] = None
    """At most 20 items, as in `input` of a response."""
    metadata: Honoured[Metadata] = None
    """At most 16 pairs; keys of up to 64 characters, values of up to 512."""


class ConversationBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/conversations/{conversation_id}`."""

    metadata: Honoured[Metadata] = None
    """Required. Replaces the metadata. At most 16 pairs; keys of up to 64 characters, values of up to 512."""


class NewItemsBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/conversations/{conversation_id}/items`."""

    items: Honoured[NewItems] = None
    """Required. At most 20 items, as in `input` of a response."""
