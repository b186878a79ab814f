"""Bodies of `/v1/messages` and `/v1/messages/count_tokens`."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.app.errors import invalid_value
from antiphon.app.requests.fields import Accepted, Honoured, RequestBody, refused
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.common import (
    MAX_INTEGER,
    Fraction,
    Label64,
    Label256,
    Label512,
    Objects,
    PositiveInt,
    StopString,
    Text,
    ToolObjects,
)
from antiphon.events.tools import ServerLabel, ToolName

MIN_THINKING_TOKENS = 1024
MAX_STOP_SEQUENCES = 64
MAX_MCP_SERVERS = 8


class BlockBinding(Struct, frozen=True, forbid_unknown_fields=True):
    """The treatment of thinking that another server or model signed."""

    prefix_mismatch_behavior: Literal["error", "drop_block"] | None = None


class ThinkingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of reasoning."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=MIN_THINKING_TOKENS, le=MAX_INTEGER)] | None = None
    display: Literal["summarized", "omitted"] | None = None
    block_binding: BlockBinding | None = None


class JsonFormat(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """Text that matches a JSON Schema."""

    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class ToolChoiceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The choice of tools: whether one must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    disable_parallel_tool_use: bool | None = None
    name: ToolName | None = None


class McpToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tools of an MCP server are offered."""

    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServerBody(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="url"):
    """An MCP server."""

    name: ServerLabel
    url: str | None = None
    authorization_token: str | None = None
    tool_configuration: McpToolChoice | None = None

    def __repr__(self) -> str:
        """Returns no secret."""
        return f"McpServerBody({self.name})"


class CacheControl(Struct, frozen=True, forbid_unknown_fields=True):
    """A breakpoint of Anthropic's prompt cache."""

    type: Literal["ephemeral"] | None = None
    ttl: Literal["5m", "1h"] | None = None
    scope: Label64 | None = None


class ContextEdit(Struct, frozen=True):
    """A context edit. The only one is what the model's template does by itself."""

    type: Literal["clear_thinking_20251015"]


class ContextManagement(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of the context before the turn."""

    edits: list[ContextEdit] | None = None


class MessageLabels(Struct, frozen=True, forbid_unknown_fields=True):
    """Labels of a request."""

    user_id: Label512 | None = None


def _check_stop_sequences(value: list[str], path: str) -> None:
    for index, text in enumerate(value):
        if not text.strip():
            message = "each stop sequence must contain a character that is not a blank."
            raise invalid_value(f"{path}[{index}]", f"Invalid '{path}[{index}]': {message}")


class CountTokensBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`: what is part of the prompt."""

    model: Honoured[Label256] = None
    """Required. A name from `GET /v1/models`; any other name returns 404."""
    messages: Honoured[Objects] = None
    """Required. The roles are `user`, `assistant` and `system`. Text of the assistant's as the last message is
    continued, but not with `thinking`, and not by gpt-oss. Blocks: `text`, `image`, `document`, `search_result`,
    `tool_use`, `tool_result`, `thinking` and `redacted_thinking`, which must be signed by this server. Blocks of MCP
    calls, web searches, web pages and code are shown to the model as calls with outputs; those of Anthropic's
    other server tools are accepted and not shown."""
    system: Honoured[Text | Objects] = None
    """A string or text blocks. A first block that is one line `x-anthropic-billing-header: …`, as Claude Code sends it,
    is not part of the prompt: it differs in every session, so that no cached prompt would fit. The reply's header
    `x-antiphon-dropped` then names `system[0]`."""
    tools: Honoured[ToolObjects] = None
    """At most 128. Tools with an `input_schema`; `strict` is enforced during sampling. `mcp_toolset` chooses tools of
    `mcp_servers`. `web_search_…` and `code_execution_…` are run by this server if the operator maps `web_search` and
    `code_interpreter` (`--hosted`); Anthropic's other server tools are accepted and not offered to the model. Tools
    with a schema of Anthropic's own (`bash_…`, `text_editor_…`, `computer_…`, `memory_…`) are refused."""
    tool_choice: Honoured[ToolChoiceSettings] = None
    """`auto`, `any`, `tool` or `none`. Enforced in sampling. `disable_parallel_tool_use` ends the turn after one call.
    """
    thinking: Honoured[ThinkingSettings] = None
    """`disabled` turns reasoning off if the model can. `enabled` needs a `budget_tokens` of at least 1024, which is a
    hint. Without the field the model's own default applies. `display` `omitted` leaves the text out of the blocks;
    their signatures remain. `block_binding.prefix_mismatch_behavior`: thinking that this server did not sign for the
    API key is a 400 (`error`), or is left out of the prompt (`drop_block`), which is the default for Claude Code (its
    `User-Agent`). The reply's header `x-antiphon-dropped` names what was left out."""
    output_config: Honoured[OutputConfig] = None
    """`effort` is applied when the prompt is rendered. `format` is enforced during sampling in the text."""
    output_format: Honoured[JsonFormat] = None
    """Older name of `output_config.format`."""
    cache_control: Accepted[CacheControl] = None
    """A cache hint without effect here, also inside blocks."""
    context_management: Honoured[ContextManagement] = None
    """The only edit is `clear_thinking_20251015`: the model's template decides which earlier reasoning it shows."""
    mcp_servers: Honoured[Annotated[list[McpServerBody], Meta(max_length=MAX_MCP_SERVERS)]] = None
    """At most 8 servers, whose tools this server calls. One is the operator's (`--tool-server`) if its `url` is, or,
    without `url`, if its `name` is; others need `--mcp-allow`. `authorization_token` is sent to the server and kept
    nowhere. No call asks for an approval: a server for which the operator requires one (`--tool-approve`) is refused.
    """


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: Honoured[PositiveInt] = None
    """Required. 1 to 2147483647; includes reasoning tokens."""
    stream: Honoured[bool] = None
    """Sends server-sent events instead of one JSON object."""
    stop_sequences: Honoured[
        Annotated[Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)], Checked(_check_stop_sequences)]
    ] = None
    """At most 64. Only the text for the user is searched; a match is not returned. Ignored with a `format`."""
    temperature: Honoured[Fraction] = None
    """0 to 1; default: the model's own value. 0 is greedy decoding."""
    top_p: Honoured[Fraction] = None
    """0 to 1; default: the model's own value."""
    top_k: Honoured[Annotated[int, Meta(ge=0, le=1_000_000)]] = None
    """Samples from the k most likely tokens."""
    metadata: Accepted[MessageLabels] = None
    """`user_id` is a label without effect here."""
    service_tier: Accepted[Literal["auto", "standard_only"]] = None
    """There is only one tier, `standard`."""
    inference_geo: Accepted[Label64] = None
    """This server runs in one place."""
    container: Annotated[Any, refused("Containers are not supported.")] = None
    speed: Annotated[Any, refused("There is only one speed.")] = None
