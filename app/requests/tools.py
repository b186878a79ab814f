"""Parser of a request's tools: all are echoed, those that the client runs are offered to the model.

The server decides later which tools of its own it offers: see `app/tools`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, invalid_value
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
from antiphon.harmony.tools import HostedTool, ToolKey
from antiphon.state.segments import Execution

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


class DeferredTool(Struct, frozen=True):
    """A tool that a search has to find, or a namespace with the tools in it that one has to find.

    `definition` is what the client has sent of it.
    """

    path: str
    tool: FunctionTool | CustomTool | NamespaceTool
    definition: dict[str, Any]


class RequestTools(Struct, frozen=True):
    """Parsed tools of a request. `served` are offered to the model; `paths` has the request path of each of them."""

    echo: tuple[dict[str, Any], ...] = ()
    served: tuple[RequestTool | HostedTool, ...] = ()
    paths: tuple[str, ...] = ()
    num_loaded: int = 0
    """Number of the last tools that were loaded in the conversation, where the prompt shows them."""
    search: Execution | None = None
    """Who runs the search that finds the tools that are deferred; None: there is none."""
    deferred: tuple[DeferredTool, ...] = ()
    """The tools that are deferred. `served` has them, too, except after `without_deferred`."""
    hidden: frozenset[ToolKey] = frozenset()
    """Loaded tools that the model cannot call yet: a search of the server has to find them."""
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
            deferred=self.deferred + more.deferred,
        )

    def without_deferred(self) -> "RequestTools":
        """Returns the tools without those that a search has yet to find."""
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


def _remove_deferred(tool: RequestTool | HostedTool) -> RequestTool | HostedTool | None:
    """Returns a tool without the deferred ones in it; None if nothing is left."""
    if isinstance(tool, BuiltinTool | HostedTool):
        return tool
    if tool.defer_loading:
        return None
    if isinstance(tool, NamespaceTool):
        shown = tuple(leaf for leaf in tool.tools if not leaf.defer_loading)
        return structs.replace(tool, tools=shown) if shown else None
    return tool


def _list_deferred(tool: RequestTool, path: str, definition: dict[str, Any]) -> Iterator[DeferredTool]:
    """Yields the deferred part of a tool, if it has one. `definition` is the whole tool, as the client has sent it."""
    if isinstance(tool, BuiltinTool):
        return
    if tool.defer_loading:
        yield DeferredTool(path, tool, definition)
    elif isinstance(tool, NamespaceTool):
        indexes = [index for index, leaf in enumerate(tool.tools) if leaf.defer_loading]
        if indexes:
            leaves = [definition["tools"][index] for index in indexes]
            part = structs.replace(tool, tools=tuple(tool.tools[index] for index in indexes))
            yield DeferredTool(path, part, {**definition, "tools": leaves})


def read_tools(
    tools: Sequence[Any], path: str, tool_paths: Sequence[str] | None = None, schema_key: str = "parameters"
) -> RequestTools:
    """Reads every entry of `tools`, the list at `path`. Raises `ApiError` 400 with the path of the entry.

    `tool_paths` has the path of each entry, if that is not `path[index]`.
    """
    echo, served, paths, deferred, search = [], [], [], list[DeferredTool](), None
    for index, tool in enumerate(tools):
        tool_path = tool_paths[index] if tool_paths is not None else f"{path}[{index}]"
        parsed_tool = _read_one(tool, tool_path, schema_key)
        echo.append(_echo_tool(tool, parsed_tool))
        if isinstance(parsed_tool, ToolSearchTool):
            if search is not None:
                message = f"Invalid '{tool_path}.type': Duplicate tool 'tool_search'. Send it once."
                raise invalid_value(f"{tool_path}.type", message)
            search = parsed_tool.execution
            if search == "server":
                continue  # offered once it is known what it can find
        if parsed_tool is not None:
            served.append(parsed_tool)
            paths.append(tool_path)
            deferred += _list_deferred(parsed_tool, tool_path, echo[-1])
    return RequestTools(
        tuple(echo), tuple(served), tuple(paths), search=search, deferred=tuple(deferred), schema_key=schema_key
    )


def _read_one(tool: Any, path: str, schema_key: str) -> RequestTool | None:
    """Reads a tool. Returns None for a hosted tool, which the server would have to run itself, and for a computer."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in COMPUTER_TOOL_TYPES:
        return None
    if isinstance(tool, dict):
        check_callers(tool.get("allowed_callers"), f"{path}.allowed_callers")
    if isinstance(kind, str) and kind in HOSTED_TOOL_TYPES:
        return None
    if not isinstance(kind, str) or kind not in SERVED_TYPES:
        check_object(tool, path)
        check_choice(require_key(tool, "type", path), (*SERVED_TYPES, *sorted(HOSTED_TOOL_TYPES)), f"{path}.type")
    if kind == "shell":
        _check_environment(tool.get("environment"), f"{path}.environment.type")
    parsed_tool: RequestTool = decode_value(tool, SERVED_TYPES[str(kind)], path)
    if isinstance(parsed_tool, BuiltinTool):
        return parsed_tool
    if isinstance(parsed_tool, NamespaceTool):
        for index, leaf in enumerate(parsed_tool.tools):
            _check_parameters(leaf, f"{path}.tools[{index}].{schema_key}")
    else:
        _check_parameters(parsed_tool, f"{path}.{schema_key}")
    return parsed_tool


def check_callers(callers: Any, path: str) -> None:
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
