"""The tools of a request: what is echoed, what is offered to the model, what is only accepted."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, invalid_value
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
    """A request's tools, read. `offers` and `paths` belong together: what is offered, and where it stood."""

    echo: tuple[dict[str, Any], ...] = ()
    served: tuple[RequestTool, ...] = ()
    paths: tuple[str, ...] = ()

    def __add__(self, more: "RequestTools") -> "RequestTools":
        """Both lists, `more` last. Tools that join through an input item are not echoed: they are in the input."""
        return RequestTools(self.echo, self.served + more.served, self.paths + more.paths)

    def build_table(self) -> ToolTable:
        """The offer as the dialects know it. Raises `ApiError` for two tools of one name."""
        try:
            return ToolTable.from_request(self.served)
        except ToolError as error:
            place = f"{self.paths[error.index]}.name"
            raise invalid_value(place, f"Invalid '{place}': {error.message}") from None


def read_tools(tools: Sequence[Any], path: str, places: Sequence[str] | None = None) -> RequestTools:
    """Every entry of `tools`, which stands at `path`. Raises `ApiError` 400 naming the entry.

    `places` says where each entry stood, where that is not `path[index]`.
    """
    echo, offers, paths = [], [], []
    for index, tool in enumerate(tools):
        place = places[index] if places is not None else f"{path}[{index}]"
        offer = _read_one(tool, place)
        echo.append(_echo_tool(tool, offer))
        if offer is not None:
            offers.append(offer)
            paths.append(place)
    return RequestTools(tuple(echo), tuple(offers), tuple(paths))


def check_choice(choice: Any, tools: RequestTools) -> None:
    """What `tool_choice` names must be there, whether it is served or not."""
    if choice == "required" and not tools.echo:
        raise invalid_value("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = c.require_key(choice, "name", "tool_choice")
        _name(name, "tool_choice.name")
        if all(tool.get("name") != name for tool in tools.echo):
            raise invalid_value("tool_choice", f"Tool choice '{name}' not found in 'tools' parameter.")


def _read_one(tool: Any, path: str) -> RequestTool | None:
    """A tool the model may call, or None for one that a server would have to run itself."""
    c.is_object(tool, path)
    kind = c.require_key(tool, "type", path)
    c.one_of((*SERVED_TYPES, *sorted(HOSTED_TOOL_TYPES)))(kind, f"{path}.type")
    if kind in HOSTED_TOOL_TYPES:
        return None
    _check_names(tool, path)
    if kind == "namespace":
        inner = c.require_key(tool, "tools", path)
        c.array_of(c.is_object)(inner, f"{path}.tools")
        for index, leaf in enumerate(inner):
            place = f"{path}.tools[{index}]"
            c.one_of(("function", "custom"))(c.require_key(leaf, "type", place), f"{place}.type")
            _check_names(leaf, place)
    offer: RequestTool = convert_value(tool, SERVED_TYPES[kind], path)
    return offer


def _check_names(tool: Mapping[str, Any], path: str) -> None:
    """The name by pattern, since it is pasted into a prompt; the parameters by shape."""
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
    """As it was sent; a function with all of its keys, since clients read them."""
    if not isinstance(offer, FunctionTool):
        return tool
    whole = {"description": offer.description, "parameters": offer.parameters, "strict": offer.strict}
    return {"type": "function", "name": offer.name, **whole, **tool}
