"""Calls of tools that do not exist: the server answers those in the namespaces of its tools, and the client others.

A client without tools of its own cannot answer a call, so it never gets one.
"""

from antiphon.harmony.tools import VALID_NAME, HostedTool, ToolSpec, ToolTable


def find_invented_tool(tools: ToolTable, name: str) -> ToolSpec | None:
    """Returns a tool for a name that no tool has and that is in the namespace of an MCP server; None for another name.

    Without tools of the client, a name without a namespace belongs to the only server.
    """
    servers = [tool.server for tool in (*tools, *tools.hidden) if tool.server is not None]
    labels = {server.server_label for server in servers if server.server_label}
    for label in sorted(labels, key=len, reverse=True):
        for prefix in (f"{label}__", f"{label}."):
            if name.startswith(prefix) and VALID_NAME.fullmatch(name.removeprefix(prefix)):
                return _invent_tool(name, label, name.removeprefix(prefix))
    if len(labels) == 1 and not has_client_tools(tools) and VALID_NAME.fullmatch(name):
        return _invent_tool(name, next(iter(labels)), name)
    return None


def has_client_tools(tools: ToolTable) -> bool:
    """Tells whether the client runs a tool that is offered now or later."""
    return any(tool.server is None and tool.execution == "client" for tool in (*tools, *tools.hidden))


def _invent_tool(model_name: str, label: str, name: str) -> ToolSpec:
    server = HostedTool(kind="mcp", name=name, server_label=label, can_enforce=False, is_invented=True)
    return ToolSpec(model_name=model_name, name=name, namespace=label, server=server)
