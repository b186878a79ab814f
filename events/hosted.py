"""Output items of tools that a server runs itself.

This server runs none of them; they are here so that a stream recorded elsewhere decodes, and so that a client
may resend its history. Their payloads are kept as they are (`Any`), never interpreted.
Source: the types of the openai SDK.
"""

from typing import Any

from msgspec import UNSET

from antiphon.events.items import Item


class FileSearchCall(Item, frozen=True, kw_only=True, tag="file_search_call"):
    """A search over stored files, run by the server."""

    queries: Any
    status: str
    results: Any = UNSET


class WebSearchCall(Item, frozen=True, kw_only=True, tag="web_search_call"):
    """A search of the web, run by the server."""

    action: Any
    status: str


class ComputerCall(Item, frozen=True, kw_only=True, tag="computer_call"):
    """An action for a screen."""

    call_id: str
    pending_safety_checks: Any
    status: str
    action: Any = UNSET
    actions: Any = UNSET


class ComputerCallOutput(Item, frozen=True, kw_only=True, tag="computer_call_output"):
    """What the screen showed."""

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
    """What such a program returned."""

    call_id: str
    result: str
    status: str


class ToolSearchCall(Item, frozen=True, kw_only=True, tag="tool_search_call"):
    """A search among tools that were not offered at once."""

    arguments: Any
    call_id: Any = UNSET
    execution: str
    status: str
    created_by: Any = UNSET


class ToolSearchOutput(Item, frozen=True, kw_only=True, tag="tool_search_output"):
    """The tools that were found."""

    call_id: Any = UNSET
    execution: str
    status: str
    tools: Any
    created_by: Any = UNSET


class AdditionalTools(Item, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that join the offer from here on."""

    role: str
    tools: Any


class ImageGenerationCall(Item, frozen=True, kw_only=True, tag="image_generation_call"):
    """An image being made."""

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
    """Code run in a container of the server."""

    code: Any = UNSET
    container_id: str
    outputs: Any = UNSET
    status: str


class LocalShellCall(Item, frozen=True, kw_only=True, tag="local_shell_call"):
    """A command for the client's shell (older form)."""

    action: Any
    call_id: str
    status: str


class LocalShellCallOutput(Item, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """What that command printed."""

    output: str
    status: Any = UNSET


class ShellCall(Item, frozen=True, kw_only=True, tag="shell_call"):
    """Commands for a shell."""

    action: Any
    call_id: str
    environment: Any = UNSET
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET


class ShellCallOutput(Item, frozen=True, kw_only=True, tag="shell_call_output"):
    """What those commands printed."""

    call_id: str
    max_output_length: Any = UNSET
    output: Any
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET


class ApplyPatchCall(Item, frozen=True, kw_only=True, tag="apply_patch_call"):
    """A change to a file."""

    call_id: str
    operation: Any
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET


class ApplyPatchCallOutput(Item, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    """What became of the change."""

    call_id: str
    status: str
    caller: Any = UNSET
    created_by: Any = UNSET
    output: Any = UNSET


class McpCall(Item, frozen=True, kw_only=True, tag="mcp_call"):
    """A call of a tool on an MCP server."""

    arguments: str
    name: str
    server_label: str
    approval_request_id: Any = UNSET
    error: Any = UNSET
    output: Any = UNSET
    status: Any = UNSET


class McpListTools(Item, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """The tools an MCP server has."""

    server_label: str
    tools: Any
    error: Any = UNSET


class McpApprovalRequest(Item, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """A question whether an MCP call may run."""

    arguments: str
    name: str
    server_label: str


class McpApprovalResponse(Item, frozen=True, kw_only=True, tag="mcp_approval_response"):
    """The answer to that question."""

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
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | McpCall
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
)
