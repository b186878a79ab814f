"""Parser of a request's tools: all are echoed, some are offered to the model, hosted ones are only accepted."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.base.errors import ApiError, invalid_value
from antiphon.app.requests import validators as c
from antiphon.app.requests.json_body import convert_value
from antiphon.events.inputs import HOSTED_TOOL_TYPES, CustomTool, FunctionTool, NamespaceTool
from antiphon.harmony.tools import ToolError, ToolTable

RequestTool = FunctionTool | CustomTool | NamespaceTool
SERVED_TYPES: dict[str, type[RequestTool]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
}
_name = c.string_like(None, c.NAME)


class RequestTools(Struct, frozen=True):
    """Parsed tools of a request. `served` are offered to the model; `paths` has the request path of each of them."""

    echo: tuple[dict[str, Any], ...] = ()
    served: tuple[RequestTool, ...] = ()
    paths: tuple[str, ...] = ()

    def __add__(self, more: "RequestTools") -> "RequestTools":
        """Appends the tools of `more`. Tools of `additional_tools` items are not echoed: they are in the input."""
        return RequestTools(self.echo, self.served + more.served, self.paths + more.paths)

    def build_table(self) -> ToolTable:
        """Returns the offered tools as a table for the dialects. Raises `ApiError` if two tools have the same name."""
        try:
            return ToolTable.from_request(self.served)
        except ToolError as error:
            name_path = f"{self.paths[error.index]}.name"
            raise invalid_value(name_path, f"Invalid '{name_path}': {error.message}") from None


def read_tools(tools: Sequence[Any], path: str, tool_paths: Sequence[str] | None = None) -> RequestTools:
    """Reads every entry of `tools`, the list at `path`. Raises `ApiError` 400 with the path of the entry.

    `tool_paths` has the path of each entry, if that is not `path[index]`.
    """
    echo, served, paths = [], [], []
    for index, tool in enumerate(tools):
        tool_path = tool_paths[index] if tool_paths is not None else f"{path}[{index}]"
        parsed_tool = _read_one(tool, tool_path)
        echo.append(_echo_tool(tool, parsed_tool))
        if parsed_tool is not None:
            served.append(parsed_tool)
            paths.append(tool_path)
    return RequestTools(tuple(echo), tuple(served), tuple(paths))


def _read_one(tool: Any, path: str) -> RequestTool | None:
    """Reads a tool. Returns None for a hosted tool, which the server would have to run itself."""
    c.is_object(tool, path)
    kind = c.require_key(tool, "type", path)
    c.one_of((*SERVED_TYPES, *sorted(HOSTED_TOOL_TYPES)))(kind, f"{path}.type")
    if kind in HOSTED_TOOL_TYPES:
        return None
    _check_names(tool, path)
    if kind == "namespace":
        leaves = c.require_key(tool, "tools", path)
        c.array_of(c.is_object)(leaves, f"{path}.tools")
        for index, leaf in enumerate(leaves):
            leaf_path = f"{path}.tools[{index}]"
            c.one_of(("function", "custom"))(c.require_key(leaf, "type", leaf_path), f"{leaf_path}.type")
            _check_names(leaf, leaf_path)
    parsed_tool: RequestTool = convert_value(tool, SERVED_TYPES[kind], path)
    return parsed_tool


def _check_names(tool: Mapping[str, Any], path: str) -> None:
    """Checks that the name is safe to paste into a prompt and that `parameters` is the schema of an object."""
    _name(c.require_key(tool, "name", path), f"{path}.name")
    parameters = tool.get("parameters")
    if parameters is None:
        return
    c.is_object(parameters, f"{path}.parameters")
    kind = parameters.get("type", "object")
    if kind != "object":
        message = f"Invalid schema for function '{tool['name']}': schema must be a JSON Schema of 'type: \"object\"'."
        raise ApiError(400, "invalid_function_parameters", message, f"{path}.parameters")


def _echo_tool(tool: dict[str, Any], offer: RequestTool | None) -> dict[str, Any]:
    """Returns the tool as it was sent. A function gets all of its keys, because clients read them."""
    if not isinstance(offer, FunctionTool):
        return tool
    defaults = {"description": offer.description, "parameters": offer.parameters, "strict": offer.strict}
    return {"type": "function", "name": offer.name, **defaults, **tool}
