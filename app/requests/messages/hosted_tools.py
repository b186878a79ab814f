"""Reads the tools of a Messages request that the server runs: those of `mcp_servers`, web searches and code.

They become tools of the Responses API. The fields of the MCP connector have two forms: `tool_configuration` in the
server, and `mcp_toolset` in `tools`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import clip_text, invalid_value, missing_field, unsupported_field
from antiphon.app.options.settings import Settings
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.hosted_tools import HostedToolRequest, ToolSecrets, list_hosted_types
from antiphon.app.requests.messages.body import McpServerBody
from antiphon.app.requests.secrets import strip_user_info
from antiphon.app.requests.tools import check_callers
from antiphon.app.turn_types.tool_rules import ALL_TOOLS, ApprovalRule, ToolFilter
from antiphon.events.tools import McpTool

TOOLSET = "mcp_toolset"
HOSTED_PREFIXES = {"web_search_": "web_search", "code_execution_": "code_interpreter"}
"""Types of the tools of Responses, by the beginnings of their types here."""
FIELD_NAMES = {
    "server_label": "name",
    "server_url": "url",
    "headers": "authorization_token",
    "require_approval": "name",
}
"""Names of the fields of an MCP server here, by their names in Responses."""


class ToolsetEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a tool. `defer_loading` is accepted: all tools are shown at once."""

    enabled: bool | None = None
    defer_loading: bool | None = None


class Toolset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tools of an MCP server that are offered."""

    type: str
    mcp_server_name: str
    default_config: ToolsetEntry | None = None
    configs: dict[str, ToolsetEntry] | None = None
    cache_control: Any = None
    tools: Any = None
    name: Any = None


def read_hosted_tools(
    sent: Sequence[Mapping[str, Any]], servers: Sequence[McpServerBody], settings: Settings
) -> list[HostedToolRequest]:
    """Returns the tools that the server runs. `sent` are the tools of the request. Raises `ApiError` 400."""
    toolsets = _read_toolsets(sent, {server.name for server in servers})
    requests = []
    for index, server in enumerate(servers):
        path = f"mcp_servers[{index}]"
        if toolsets and server.name not in toolsets:
            message = f"Invalid '{path}.name': no '{TOOLSET}' of 'tools' names this server."
            raise invalid_value(f"{path}.name", message)
        if toolsets and server.tool_configuration is not None:
            message = f"Send either '{TOOLSET}' or 'tool_configuration', not both."
            raise invalid_value(f"{path}.tool_configuration", message)
        if server.tool_configuration is None or server.tool_configuration.enabled is not False:
            requests.append(_read_server(server, toolsets.get(server.name), path, settings))
    return [*requests, *_read_typed_tools(sent, list_hosted_types(settings))]


def find_choice(name: str, requests: Sequence[HostedToolRequest]) -> dict[str, str]:
    """Returns the `tool_choice` of Responses that names a tool."""
    names = {"web_search": "web_search", "code_execution": "code_interpreter"}
    if any(request.kind == names.get(name) for request in requests):
        return {"type": names[name]}
    return {"type": "function", "name": name}


def _read_toolsets(sent: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Toolset]:
    """Returns the toolsets by the names of their servers."""
    toolsets: dict[str, Toolset] = {}
    for index, tool in enumerate(sent):
        if tool.get("type") != TOOLSET:
            continue
        path = f"tools[{index}]"
        toolset: Toolset = decode_value(tool, Toolset, path)
        name, name_path = toolset.mcp_server_name, f"{path}.mcp_server_name"
        if toolset.tools is not None:
            raise unsupported_field(f"{path}.tools", "This server lists the tools of MCP servers itself.")
        if name not in names:
            message = f"Invalid '{name_path}': 'mcp_servers' has no server '{clip_text(name)}'."
            raise invalid_value(name_path, message)
        if name in toolsets:
            raise invalid_value(
                name_path, f"Invalid '{name_path}': Duplicate server '{clip_text(name)}'. Send it once."
            )
        toolsets[name] = toolset
    return toolsets


def _read_server(server: McpServerBody, toolset: Toolset | None, path: str, settings: Settings) -> HostedToolRequest:
    url = None if server.url is None else strip_user_info(server.url)
    labels = [label for label, _, own in (each.partition("=") for each in settings.tool_servers) if own == url]
    if url is None and server.name not in _own_labels(settings):
        raise missing_field(f"{path}.url")
    allowed, hidden = _list_allowed(server, toolset)
    tool = McpTool(
        server_label=server.name,
        server_url=None if labels else url,
        connector_id=labels[0] if labels else None,
    )
    return HostedToolRequest(
        path=path,
        kind="mcp",
        tool=tool,
        secrets=ToolSecrets(authorization=server.authorization_token or ""),
        field_names=FIELD_NAMES,
        can_ask=False,
        allowed=ToolFilter(names=allowed),
        approval=ApprovalRule(never=ALL_TOOLS),
        hidden_tools=hidden,
    )


def _own_labels(settings: Settings) -> set[str]:
    return {each.partition("=")[0] for each in (*settings.tool_servers, *settings.tool_commands)}


def _list_allowed(server: McpServerBody, toolset: Toolset | None) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Returns the names of the tools that are offered, None for all, and of those that are not."""
    if toolset is None:
        names = None if server.tool_configuration is None else server.tool_configuration.allowed_tools
        return (None if names is None else frozenset(names)), frozenset()
    enabled = {name: config.enabled for name, config in (toolset.configs or {}).items() if config.enabled is not None}
    if toolset.default_config is not None and toolset.default_config.enabled is False:
        return frozenset(name for name, is_enabled in enabled.items() if is_enabled), frozenset()
    return None, frozenset(name for name, is_enabled in enabled.items() if not is_enabled)


def _read_typed_tools(sent: Sequence[Mapping[str, Any]], hosted_types: Collection[str]) -> Iterator[HostedToolRequest]:
    """Yields the tools of types that the options map."""
    for index, tool in enumerate(sent):
        path, sent_type = f"tools[{index}]", str(tool.get("type"))
        kind = next((kind for prefix, kind in HOSTED_PREFIXES.items() if sent_type.startswith(prefix)), None)
        if kind not in hosted_types or kind is None:
            continue
        for key in ("allowed_domains", "blocked_domains"):
            if tool.get(key):
                raise unsupported_field(f"{path}.{key}", "This server's web search has no filters.")
        check_callers(tool.get("allowed_callers"), f"{path}.allowed_callers")
        yield HostedToolRequest(path=path, kind=kind, tool={**tool, "type": kind}, can_ask=False)
