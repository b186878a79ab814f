"""Parser of `tool_choice`: the tools that the model may call, and whether it must call one."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.app.errors import ApiError, clip_text, invalid_value, unsupported_field
from antiphon.app.requests.fields.checks import build_check, check_choice, check_string, require_key, require_string
from antiphon.app.requests.fields.common import ToolObjects
from antiphon.app.requests.tools import BUILTIN_TOOL_TYPES, RequestTool, RequestTools
from antiphon.events.tools import WEB_SEARCH_TYPES, BuiltinTool
from antiphon.harmony.tools import VALID_NAME, HostedTool, ToolError, ToolTable
from antiphon.state.segments import HostedToolKind

NAMED_TOOL_TYPES = ("function", "custom")
CALLABLE_TOOL_TYPES = (*NAMED_TOOL_TYPES, *BUILTIN_TOOL_TYPES)
UNKNOWN_CHOICES = ("local_shell", "tool_search")
"""Types of tools that `tool_choice` cannot name in OpenAI's API either."""
_SERVER_CHOICES: dict[str, HostedToolKind] = {
    "mcp": "mcp",
    "code_interpreter": "code_interpreter",
    "file_search": "file_search",
    **dict.fromkeys(WEB_SEARCH_TYPES, "web_search"),
}
"""Kinds of the tools that the server runs, by the types that `tool_choice` can name."""
_check_model_name = build_check(Annotated[str, Meta(pattern=rf"^{VALID_NAME.pattern}\Z")])
"""The name that the model uses for a tool may have a namespace in front, so it is longer than a tool's own."""


class ToolChoice(Struct, frozen=True):
    """The offered tools, and a parsed `tool_choice`.

    `allowed_tools` has the `model_name` of each tool that may be called; None allows all.
    """

    table: ToolTable
    mode: Literal["auto", "none", "required"] = "auto"
    allowed_tools: frozenset[str] | None = None


def early_choice(sent: Any, *, has_hosted_tools: bool) -> Any:
    """Returns `tool_choice` as far as it can be read before the server has listed its own tools.

    An object may name one of these. The server reads it again when they are known.
    """
    return None if has_hosted_tools and isinstance(sent, Mapping) else sent


