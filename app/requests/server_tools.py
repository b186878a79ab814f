"""Tools of a request that the server may run, with their credentials, which no reply, log or store contains.

The server decides whether it offers them when it has listed the tools of their servers: see `app/tools/tool_host.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.base.errors import invalid_type, invalid_value
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import check_object, check_string
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.tools import RequestTools
from antiphon.events.tools import HOSTED_TOOL_TYPES, McpTool


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
    sent: Sequence[Any] | None, client_tools: RequestTools, tool_choice: Any, *, single_call: bool
) -> ServerToolsRequest | None:
    """Reads the tools that the server may run, as the client has sent them. Returns None if there are none.

    `sent` was checked by `read_tools`. Raises `ApiError` 400 for credentials that are malformed or given twice, and for
    two servers with one label.
    """
    requests = tuple(_read_requests(sent or ()))
    if not requests:
        return None
    labels: set[str] = set()
    for request in requests:
        if isinstance(request.tool, McpTool):
            if request.tool.server_label in labels:
                path = f"{request.path}.server_label"
                message = f"Invalid '{path}': Duplicate server label '{request.tool.server_label}'. Send it once."
                raise invalid_value(path, message)
            labels.add(request.tool.server_label)
    return ServerToolsRequest(
        requests=requests, client_tools=client_tools, tool_choice=tool_choice, single_call=single_call
    )


def _read_requests(sent: Sequence[Any]) -> Iterable[ServerToolRequest]:
    clean_tools = remove_secrets({"tools": list(sent)})["tools"]
    for index, (tool, clean) in enumerate(zip(sent, clean_tools, strict=True)):
        kind, path = tool["type"], f"tools[{index}]"
        if kind == "mcp":
            mcp_tool: McpTool = decode_value(clean, McpTool, path)
            yield ServerToolRequest(path=path, kind=kind, tool=mcp_tool, secrets=_read_secrets(tool, path))
        elif kind in HOSTED_TOOL_TYPES:
            yield ServerToolRequest(path=path, kind=kind, tool=clean)


def _read_secrets(tool: Mapping[str, Any], path: str) -> ToolSecrets:
    headers, authorization = tool.get("headers") or {}, tool.get("authorization") or ""
    check_object(headers, f"{path}.headers")
    check_string(authorization, f"{path}.authorization")
    for value in headers.values():
        if not isinstance(value, str):
            raise invalid_type(f"{path}.headers", "an object of strings", value)
    if authorization and any(name.lower() == "authorization" for name in headers):
        message = f"Invalid '{path}.headers': 'authorization' is set, too. Send the token once."
        raise invalid_value(f"{path}.headers", message)
    return ToolSecrets(tuple(headers.items()), authorization)
