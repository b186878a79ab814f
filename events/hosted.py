"""Output items of hosted tools: those that a server runs itself.

This server runs MCP tools, web searches, code and searches in files. The classes of the others exist so that a stream
recorded elsewhere decodes, and so that a client may resend its history. Their payloads are kept as they are (`Any`).
Source: the types of the openai SDK.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.events.items import Item


class McpExecutionError(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_execution_error"):
    """The tool itself reported an error. `content` is that of its result: parts as JSON objects."""

    content: Any


class McpProtocolError(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_protocol_error"):
    """The tool's server answered with a JSON-RPC error."""

    code: int
    message: str


class McpHttpError(Struct, frozen=True, kw_only=True, tag_field="type", tag="http_error"):
    """The tool's server could not be reached, did not answer in time, or answered with an HTTP status. `code`: it."""

    code: int
    message: str


McpCallError = McpExecutionError | McpProtocolError | McpHttpError


class FileSearchCall(Item, frozen=True, kw_only=True, tag="file_search_call"):
    """A search in stored files, run by the server."""

    queries: tuple[Any, ...] | None
    status: str
    results: tuple[Any, ...] | None | UnsetType = UNSET


class WebSearchCall(Item, frozen=True, kw_only=True, tag="web_search_call"):
    """A web search, run by the server. `action` is absent until the search has ended."""

    action: Any = UNSET
    status: str


class ComputerCall(Item, frozen=True, kw_only=True, tag="computer_call"):
    """An action on a computer screen."""

    call_id: str
    pending_safety_checks: Any
    status: str
    action: Any = UNSET
    actions: Any = UNSET


class ComputerCallOutput(Item, frozen=True, kw_only=True, tag="computer_call_output"):
    """The screenshot that a computer call returned."""

    call_id: str
    output: Any
    status: str
    acknowledged_safety_checks: Any = UNSET
    created_by: Any = UNSET


class Program(Item, frozen=True, kw_only=True, tag="program"):
    """A program that calls tools."""

    call_id: str
    code: str
    fingerprint: str


class ProgramOutput(Item, frozen=True, kw_only=True, tag="program_output"):
    """The result of a program that calls tools."""

    call_id: str
    result: str
    status: str


class ToolSearchCall(Item, frozen=True, kw_only=True, tag="tool_search_call"):
    """A search among tools that the model was not offered at first."""

    arguments: Any
    call_id: Any = UNSET
    execution: str
    status: str
    created_by: Any = UNSET


class ToolSearchOutput(Item, frozen=True, kw_only=True, tag="tool_search_output"):
    """The tools that a tool search found."""

    call_id: Any = UNSET
    execution: str
    status: str
    tools: tuple[Any, ...]
    created_by: Any = UNSET


class AdditionalTools(Item, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that the model is offered from this item on."""

    role: str
    tools: Any


class ImageGenerationCall(Item, frozen=True, kw_only=True, tag="image_generation_call"):
    """The generation of an image."""

    result: Any = UNSET
    status: str
    action: Any = UNSET
    background: Any = UNSET
    error: Any = UNSET
    output_format: Any = UNSET
    quality: Any = UNSET
    revised_prompt: Any = UNSET
    size: Any = UNSET
    svg_usage: Any = UNSET


class CodeInterpreterCall(Item, frozen=True, kw_only=True, tag="code_interpreter_call"):
    """Code that runs in a container of the server."""

    code: str | None | UnsetType = UNSET
    container_id: str
    outputs: tuple[Any, ...] | None | UnsetType = UNSET
    status: str


class LocalShellCallOutput(Item, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """The output of a local shell command."""

    output: str
    status: Any = UNSET


class ShellCallOutput(Item, frozen=True, kw_only=True, tag="shell_call_output"):
    """The output of shell commands."""

    call_id: str
    max_output_length: Any = UNSET
    output: Any
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET


class ApplyPatchCallOutput(Item, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    """The outcome of a patch."""

    call_id: str
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET
    output: Any = UNSET


class McpCall(Item, frozen=True, kw_only=True, tag="mcp_call"):
    """A call of an MCP server's tool."""

    arguments: str
    name: str
    server_label: str
    approval_request_id: str | None | UnsetType = UNSET
    error: McpCallError | str | None | UnsetType = UNSET
    output: str | None | UnsetType = UNSET
    status: str | None | UnsetType = UNSET


class McpListTools(Item, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """The list of an MCP server's tools."""

    server_label: str
    tools: tuple[Any, ...]
    error: Any = UNSET
    left_out: tuple[Any, ...] | UnsetType = UNSET
    """Tools that the request allows and that cannot be offered, each with its `name` and the `reason`."""


class McpApprovalRequest(Item, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """A request to approve an MCP call."""

    arguments: str
    name: str
    server_label: str


class McpApprovalResponse(Item, frozen=True, kw_only=True, tag="mcp_approval_response"):
    """The reply to an MCP approval request."""

    approval_request_id: str
    approve: bool
    reason: Any = UNSET


HostedItem = (
    FileSearchCall
    | WebSearchCall
    | ComputerCall
    | ComputerCallOutput
    | Program
    | ProgramOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ImageGenerationCall
    | CodeInterpreterCall
    | LocalShellCallOutput
    | ShellCallOutput
    | ApplyPatchCallOutput
    | McpCall
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
)

ServerCallItem = McpCall | WebSearchCall | CodeInterpreterCall | FileSearchCall
"""Calls that the server itself runs."""