def read_tool_choice(sent: Any, offered: RequestTools, *, single_call: bool = False) -> ToolChoice:
    """Parses `tool_choice` in the form of Responses. Raises `ApiError` 400, also for two tools with one name.

    `single_call`: the answer may have one call.
    """
    table = build_table(offered, single_call=single_call)
    if sent == "required" and not (offered.echo or offered.served):
        raise invalid_value("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    if sent in ("auto", "none", "required"):
        return ToolChoice(table, sent)
    if sent is None:
        return ToolChoice(table)
    if sent["type"] == "allowed_tools":
        return _read_allowed_tools(sent, table)
    return ToolChoice(table, "required", _find_chosen(sent, table, offered))


def _find_chosen(sent: Mapping[str, Any], table: ToolTable, offered: RequestTools) -> frozenset[str]:
    """Returns the `model_name` of the tools that a choice of one type names. Raises `ApiError` 400 if there is none."""
    kind = sent["type"]
    if kind in CALLABLE_TOOL_TYPES:
        return frozenset({_find_tool(sent, table, "tool_choice")})
    if kind in _SERVER_CHOICES and (names := _find_hosted_tools(sent, table, "tool_choice")):
        return names
    if kind in UNKNOWN_CHOICES:
        raise invalid_value("tool_choice.type", f"Invalid value: '{kind}'. A tool of this type cannot be chosen.")
    if any(tool.get("type") == kind for tool in offered.echo):
        raise unsupported_field("tool_choice", f"This server runs no tools of type '{clip_text(kind)}'.")
    raise _choice_not_found(kind)


def _read_allowed_tools(sent: Mapping[str, Any], table: ToolTable) -> ToolChoice:
    mode = require_key(sent, "mode", "tool_choice")
    check_choice(mode, ("auto", "required"), "tool_choice.mode")
    allowed = require_key(sent, "tools", "tool_choice")
    build_check(ToolObjects)(allowed, "tool_choice.tools")
    if not allowed:
        raise invalid_value("tool_choice.tools", "Invalid 'tool_choice.tools': at least one tool must be allowed.")
    names: set[str] = set()
    for index, tool in enumerate(allowed):
        path = f"tool_choice.tools[{index}]"
        kind = require_key(tool, "type", path)
        if kind in CALLABLE_TOOL_TYPES:
            names.add(_find_tool(tool, table, path))
        elif kind in _SERVER_CHOICES:
            names |= _find_hosted_tools(tool, table, path)
    return ToolChoice(table, mode, frozenset(names))


def build_table(offered: RequestTools, *, single_call: bool = False) -> ToolTable:
    """Returns the offered tools as a table for the dialects. Raises `ApiError` if two tools have the same name."""
    try:
        table = ToolTable.from_request(offered.served, num_loaded=offered.num_loaded, single_call=single_call)
    except ToolError as error:
        name_path = f"{offered.paths[error.index]}.{_name_key(offered.served[error.index])}"
        raise invalid_value(name_path, f"Invalid '{name_path}': {error.message}") from None
    return table.without(offered.hidden) if offered.hidden else table


def _name_key(tool: RequestTool | HostedTool) -> str:
    """Returns the key of a tool that has its name."""
    if isinstance(tool, HostedTool):
        return "server_label"
    return "type" if isinstance(tool, BuiltinTool) else "name"


def _find_tool(sent: Mapping[str, Any], table: ToolTable, path: str) -> str:
    """Returns the `model_name` of a tool. Raises `ApiError` 400 if the request does not offer exactly one."""
    kind = sent["type"]
    if kind not in BUILTIN_TOOL_TYPES:
        return _find_named_tool(sent, table, path)
    builtin = table.find_builtin(kind)
    if builtin is None:
        raise _choice_not_found(kind)
    return builtin.model_name


def _choice_not_found(name: str) -> ApiError:
    return ApiError(400, None, f"Tool choice '{clip_text(name)}' not found in 'tools' parameter.", "tool_choice")


def _find_hosted_tools(sent: Mapping[str, Any], table: ToolTable, path: str) -> frozenset[str]:
    """Returns the `model_name` of the tools that the server runs and that the choice names; none if there is none.

    Raises `ApiError` 400 if it names a server or one of its tools that is not offered.
    """
    kind = _SERVER_CHOICES[sent["type"]]
    servers = [tool for tool in table if tool.server is not None and tool.server.kind == kind]
    if kind != "mcp":
        return frozenset(tool.model_name for tool in servers)
    label, name = require_string(sent, "server_label", path), sent.get("name")
    if name is not None:
        check_string(name, f"{path}.name")
    found = [tool for tool in servers if tool.namespace == label and name in (None, tool.name)]
    if not found:
        raise _choice_not_found(label if name is None else f"{label}.{name}")
    return frozenset(tool.model_name for tool in found)


def _find_named_tool(sent: Mapping[str, Any], table: ToolTable, path: str) -> str:
    """Returns the `model_name` of a named tool. Raises `ApiError` 400 if the request does not offer exactly one.

    A tool in a namespace is named by `name` and `namespace`. Without `namespace`, a plain tool takes precedence over
    those of namespaces; `name` may also be the name that the model uses.
    """
    name, namespace = require_key(sent, "name", path), sent.get("namespace")
    _check_model_name(name, f"{path}.name")
    if namespace is not None:
        check_string(namespace, f"{path}.namespace")
    same_kind = [tool for tool in table if tool.kind == sent["type"] and tool.builtin is None and tool.server is None]
    found = [tool for tool in same_kind if (tool.name, tool.namespace) == (name, namespace)]
    if namespace is None:
        found = found or [tool for tool in same_kind if tool.name == name]
        found = found or [tool for tool in same_kind if tool.model_name == name]
    if not found:
        raise invalid_value("tool_choice", f"Tool choice '{clip_text(name)}' not found in 'tools' parameter.")
    if len(found) > 1:
        namespaces = ", ".join(f"'{tool.namespace}'" for tool in found)
        message = f"Tool choice '{clip_text(name)}' is in the namespaces {namespaces}. Send the 'namespace' of one."
        raise invalid_value("tool_choice", message)
    return found[0].model_name
