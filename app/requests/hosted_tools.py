"""Tools of a request that the server may run, with their credentials, which no reply, log or store contains.

The server decides whether it offers them when it has listed the tools of their servers: see `app/tools/tool_host.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, invalid_type, invalid_value, unsupported_field
from antiphon.app.options.settings import Settings
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import check_object, check_string
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.tool_choice import ToolChoice, early_choice, read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.app.turn_types.tool_rules import (
    ALL_TOOLS,
    ApprovalRule,
    ToolFilter,
    ToolRuleError,
    parse_allowed_tools,
    parse_approval_rule,
)
from antiphon.events.tools import HOSTED_TOOL_TYPES, WEB_SEARCH_TYPES, McpTool
from antiphon.state.segments import Execution


class ToolSecrets(Struct, frozen=True):
    """Credentials of an MCP server, for the running turn only."""

    headers: tuple[tuple[str, str], ...] = ()
    authorization: str = ""

    def __repr__(self) -> str:
        """Returns no secret."""
        return "ToolSecrets(…)"


class HostedToolRequest(Struct, frozen=True, kw_only=True):
    """One tool that the server may run, in the form of Responses. `tool` has no credentials.

    `path` is its path in the request, and `field_names` has the request's names of fields that Responses names
    differently.
    """

    path: str
    kind: str
    tool: McpTool | Mapping[str, Any]
    secrets: ToolSecrets = ToolSecrets()
    field_names: Mapping[str, str] = {}
    can_ask: bool = True
    """False if the reply has no form for a request to approve a call."""
    allowed: ToolFilter = ALL_TOOLS
    """The tools of an MCP server that the model may call, without those in `hidden_tools`."""
    approval: ApprovalRule = ApprovalRule()
    """The tools of an MCP server whose calls need an approval."""
    hidden_tools: frozenset[str] = frozenset()
    """Names of tools of an MCP server that the model may not call."""

    def find_path(self, key: str) -> str:
        """Returns the path in the request of a field of the tool."""
        return f"{self.path}.{self.field_names.get(key, key)}"


class HostedToolsRequest(Struct, frozen=True, kw_only=True):
    """The tools that the server may run, and what decides with them which tools can be called."""

    requests: tuple[HostedToolRequest, ...]
    client_tools: RequestTools
    tool_choice: Any = None
    single_call: bool = False


def list_hosted_types(settings: Settings) -> frozenset[str]:
    """Returns the types of tools that the options map to something, and `mcp`, whose servers a request names."""
    mapped = {option.partition("=")[0] for option in settings.hosted_tools}
    types = {"mcp", *(mapped & {"code_interpreter"}), *(WEB_SEARCH_TYPES if "web_search" in mapped else ())}
    return frozenset((*types, "file_search") if settings.vector_stores else types)


def read_hosted_tools(
    sent: Sequence[Any] | None,
    request_tools: RequestTools,
    client_tools: RequestTools,
    tool_choice: Any,
    *,
    single_call: bool,
) -> tuple[HostedToolsRequest | None, ToolChoice]:
    """Returns the tools that the server may run, or None, and the choice among those that the client runs.

    `sent` are the tools as the client has sent them, `request_tools` the same after `read_tools`. `client_tools` has
    those of the conversation, too. Raises `ApiError` 400 for credentials and rules that are malformed, and for two
    servers with one label.
    """
    # The client runs them all if all are served.
    is_needed = len(request_tools.echo) != len(request_tools.served)
    requests = read_tool_requests(sent or (), client_tools.search) if is_needed else []
    choice = early_choice(tool_choice, has_hosted_tools=bool(requests))
    first_choice = read_tool_choice(choice, client_tools, single_call=single_call)
    if not requests:
        return None, first_choice
    return join_requests(requests, client_tools, tool_choice, single_call=single_call), first_choice


def join_requests(
    requests: Sequence[HostedToolRequest], client_tools: RequestTools, tool_choice: Any, *, single_call: bool
) -> HostedToolsRequest | None:
    """Returns the tools that the server may run; None if there are none. Raises `ApiError` 400 for a label twice."""
    if not requests:
        return None
    labels: set[str] = set()
    for request in requests:
        if isinstance(request.tool, McpTool):
            if request.tool.server_label in labels:
                path = request.find_path("server_label")
                message = f"Invalid '{path}': Duplicate server label '{request.tool.server_label}'. Send it once."
                raise invalid_value(path, message)
            labels.add(request.tool.server_label)
    return HostedToolsRequest(
        requests=tuple(requests), client_tools=client_tools, tool_choice=tool_choice, single_call=single_call
    )


def read_tool_requests(
    sent: Sequence[Any], search: Execution | None = None, *, can_ask: bool = True
) -> list[HostedToolRequest]:
    """Reads the tools of a list that the server may run. Raises `ApiError` 400 for malformed credentials and rules.

    `search` tells who runs a search among deferred tools.
    """
    return list(_read_requests(sent, search, can_ask=can_ask))


def _read_requests(sent: Sequence[Any], search: Execution | None, *, can_ask: bool) -> Iterable[HostedToolRequest]:
    clean_tools = remove_secrets({"tools": list(sent)})["tools"]
    for index, (tool, clean) in enumerate(zip(sent, clean_tools, strict=True)):
        kind, path = tool["type"], f"tools[{index}]"
        if kind == "mcp":
            mcp_tool: McpTool = decode_value(clean, McpTool, path)
            _check_place(tool, mcp_tool, path)
            allowed, approval = _read_rules(mcp_tool, path)
            yield HostedToolRequest(
                path=path,
                kind=kind,
                tool=mcp_tool,
                secrets=_read_secrets(tool, path),
                can_ask=can_ask,
                allowed=allowed,
                approval=approval,
            )
        elif kind in HOSTED_TOOL_TYPES or (kind == "tool_search" and search == "server"):
            yield HostedToolRequest(path=path, kind=kind, tool=clean)


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


def _read_rules(tool: McpTool, path: str) -> tuple[ToolFilter, ApprovalRule]:
    """Returns the rules of a tool, before its server is asked for anything. Raises `ApiError` 400."""
    try:
        return parse_allowed_tools(tool.allowed_tools), parse_approval_rule(tool.require_approval)
    except ToolRuleError as error:
        path = f"{path}.{error.path}"
        raise invalid_value(path, f"Invalid '{path}': {error.message}") from None


def refused_approval(request: HostedToolRequest, *, forced_by: str = "") -> ApiError:
    """Returns the error for a tool that needs an approval in an API that has no form for it.

    `forced_by`: label of the server for which the operator requires approvals; empty if the request does.
    """
    message = "This API cannot ask for an approval. Set 'require_approval' to 'never', or use POST /v1/responses."
    if forced_by:
        rule = f"The operator requires an approval for each call of '{forced_by}' (--tool-approve)"
        message = f"{rule}, and this API cannot ask for one. Use POST /v1/responses."
    return invalid_value(request.find_path("require_approval"), message)


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
