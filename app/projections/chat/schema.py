"""Schema of chat completions: the chunks of a stream, and the complete reply.

Keys that are `UNSET` are not sent. A tool call has its id, type and name in its first fragment only, and the role is in
the first chunk only, because clients concatenate values that are repeated.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.app.projections.prompt_logprobs import PromptLogprobs
from antiphon.events.items import Logprob
from antiphon.events.response import Usage

ChatFinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


class FunctionFragment(Struct, frozen=True, kw_only=True):
    """A function's name, or a part of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomFragment(Struct, frozen=True, kw_only=True):
    """A custom tool's name, or a part of its input."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class CallFragment(Struct, frozen=True, kw_only=True):
    """A fragment of tool call number `index`; in a complete message, the whole call, without the index."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionFragment | UnsetType = UNSET
    custom: CustomFragment | UnsetType = UNSET


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a choice's text."""

    content: tuple[Logprob, ...] | None = None
    refusal: tuple[Logprob, ...] | None = None


class FoundPassage(Struct, frozen=True, kw_only=True):
    """A page or a passage that a search has found."""

    title: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    score: float | UnsetType = UNSET


class FoundResults(Struct, frozen=True, kw_only=True):
    """The results of a search."""

    results: tuple[FoundPassage, ...]


class ExecutedTool(Struct, frozen=True, kw_only=True):
    """Call number `index` that the server ran, whole. The form is Groq's; `name`, `server_label` and `error` are not.

    `output` is null for a call that has none.
    """

    index: int
    type: Literal["mcp", "web_search", "code_interpreter", "file_search"]
    name: str
    server_label: str | UnsetType = UNSET
    arguments: str
    """JSON, as the model wrote it."""
    output: str | None
    search_results: FoundResults | UnsetType = UNSET
    error: str | UnsetType = UNSET
    """Why the call has failed."""


class ChatUrlCitation(Struct, frozen=True, kw_only=True):
    """A web page as the source of the characters of `content` from `start_index` up to `end_index`."""

    url: str
    title: str
    start_index: int
    end_index: int


class ChatAnnotation(Struct, frozen=True, kw_only=True):
    """An annotation of the text."""

    type: Literal["url_citation"] = "url_citation"
    url_citation: ChatUrlCitation


class ChatDelta(Struct, frozen=True, kw_only=True):
    """New content of a choice. Of the two names of reasoning, one is sent."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CallFragment, ...] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET
    """The call, if the request has the deprecated `functions`."""
    executed_tools: tuple[ExecutedTool, ...] | UnsetType = UNSET
    """A call that the server ran, once it has ended."""
    annotations: tuple[ChatAnnotation, ...] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """The part of a chunk that belongs to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: int | str | None | UnsetType = UNSET
    """Stop string or token id of the request that ended the text; sent with the finish reason."""
    token_ids: tuple[int, ...] | UnsetType = UNSET


class TokenDetails(Struct, frozen=True, kw_only=True):
    """Prompt tokens read from, and written to, a prefix cache."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """Generated tokens that were reasoning."""

    reasoning_tokens: int = 0


class ChatUsage(Struct, frozen=True, kw_only=True):
    """Usage with the field names of chat completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokenDetails
    completion_tokens_details: CompletionDetails


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream. If usage was requested, `usage` is null before the last chunk; otherwise it is absent."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: ChatUsage | None | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatReplyMessage(Struct, frozen=True, kw_only=True):
    """The complete message: the sum of its deltas."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None
    annotations: tuple[ChatAnnotation, ...] = ()
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CallFragment, ...] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET
    """The call, if the request has the deprecated `functions`."""
    executed_tools: tuple[ExecutedTool, ...] | UnsetType = UNSET
    """The calls that the server ran."""


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One choice of a complete reply."""

    index: int
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """A complete reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage | None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


def chat_usage(usages: list[Usage]) -> ChatUsage | None:
    """Returns the usage of all choices together; None if `usages` is empty. The shared prompt is counted once."""
    if not usages:
        return None
    prompt = usages[0].input_tokens
    completion = sum(usage.output_tokens for usage in usages)
    details = usages[0].input_tokens_details
    return ChatUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=TokenDetails(
            cached_tokens=details.cached_tokens, cache_write_tokens=details.cache_write_tokens
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=sum(usage.output_tokens_details.reasoning_tokens for usage in usages)
        ),
    )
