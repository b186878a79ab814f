"""Client input: items of hosted tools, which clients send back with the rest of a conversation.

This server shows them to the model as calls with outputs, whichever server ran the tools.
"""

from typing import Any

from msgspec import Struct

from antiphon.events.base import InputItem


class InputHostedItem(InputItem, frozen=True, kw_only=True):
    """An item of a tool that a server ran, which the model reads."""


class InputMcpCall(InputHostedItem, frozen=True, kw_only=True, tag="mcp_call"):
    """An earlier call of an MCP server's tool. `output` is None for a call that has failed or did not end."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | dict[str, Any] | None = None
    """The old form is a text."""
    approval_request_id: str | None = None
    status: str | None = None


class InputMcpList(InputHostedItem, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """An earlier list of an MCP server's tools, each a JSON object."""

    server_label: str
    tools: tuple[dict[str, Any], ...] = ()
    error: str | dict[str, Any] | None = None


class InputApprovalRequest(InputHostedItem, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """An earlier request to approve an MCP call. Its response refers to its id."""

    id: str
    server_label: str
    name: str
    arguments: str


class InputApprovalResponse(InputHostedItem, frozen=True, kw_only=True, tag="mcp_approval_response"):
    """The user's answer to a request to approve an MCP call."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


class InputSearchAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The act of a web search: `search`, `open_page` or `find_in_page`."""

    type: str | None = None
    query: str | None = None
    queries: tuple[str, ...] | None = None
    sources: tuple[dict[str, Any], ...] | None = None
    url: str | None = None
    pattern: str | None = None


class InputWebSearchCall(InputHostedItem, frozen=True, kw_only=True, tag="web_search_call"):
    """An earlier web search."""

    action: InputSearchAction | None = None
    status: str | None = None


class InputCodeOutput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output of code: `logs`, or an `image` at a URL."""

    type: str | None = None
    logs: str | None = None
    url: str | None = None


class InputCodeCall(InputHostedItem, frozen=True, kw_only=True, tag="code_interpreter_call"):
    """Earlier code that ran in a container. `outputs` is None if the client did not ask for them."""

    code: str | None = None
    container_id: str | None = None
    outputs: tuple[InputCodeOutput, ...] | None = None
    status: str | None = None


class InputFileResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A passage of a file that a search found."""

    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None
    attributes: dict[str, Any] | None = None


class InputFileSearchCall(InputHostedItem, frozen=True, kw_only=True, tag="file_search_call"):
    """An earlier search in files. `results` is None if the client did not ask for them."""

    queries: tuple[str, ...] = ()
    results: tuple[InputFileResult, ...] | None = None
    status: str | None = None


AnyHostedInput = (
    InputMcpCall
    | InputMcpList
    | InputApprovalRequest
    | InputApprovalResponse
    | InputWebSearchCall
    | InputCodeCall
    | InputFileSearchCall
)

HOSTED_INPUTS: dict[str, type[AnyHostedInput]] = {
    "mcp_call": InputMcpCall,
    "mcp_list_tools": InputMcpList,
    "mcp_approval_request": InputApprovalRequest,
    "mcp_approval_response": InputApprovalResponse,
    "web_search_call": InputWebSearchCall,
    "code_interpreter_call": InputCodeCall,
    "file_search_call": InputFileSearchCall,
}
"""Maps a wire type to its struct."""
