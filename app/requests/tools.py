"""Parser of a request's tools: all are echoed, those that the client runs are offered to the model.

The server decides later which tools of its own it offers: see `app/tools`.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from antiphon.app.base.errors import ApiError, invalid_value
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import check_choice, check_object, require_key
from antiphon.events.tools import (
    COMPUTER_TOOL_TYPES,
    HOSTED_TOOL_TYPES,
    BuiltinTool,
    CustomTool,
    FunctionTool,
    LocalShellTool,
    NamespaceTool,
    PatchTool,
    ShellTool,
    ToolSearchTool,
)
from antiphon.harmony.tools import ServerTool

RequestTool = FunctionTool | CustomTool | NamespaceTool | BuiltinTool
SERVED_TYPES: dict[str, type[RequestTool]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
    "shell": ShellTool,
    "apply_patch": PatchTool,
    "local_shell": LocalShellTool,
    "tool_search": ToolSearchTool,
}
_MCP_DEFAULTS = {
    "type": "mcp", "allowed_tools": None, "headers": None, "require_approval": "always", "server_description": None
}  # fmt: skip
"""Keys that the echo of an MCP server always has."""
BUILTIN_TOOL_TYPES = ("shell", "apply_patch")
"""Built-in tools that `tool_choice` can name."""


class RequestTools(Struct, frozen=True):
    """Parsed tools of a request. `served` are offered to the model; `paths` has the request path of each of them."""

    echo: tuple[dict[str, Any], ...] = ()
    served: tuple[RequestTool | ServerTool, ...] = ()
    paths: tuple[str, ...] = ()
    num_loaded: int = 0
    """Number of the last tools that were loaded in the conversation, where the prompt shows them."""
    has_search: bool = False
    """True if a search of the client finds the tools that are deferred."""
    schema_key: str = "parameters"
    """The request's name for the schema of a function's arguments, which errors name."""

    def __add__(self, more: "RequestTools") -> "RequestTools":
        """Appends the tools of `more`, which are not echoed: they are in the input. Loaded tools come last."""
        parts = [(each.served[:end], each.paths[:end]) for each, end in _split_loaded(self, more)]
        parts += [(each.served[end:], each.paths[end:]) for each, end in _split_loaded(self, more)]
        return structs.replace(
            self,
            served=tuple(tool for served, _ in parts for tool in served),
            paths=tuple(path for _, paths in parts for path in paths),
            num_loaded=self.num_loaded + more.num_loaded,
        )

    def without_deferred(self) -> "RequestTools":
        """Returns the tools without those that the client's search has yet to find."""
        first_loaded = len(self.served) - self.num_loaded
        kept = [
            (shown, path)
            for index, (tool, path) in enumerate(zip(self.served, self.paths, strict=True))
            if (shown := tool if index >= first_loaded else _remove_deferred(tool)) is not None
        ]
        return structs.replace(self, served=tuple(tool for tool, _ in kept), paths=tuple(path for _, path in kept))


def _split_loaded(*parts: RequestTools) -> list[tuple[RequestTools, int]]:
    """Returns each part with the index of its first loaded tool."""
    return [(part, len(part.served) - part.num_loaded) for part in parts]


def _remove_deferred(tool: RequestTool | ServerTool) -> RequestTool | ServerTool | None:
    """Returns a tool without the deferred ones in it; None if nothing is left."""
    if isinstance(tool, BuiltinTool | ServerTool):
        return tool
    if tool.defer_loading:
        return None
    if isinstance(tool, NamespaceTool):
        shown = tuple(leaf for leaf in tool.tools if not leaf.defer_loading)
        return structs.replace(tool, tools=shown) if shown else None
    return tool


def read_tools(
    tools: Sequence[Any], path: str, tool_paths: Sequence[str] | None = None, schema_key: str = "parameters"
) -> RequestTools:
    """Reads every entry of `tools`, the list at `path`. Raises `ApiError` 400 with the path of the entry.

    `tool_paths` has the path of each entry, if that is not `path[index]`.
    """
    echo, served, paths, has_search = [], [], [], False
    for index, tool in enumerate(tools):
        tool_path = tool_paths[index] if tool_paths is not None else f"{path}[{index}]"
        parsed_tool = _read_one(tool, tool_path, schema_key)
        echo.append(_echo_tool(tool, parsed_tool))
        has_search = has_search or isinstance(parsed_tool, ToolSearchTool)
        if parsed_tool is not None:
            served.append(parsed_tool)
            paths.append(tool_path)
    return RequestTools(tuple(echo), tuple(served), tuple(paths), has_search=has_search, schema_key=schema_key)


def _read_one(tool: Any, path: str, schema_key: str) -> RequestTool | None:
    """Reads a tool. Returns None for a hosted tool, which the server would have to run itself."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in COMPUTER_TOOL_TYPES:
        raise invalid_value(f"{path}.type", "This model reads no images, so it cannot use a computer.")
    if isinstance(tool, dict):
        _check_callers(tool.get("allowed_callers"), f"{path}.allowed_callers")
    if isinstance(kind, str) and kind in HOSTED_TOOL_TYPES:
        return None
    if not isinstance(kind, str) or kind not in SERVED_TYPES:
        check_object(tool, path)
        check_choice(require_key(tool, "type", path), (*SERVED_TYPES, *sorted(HOSTED_TOOL_TYPES)), f"{path}.type")
    if kind == "shell":
        _check_environment(tool.get("environment"), f"{path}.environment.type")
    parsed_tool: RequestTool = decode_value(tool, SERVED_TYPES[str(kind)], path)
    if isinstance(parsed_tool, ToolSearchTool) and parsed_tool.execution == "server":
        return None
    if isinstance(parsed_tool, BuiltinTool):
        return parsed_tool
    if isinstance(parsed_tool, NamespaceTool):
        for index, leaf in enumerate(parsed_tool.tools):
            _check_parameters(leaf, f"{path}.tools[{index}].{schema_key}")
    else:
        _check_parameters(parsed_tool, f"{path}.{schema_key}")
    return parsed_tool


def _check_callers(callers: Any, path: str) -> None:
    """Refuses a tool that only programs on the server may call. Raises `ApiError` 400."""
    if isinstance(callers, list) and "direct" not in callers:
        raise ApiError(400, "unsupported_value", "This server runs no programs. Add 'direct'.", path)


def _check_environment(environment: Any, path: str) -> None:
    """Refuses a shell that the server would have to run."""
    kind = environment.get("type") if isinstance(environment, dict) else None
    if isinstance(kind, str) and kind != "local":
        raise invalid_value(path, "Only the environment 'local' is supported: this server runs no shell.")


def _check_parameters(tool: FunctionTool | CustomTool, path: str) -> None:
    """Checks that the parameters, which are at `path`, are the schema of an object."""
    if isinstance(tool, FunctionTool) and (tool.parameters or {}).get("type", "object") != "object":
        message = f"Invalid schema for function '{tool.name}': schema must be a JSON Schema of 'type: \"object\"'."
        raise ApiError(400, "invalid_function_parameters", message, path)


def _echo_tool(tool: dict[str, Any], offer: RequestTool | None) -> dict[str, Any]:
    """Returns the tool as it was sent. A function gets all of its keys, because clients read them."""
    if tool["type"] == "mcp":
        return {**_MCP_DEFAULTS, **{key: value for key, value in tool.items() if value is not None}}
    if not isinstance(offer, FunctionTool):
        return tool
    defaults = {"description": offer.description, "parameters": offer.parameters, "strict": offer.strict}
    return {"type": "function", "name": offer.name, **defaults, **tool}
