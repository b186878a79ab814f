"""The search among deferred tools that the server runs: what it can find, and what it has found in one turn.

The model reads one name for each tool, namespace or MCP server that is deferred. The definitions that a search loads
are shown where it is in the conversation, so the prompt before it stays the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.requests.tools import DeferredTool, RequestTool
from antiphon.app.tools.call_rules import FoundTools
from antiphon.events.hosted import ToolSearchCall, ToolSearchOutput
from antiphon.events.inputs import AdditionalToolsInput, AnyInput, InputToolSearchOutput
from antiphon.events.tools import ToolSearchTool
from antiphon.harmony.prompt.builtin_items import begins_conversation, describe_loaded_tools, list_found_tools
from antiphon.harmony.tools import HostedTool, ToolKey, ToolTable, list_keys

INTRODUCTION = "Loads further tools. They can be called once they are loaded. `paths` has names of this list:"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"paths": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["paths"],
    "additionalProperties": False,
}
MAX_DESCRIPTION_CHARS = 200
"""Length of what the model reads of each name before it is loaded."""


class DeferredUnit(Struct, frozen=True):
    """The tools that one name of a search loads. The client and the model read its `definition` once it is loaded."""

    name: str
    description: str
    path: str
    tools: tuple[RequestTool | HostedTool, ...]
    definition: Mapping[str, Any]

    @property
    def keys(self) -> frozenset[ToolKey]:
        """The namespace and the name of each of its tools."""
        return list_keys(self.tools)


class SearchUnit(Struct, frozen=True, array_like=True):
    """A `DeferredUnit` as a search needs it: its name, the keys of its tools, and its definition as JSON."""

    name: str
    keys: frozenset[ToolKey]
    definition_json: bytes

    @classmethod
    def of(cls, unit: DeferredUnit) -> "SearchUnit":
        """Returns what a search needs of a unit."""
        return cls(unit.name, unit.keys, msgspec.json.encode(unit.definition))


class LoadedKeys(Struct, frozen=True):
    """Tools that the conversation has loaded, and those that it has added before its first message."""

    loaded: frozenset[ToolKey]
    listed: frozenset[ToolKey]


class ToolSearch:
    """Runs the searches of one turn. `tools` has all tools; those in `hidden` have to be found first."""

    def __init__(self, units: Sequence[SearchUnit], tools: ToolTable, hidden: frozenset[ToolKey]) -> None:
        self.units, self.tools, self.hidden = units, tools, hidden
        self._table = tools.without(hidden)

    @property
    def table(self) -> ToolTable:
        """The tools that the model may call now."""
        return self._table

    def load_tools(self, call: ToolSearchCall) -> FoundTools:
        """Loads the tools that a search names."""
        found = self.load(call.arguments)
        item = ToolSearchOutput(id="", call_id=call.call_id, execution="server", status="completed", tools=found)
        return FoundTools(item, describe_loaded_tools(found, self.table))

    def load(self, arguments: object) -> tuple[Mapping[str, Any], ...]:
        """Loads the tools that the arguments of a call name, and returns their definitions. Other names have none."""
        paths = arguments.get("paths") if isinstance(arguments, dict) else None
        names = [each.strip() for each in paths if isinstance(each, str)] if isinstance(paths, list) else []
        found = [unit for unit in self.units if unit.name in names]
        self.hidden = self.hidden.difference(*(unit.keys for unit in found))
        self._table = self.tools.without(self.hidden)
        return tuple(msgspec.json.decode(unit.definition_json) for unit in found)


def defer_client_tool(deferred: DeferredTool) -> DeferredUnit:
    """Returns a tool of the client as a unit."""
    tool = deferred.tool
    return DeferredUnit(tool.name, tool.description or "", deferred.path, (tool,), deferred.definition)


def defer_server(label: str, description: str | None, path: str, tools: tuple[HostedTool, ...]) -> DeferredUnit:
    """Returns the tools of an MCP server as a unit."""
    listed = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters or {"type": "object"}}
        for tool in tools
    ]
    definition = {"type": "mcp", "server_label": label, "tools": listed}
    return DeferredUnit(label, description or ", ".join(tool.name for tool in tools), path, tools, definition)


def describe_search(units: Iterable[DeferredUnit]) -> ToolSearchTool:
    """Returns the search as it is offered to the model, with a line for each unit."""
    lines = (f"- {unit.name}: {_clip_line(unit.description)}".removesuffix(": ") for unit in units)
    description = "\n".join((INTRODUCTION, *dict.fromkeys(lines)))
    return ToolSearchTool(execution="server", description=description, parameters=PARAMETERS)


def find_loaded_keys(items: Iterable[AnyInput]) -> LoadedKeys:
    """Returns the tools that the items of a conversation have loaded."""
    loaded, listed, has_begun = set[ToolKey](), set[ToolKey](), False
    for item in items:
        has_begun = has_begun or begins_conversation(item)
        if isinstance(item, AdditionalToolsInput | InputToolSearchOutput):
            keys = ((namespace, tool["name"]) for tool, namespace in list_found_tools(item.tools))
            (loaded if has_begun else listed).update(keys)
    return LoadedKeys(frozenset(loaded), frozenset(listed))


def _clip_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else f"{line[: MAX_DESCRIPTION_CHARS - 1]}…"
