"""Tools of a request that the server may run, with their credentials, which no reply, log or store contains.

The server decides whether it offers them when it has listed the tools of their servers: see `app/tools/tool_host.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.base.errors import ApiError, invalid_type, invalid_value, unsupported_field
from antiphon.app.base.tool_rules import ToolRuleError, parse_allowed_tools, parse_approval_rule
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import check_object, check_string
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.tool_choice import ToolChoice, read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.events.tools import HOSTED_TOOL_TYPES, McpTool
from antiphon.state.segments import Execution


class ToolSecrets(Struct, frozen=True):
    """Credentials of an MCP server, for the running turn only."""

    headers: tuple[tuple[str, str], ...] = ()
    authorization: str = ""

    def __repr__(self) -> str:
        """Returns no secret."""
        return "ToolSecrets(…)"


class ServerToolRequest(Struct, frozen=True, kw_only=True):
    """One tool that the server may run. `tool` has no credentials; `path` is its path in the request."""

    path: str
    kind: str
    tool: McpTool | Mapping[str, Any]
    secrets: ToolSecrets = ToolSecrets()


class ServerToolsRequest(Struct, frozen=True, kw_only=True):
    """The tools that the server may run, and what decides with them which tools can be called."""

    requests: tuple[ServerToolRequest, ...]
    client_tools: RequestTools
    tool_choice: Any = None
    single_call: bool = False


def read_server_tools(
    sent: Sequence[Any] | None,
    request_tools: RequestTools,
    client_tools: RequestTools,
    tool_choice: Any,
    *,
    single_call: bool,
) -> tuple[ServerToolsRequest | None, ToolChoice]:
    """Returns the tools that the server may run, or None, and the choice among those that the client runs.

    `sent` are the tools as the client has sent them, `request_tools` the same after `read_tools`. `client_tools` has
    those of the conversation, too. Raises `ApiError` 400 for credentials and rules that are malformed, and for two
    servers with one label.
    """
    # The client runs them all if all are served.
    is_needed = len(request_tools.echo) != len(request_tools.served)
    requests = tuple(_read_requests(sent or (), client_tools.search)) if is_needed else ()
    # An object may name a tool of the server, which is known only when the server has listed its tools.
    choice = None if requests and isinstance(tool_choice, dict) else tool_choice
    first_choice = read_tool_choice(choice, client_tools, single_call=single_call)
    if not requests:
        return None, first_choice
    labels: set[str] = set()
    for request in requests:
        if isinstance(request.tool, McpTool):
            if request.tool.server_label in labels:
                path = f"{request.path}.server_label"
                message = f"Invalid '{path}': Duplicate server label '{request.tool.server_label}'. Send it once."
                raise invalid_value(path, message)
            labels.add(request.tool.server_label)
    read = ServerToolsRequest(
        requests=requests, client_tools=client_tools, tool_choice=tool_choice, single_call=single_call
    )
    return read, first_choice


def _read_requests(sent: Sequence[Any], search: Execution | None) -> Iterable[ServerToolRequest]:
    clean_tools = remove_secrets({"tools": list(sent)})["tools"]
    for index, (tool, clean) in enumerate(zip(sent, clean_tools, strict=True)):
        kind, path = tool["type"], f"tools[{index}]"
        if kind == "mcp":
            mcp_tool: McpTool = decode_value(clean, McpTool, path)
            _check_place(tool, mcp_tool, path)
            _check_rules(mcp_tool, path)
            yield ServerToolRequest(path=path, kind=kind, tool=mcp_tool, secrets=_read_secrets(tool, path))
        elif kind in HOSTED_TOOL_TYPES or (kind == "tool_search" and search == "server"):
            yield ServerToolRequest(path=path, kind=kind, tool=clean)


def _check_place(sent: Mapping[str, Any], tool: McpTool, path: str) -> None:
    """Checks that a tool names one server. Raises `ApiError` 400."""
    if sent.get("server_url") != tool.server_url:
        message = "The URL must not hold a user name or password. Send them in a header."
        raise invalid_value(f"{path}.server_url", f"Invalid '{path}.server_url': {message}")
    if tool.tunnel_id is not None:
        raise unsupported_field(f"{path}.tunnel_id", "This server opens no tunnels. Name a server by its URL.")
    if tool.connector_id is not None and tool.server_url is not None:
        message = f"Mutually exclusive parameters: '{path}.connector_id' and '{path}.server_url'."
        raise ApiError(400, "mutually_exclusive_parameters", message, f"{path}.connector_id")


def _check_rules(tool: McpTool, path: str) -> None:
    """Checks the rules of a tool before its server is asked for anything. Raises `ApiError` 400."""
    try:
        parse_allowed_tools(tool.allowed_tools)
        parse_approval_rule(tool.require_approval)
    except ToolRuleError as error:
        path = f"{path}.{error.path}"
        raise invalid_value(path, f"Invalid '{path}': {error.message}") from None


def _read_secrets(tool: Mapping[str, Any], path: str) -> ToolSecrets:
    sent_headers, sent_token = tool.get("headers"), tool.get("authorization")
    headers = {} if sent_headers is None else sent_headers
    authorization = "" if sent_token is None else sent_token
    check_object(headers, f"{path}.headers")
    check_string(authorization, f"{path}.authorization")
    for value in headers.values():
        if not isinstance(value, str):
            raise invalid_type(f"{path}.headers", "an object of strings", value)
    if authorization and any(name.lower() == "authorization" for name in headers):
        message = f"Invalid '{path}.headers': 'authorization' is set, too. Send the token once."
        raise invalid_value(f"{path}.headers", message)
    return ToolSecrets(tuple(headers.items()), authorization)
