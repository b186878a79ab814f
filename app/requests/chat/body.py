"""Bodies of chat completions, of their changes, and of `/tokenize` and `/detokenize`."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from antiphon.app.requests.fields import Accepted, Honoured, RequestBody, refused
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.common import (
    CacheOptionsField,
    CacheRetentionField,
    Label64,
    Label128,
    Label256,
    Metadata,
    ModerationField,
    NonNegativeInt,
    NumChoices,
    Objects,
    ParallelCallsField,
    PositiveInt,
    ServiceTier,
    Text,
    ToolChoiceField,
    ToolObjects,
    ToolsField,
    TopLogprobs,
    Verbosity,
)
from antiphon.app.requests.fields.prompt import (
    ContinueField,
    DocumentsField,
    EffortField,
    GenerationPromptField,
    SpecialTokensField,
    TemplateField,
    VariablesField,
)
from antiphon.app.requests.fields.vllm import CompletionBody, ResponseFormat, UsageOptions, check_truncation
from antiphon.events.tools import ShortName


class NamedFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """The deprecated choice of a function."""

    name: ShortName


class ChatLocation(Struct, frozen=True, kw_only=True):
    """A place."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class ChatUserLocation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the user is, about."""

    type: Literal["approximate"]
    approximate: ChatLocation


class WebSearchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of web searches."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: ChatUserLocation | None = None


class ChatBody(CompletionBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    tools: ToolsField = None
    tool_choice: ToolChoiceField = None
    parallel_tool_calls: ParallelCallsField = None
    prompt_cache_retention: CacheRetentionField = None
    prompt_cache_options: CacheOptionsField = None
    moderation: ModerationField = None
    service_tier: Honoured[ServiceTier] = None
    """`flex`: requests of other tiers run first, if the model's engine has priorities. Every other value is `default`,
    since no client overtakes another. If `priority` is set, too, the lower one counts."""
    safety_identifier: Accepted[Label128] = None
    """At most 128 characters."""
    prompt_cache_key: Accepted[Label64] = None
    """At most 64 characters. Does not affect caching: requests with one API key share common prefixes in any case."""
    metadata: Honoured[Metadata] = None
    """At most 16 pairs; keys of up to 64 characters, values of up to 512. Kept with a completion that is stored."""
    messages: Honoured[Objects] = None
    """Required. The roles are `developer`, `system`, `user`, `assistant` and `tool`. A `name` precedes the text of its
    message as `name: `; that of a tool message is accepted."""
    max_completion_tokens: Honoured[PositiveInt] = None
    """1 to 2147483647; includes reasoning tokens."""
    max_tokens: Honoured[PositiveInt] = None
    """Older name of `max_completion_tokens`. Send only one of them."""
    n: Honoured[NumChoices] = None
    """1 to 128 choices. Choice i, counted from 0, is sampled with `seed` + i."""
    logprobs: Honoured[bool] = None
    """Returns log probabilities of the text for the user."""
    top_logprobs: Honoured[TopLogprobs] = None
    """0 to 20; only with `logprobs`."""
    stream_options: Honoured[UsageOptions] = None
    """Only with `stream`. `include_usage` adds a last chunk with the usage; with `continuous_usage_stats`, which is not
    in OpenAI's API, every chunk has the usage so far. `include_obfuscation` pads every chunk."""
    response_format: Honoured[ResponseFormat] = None
    """`text`, `json_object` or `json_schema`; enforced during sampling in the text for the user. `json_object` may have
    a `schema`."""
    verbosity: Accepted[Verbosity] = None
    """No effect: no supported dialect has a setting for it."""
    prediction: Accepted[dict[str, Any]] = None
    """A hint to speed up decoding; the reply is the same."""
    store: Honoured[bool] = None
    """Default false. True: the completion, with all its choices, and its messages are stored."""
    modalities: Honoured[list[Literal["text", "audio"]]] = None
    """Only `text`."""
    audio: Annotated[Any, refused("Audio output is not supported.")] = None
    functions: Honoured[ToolObjects] = None
    """Deprecated: use `tools`. The reply has at most one call, as `function_call`."""
    function_call: Honoured[Literal["none", "auto"] | NamedFunction] = None
    """Deprecated: use `tool_choice`. `none`, `auto` or the name of a function."""
    web_search_options: Honoured[WebSearchOptions] = None
    """Offers web searches, as the tool `web_search` does. 400 unless the operator maps it (`--hosted web_search=…`)."""
    echo: Honoured[bool] = None
    """Not in OpenAI's API. The text begins with that of the last message if that is the assistant's, as with
    `continue_final_message`."""
    skip_special_tokens: Honoured[bool] = None
    """Not in OpenAI's API. Default: true. False: special tokens in the output are part of the text; 400 for models
    whose dialect has calls, because special tokens are its syntax."""
    truncate_prompt_tokens: Honoured[Annotated[int, Checked(check_truncation)]] = None
    """Not in OpenAI's API. Keeps this number of tokens at the prompt's end; -1: as many as fit with the token limit.
    The beginning of the chat template's own text may be among those that are left out."""
    return_token_ids: Honoured[bool] = None
    """Not in OpenAI's API. The reply has `prompt_token_ids`, in the stream once, and each choice `token_ids`: all
    tokens that were generated, also those of reasoning and calls. They are sent only on request. A choice's
    `stop_reason` is always sent, in the stream with the finish reason: the stop string or the id of `stop_token_ids`
    that ended the text, else null."""
    reasoning_effort: EffortField = None
    chat_template_kwargs: VariablesField = None
    chat_template: TemplateField = None
    documents: DocumentsField = None
    add_generation_prompt: GenerationPromptField = None
    continue_final_message: ContinueField = None
    add_special_tokens: SpecialTokensField = None


class StoredCompletionBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions/{completion_id}`."""

    metadata: Honoured[Metadata] = None
    """Required, but may be null. Replaces the metadata. At most 16 pairs; keys of up to 64 characters, values of up to
    512."""


class TokenizeBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /tokenize`, with the shape of vLLM's endpoint."""

    model: Honoured[Label256] = None
    """A name from `GET /v1/models`. Default: the first one."""
    prompt: Honoured[Text] = None
    """The text. Required without `messages`."""
    messages: Honoured[Objects] = None
    """A chat, as in `POST /v1/chat/completions`. Required without `prompt`."""
    tools: ToolsField = None
    reasoning_effort: EffortField = None
    chat_template_kwargs: VariablesField = None
    chat_template: TemplateField = None
    documents: DocumentsField = None
    add_generation_prompt: GenerationPromptField = None
    continue_final_message: ContinueField = None
    add_special_tokens: Honoured[bool] = None
    """Adds the tokens that the tokenizer puts around every text. Default: true for `prompt`, and false for `messages`,
    since a chat template writes special tokens itself."""
    return_token_strs: Honoured[bool] = None
    """Returns the text of each token, too, in `token_strs`."""
    mm_processor_kwargs: Annotated[Any, refused("Options of image processors are not supported.")] = None


class DetokenizeBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /detokenize`, with the shape of vLLM's endpoint."""

    model: Honoured[Label256] = None
    """A name from `GET /v1/models`. Default: the first one."""
    tokens: Honoured[list[NonNegativeInt]] = None
    """Required. Token ids of the vocabulary."""


CHAT_PROMPT_FIELDS = tuple(
    """tools reasoning_effort chat_template_kwargs chat_template documents add_generation_prompt
    continue_final_message""".split()
)
"""Fields of `TokenizeBody` that are only allowed with `messages`."""
