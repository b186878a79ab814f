"""Schema of Anthropic messages: the events of a stream, and the complete message.

Keys that are `UNSET` are not sent. Source: the Messages API reference and the types of the anthropic SDK.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class WebCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_result_location"):
    """A web page as the source of `cited_text`, a part of the block's text."""

    cited_text: str
    url: str
    title: str | None
    encrypted_index: str = ""


class DocumentCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="search_result_location"):
    """A file as the source of the text before it. The model does not tell which part of the file it read."""

    cited_text: str = ""
    source: str
    title: str | None
    search_result_index: int = 0
    start_block_index: int = 0
    end_block_index: int = 0


BlockCitation = WebCitation | DocumentCitation


class ContentBlock(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A block of a message's content."""


class TextBlock(ContentBlock, frozen=True, kw_only=True, tag="text"):
    """Text for the user."""

    text: str = ""
    citations: tuple[BlockCitation, ...] | UnsetType = UNSET


class ThinkingBlock(ContentBlock, frozen=True, kw_only=True, tag="thinking"):
    """Reasoning. `signature` is the sealed text, which the client sends back unchanged."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(ContentBlock, frozen=True, kw_only=True, tag="tool_use"):
    """A call of a tool. `input` is the JSON object that the model wrote, byte for byte."""

    id: str
    name: str
    input: msgspec.Raw | dict[str, Any]


class McpToolUseBlock(ContentBlock, frozen=True, kw_only=True, tag="mcp_tool_use"):
    """A call of an MCP server's tool, which this server runs."""

    id: str
    name: str
    server_name: str
    input: msgspec.Raw | dict[str, Any]


class McpToolResultBlock(ContentBlock, frozen=True, kw_only=True, tag="mcp_tool_result"):
    """The output of an MCP call, or why it has failed."""

    tool_use_id: str
    is_error: bool
    content: tuple[TextBlock, ...]


class ServerToolUseBlock(ContentBlock, frozen=True, kw_only=True, tag="server_tool_use"):
    """A web search, a web page that is read, or code, which this server runs."""

    id: str
    name: Literal["web_search", "web_fetch", "code_execution"]
    input: msgspec.Raw | dict[str, Any]


class FoundPage(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_result"):
    """A page that a web search has found. Its text is not kept, and its title is its URL: items have no titles."""

    url: str
    title: str
    encrypted_content: str = ""
    page_age: str | None = None


class SearchError(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_tool_result_error"):
    """A web search has failed."""

    error_code: str = "unavailable"


class SearchResultBlock(ContentBlock, frozen=True, kw_only=True, tag="web_search_tool_result"):
    """The pages that a web search has found."""

    tool_use_id: str
    content: tuple[FoundPage, ...] | SearchError


class PlainTextSource(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """The text of a document."""

    media_type: Literal["text/plain"] = "text/plain"
    data: str = ""


class PageDocument(Struct, frozen=True, kw_only=True, tag_field="type", tag="document"):
    """A page as a document."""

    source: PlainTextSource = PlainTextSource()
    title: str | None = None
    citations: None = None


class FetchedPage(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_fetch_result"):
    """A page that was read. Its text is left out: only the model reads it."""

    url: str
    content: PageDocument = PageDocument()
    retrieved_at: str | None = None


class FetchError(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_fetch_tool_result_error"):
    """A page could not be read."""

    error_code: str = "unavailable"


class FetchResultBlock(ContentBlock, frozen=True, kw_only=True, tag="web_fetch_tool_result"):
    """A page that was read."""

    tool_use_id: str
    content: FetchedPage | FetchError


class CodeOutput(Struct, frozen=True, kw_only=True, tag_field="type", tag="code_execution_result"):
    """The output of code: in `stderr` if it has failed."""

    stdout: str
    stderr: str
    return_code: int
    content: tuple[()] = ()


class CodeResultBlock(ContentBlock, frozen=True, kw_only=True, tag="code_execution_tool_result"):
    """The output of code."""

    tool_use_id: str
    content: CodeOutput


ResultBlock = McpToolResultBlock | SearchResultBlock | FetchResultBlock | CodeResultBlock
CallBlock = ToolUseBlock | McpToolUseBlock | ServerToolUseBlock
MessageBlock = TextBlock | ThinkingBlock | CallBlock | ResultBlock


class BlockDelta(Struct, frozen=True, kw_only=True, tag_field="type"):
    """New content of a block."""


class TextBlockDelta(BlockDelta, frozen=True, kw_only=True, tag="text_delta"):
    """A delta of text."""

    text: str


class ThinkingBlockDelta(BlockDelta, frozen=True, kw_only=True, tag="thinking_delta"):
    """A delta of reasoning."""

    thinking: str


class SignatureDelta(BlockDelta, frozen=True, kw_only=True, tag="signature_delta"):
    """The whole signature of a thinking block, just before its end."""

    signature: str


class InputJsonDelta(BlockDelta, frozen=True, kw_only=True, tag="input_json_delta"):
    """A delta of the JSON text of a call's input."""

    partial_json: str


class CitationsDelta(BlockDelta, frozen=True, kw_only=True, tag="citations_delta"):
    """One more citation of a text block."""

    citation: BlockCitation


class ServerToolCounts(Struct, frozen=True, kw_only=True):
    """Numbers of searches and of pages that did not fail."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Token counts. `input_tokens` leaves out the tokens that a cache held: the prompt is the sum of all three."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    service_tier: Literal["standard"] = "standard"
    server_tool_use: ServerToolCounts | UnsetType = UNSET
    """Sent if the server has run web searches."""


class AnthropicMessage(Struct, frozen=True, kw_only=True):
    """A message; without content and stop reason in `message_start`."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[MessageBlock, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event of a stream; its type is also the name of its frame."""


class MessageStart(MessageEvent, frozen=True, kw_only=True, tag="message_start"):
    """The engine has admitted the request."""

    message: AnthropicMessage


class Ping(MessageEvent, frozen=True, kw_only=True, tag="ping"):
    """Keeps a silent stream open."""


class BlockStart(MessageEvent, frozen=True, kw_only=True, tag="content_block_start"):
    """The start of block number `index`, empty but for its id and name."""

    index: int
    content_block: MessageBlock


class BlockUpdate(MessageEvent, frozen=True, kw_only=True, tag="content_block_delta"):
    """New content of block number `index`."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta | CitationsDelta


class BlockStop(MessageEvent, frozen=True, kw_only=True, tag="content_block_stop"):
    """The end of block number `index`. A call that was cut off has none, so that no client runs it."""

    index: int


class StopDetails(Struct, frozen=True, kw_only=True):
    """The reason for the end of a message, and the stop sequence that ended it, if one did."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageUpdate(MessageEvent, frozen=True, kw_only=True, tag="message_delta"):
    """The stop reason and the final usage, after the last block."""

    delta: StopDetails
    usage: MessageUsage


class MessageStop(MessageEvent, frozen=True, kw_only=True, tag="message_stop"):
    """The end of the stream."""


class MessageFault(MessageEvent, frozen=True, kw_only=True, tag="error"):
    """A failure after the stream began. It is the last event."""

    error: dict[str, str]


AnyMessageEvent = (
    MessageStart | Ping | BlockStart | BlockUpdate | BlockStop | MessageUpdate | MessageStop | MessageFault
)
