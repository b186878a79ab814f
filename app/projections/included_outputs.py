"""Outputs of tools of the server in replies: those of code, the results of searches in files, and sources.

The event log has all of them, because later turns show them to the model. A reply shows those that its own request
names in `include`, as in OpenAI's API; ids, order and sequence numbers are the same.
"""

from typing import Any

from msgspec import UNSET, structs

from antiphon.app.turn_types.event_log import LogEntry
from antiphon.events import sse
from antiphon.events.hosted import CodeInterpreterCall, FileSearchCall, WebSearchCall
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import ItemDone, LifecycleEvent

INCLUDE_CODE_OUTPUTS = "code_interpreter_call.outputs"
INCLUDE_FILE_RESULTS = "file_search_call.results"
INCLUDE_SOURCES = "web_search_call.action.sources"
TOOL_OUTPUTS = frozenset({INCLUDE_CODE_OUTPUTS, INCLUDE_FILE_RESULTS, INCLUDE_SOURCES})
"""Values of `include` that show what tools of the server returned."""
_SOURCES_FIELD = "sources"
_LISTED_KEYS = {
    "code_interpreter_call": ("outputs", INCLUDE_CODE_OUTPUTS),
    "file_search_call": ("results", INCLUDE_FILE_RESULTS),
}
"""Key of a listed item, by its type, and the value of `include` that shows it."""


def encode_shown(entry: LogEntry, include: frozenset[str]) -> bytes:
    """Returns the JSON of an event without what `include` does not name. That of nearly all events is in the log."""
    event = entry.event
    if isinstance(event, ItemDone):
        item = _hide_output(event.item, include)
        return entry.data if item is event.item else sse.encode_event(structs.replace(event, item=item))
    if isinstance(event, LifecycleEvent):
        response = shown_response(event.response, include)
        return entry.data if response is event.response else sse.encode_event(structs.replace(event, response=response))
    return entry.data


def shown_response(response: Response, include: frozenset[str]) -> Response:
    """Returns the response without what `include` does not name: the same object if there is nothing to leave out."""
    output = tuple(_hide_output(item, include) for item in response.output)
    is_same = all(shown is item for shown, item in zip(output, response.output, strict=True))
    return response if is_same else structs.replace(response, output=output)


def hide_listed_outputs(fields: dict[str, Any], include: frozenset[str]) -> None:
    """Sets to null in a listed item what `include` does not name, and removes the sources of a web search."""
    key, name = _LISTED_KEYS.get(fields["type"], ("", ""))
    if key and name not in include:
        fields[key] = None
    action = fields.get("action")
    if fields["type"] == "web_search_call" and isinstance(action, dict) and INCLUDE_SOURCES not in include:
        fields["action"] = _without_sources(action)


def _hide_output(item: OutputItem, include: frozenset[str]) -> OutputItem:
    """Returns the item without what `include` does not name: the same object if there is nothing to leave out."""
    match item:
        case CodeInterpreterCall(outputs=outputs) if outputs is not UNSET and outputs is not None:
            return item if INCLUDE_CODE_OUTPUTS in include else structs.replace(item, outputs=None)
        case FileSearchCall(results=results) if results is not UNSET and results is not None:
            return item if INCLUDE_FILE_RESULTS in include else structs.replace(item, results=None)
        case WebSearchCall(action=dict() as action) if _SOURCES_FIELD in action and INCLUDE_SOURCES not in include:
            return structs.replace(item, action=_without_sources(action))
    return item


def _without_sources(action: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in action.items() if key != _SOURCES_FIELD}
