"""The tools of a request: what is echoed, what is offered to the model, what is only accepted."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, invalid_value
from antiphon.app.requests import validators as c
from antiphon.app.requests.json_body import convert
from antiphon.events.inputs import HOSTED_TOOL_TYPES, CustomTool, FunctionTool, NamespaceTool
from antiphon.harmony.tools import ToolError, ToolTable

Offer = FunctionTool | CustomTool | NamespaceTool
SERVED: dict[str, type[Offer]] = {"function": FunctionTool, "custom": CustomTool, "namespace": NamespaceTool}
_name = c.string(None, c.NAME)


class Tools(Struct, frozen=True):
    """A request's tools, read. `offers` and `paths` belong together: what is offered, and where it stood."""

    echo: tuple[dict[str, Any], ...] = ()
    offers: tuple[Offer, ...] = ()
    paths: tuple[str, ...] = ()

    def __add__(self, more: "Tools") -> "Tools":
        """Both lists, `more` last. Tools that join through an input item are not echoed: they are in the input."""
        return Tools(self.echo, self.offers + more.offers, self.paths + more.paths)

    def table(self) -> ToolTable:
        """The offer as the dialects know it. Raises `ApiError` for two tools of one name."""
        try:
            return ToolTable.from_request(self.offers)
        except ToolError as error:
            place = f"{self.paths[error.index]}.name"
            raise invalid_value(place, f"Invalid '{place}': {error.message}") from None


def read(tools: Sequence[Any], path: str, places: Sequence[str] | None = None) -> Tools:
    """Every entry of `tools`, which stands at `path`. Raises `ApiError` 400 naming the entry.

    `places` says where each entry stood, where that is not `path[index]`.
    """
    echo, offers, paths = [], [], []
    for index, tool in enumerate(tools):
        place = places[index] if places is not None else f"{path}[{index}]"
        offer = _read_one(tool, place)
        echo.append(_echo(tool, offer))
        if offer is not None:
            offers.append(offer)
            paths.append(place)
    return Tools(tuple(echo), tuple(offers), tuple(paths))


def check_choice(choice: Any, tools: Tools) -> None:
    """What `tool_choice` names must be there, whether it is served or not."""
    if choice == "required" and not tools.echo:
        raise invalid_value("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = c.needed(choice, "name", "tool_choice")
        _name(name, "tool_choice.name")
        if all(tool.get("name") != name for tool in tools.echo):
            raise invalid_value("tool_choice", f"Tool choice '{name}' not found in 'tools' parameter.")


def _read_one(tool: Any, path: str) -> Offer | None:
    """A tool the model may call, or None for one that a server would have to run itself."""
    c.obj(tool, path)
    kind = c.needed(tool, "type", path)
    c.one_of((*SERVED, *sorted(HOSTED_TOOL_TYPES)))(kind, f"{path}.type")
    if kind in HOSTED_TOOL_TYPES:
        return None
    _check_names(tool, path)
    if kind == "namespace":
        inner = c.needed(tool, "tools", path)
        c.array_of(c.obj)(inner, f"{path}.tools")
        for index, leaf in enumerate(inner):
            place = f"{path}.tools[{index}]"
            c.one_of(("function", "custom"))(c.needed(leaf, "type", place), f"{place}.type")
            _check_names(leaf, place)
    offer: Offer = convert(tool, SERVED[kind], path)
    return offer


def _check_names(tool: Mapping[str, Any], path: str) -> None:
    """The name by pattern, since it is pasted into a prompt; the parameters by shape."""
    _name(c.needed(tool, "name", path), f"{path}.name")
    parameters = tool.get("parameters")
    if parameters is None:
        return
    c.obj(parameters, f"{path}.parameters")
    kind = parameters.get("type", "object")
    if kind != "object":
        message = f"Invalid schema for function '{tool['name']}': schema must be a JSON Schema of 'type: \"object\"'."
        raise ApiError(400, "invalid_function_parameters", message, f"{path}.parameters")


def _echo(tool: dict[str, Any], offer: Offer | None) -> dict[str, Any]:
    """As it was sent; a function with all of its keys, since clients read them."""
    if not isinstance(offer, FunctionTool):
        return tool
    whole = {"description": offer.description, "parameters": offer.parameters, "strict": offer.strict}
    return {"type": "function", "name": offer.name, **whole, **tool}
