"""Items of tools that the server runs: how they end, and what they have when they are done.

The tables of `grammar.py` hold the order of their events. Each is one item that stays open while its tool runs.
"""

from antiphon.kit.checker.schema import ACTION_SHAPES, DONE_SHAPES, ENTRY_SHAPES, check_shape
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonItem, as_objects, as_text

HOSTED_CALL_TYPES = (
    "mcp_call",
    "web_search_call",
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
)
"""Calls of tools that the server runs. `max_tool_calls` counts them."""
SERVER_RUN_TYPES = (*HOSTED_CALL_TYPES, "mcp_list_tools", "tool_search_output", "compaction")
"""Items after which the next round of the loop begins, so that `response.in_progress` may keep the stream alive."""
FREEZABLE_TYPES = (*HOSTED_CALL_TYPES, "mcp_list_tools")
"""Items that may stay open when the response ends before its time."""
ERROR_TYPES = ("mcp_call", "mcp_list_tools")
"""Items with an `error` and an event `.failed`. Others that fail have the status failed, and no event for it."""
ENDED_TYPES = (*ERROR_TYPES, "web_search_call", "code_interpreter_call", "file_search_call")
"""Items with an event `.completed` if they do not fail. OpenAI leaves it out for pictures."""
RESULT_KEYS = {
    "mcp_call": ("output", "error"),
    "code_interpreter_call": ("outputs",),
    "file_search_call": ("results",),
}
"""Keys without a value when the item is added: the tool has not run yet."""
RUNNING_STATUSES = ("in_progress", "calling", "searching", "interpreting", "generating", None)
"""Statuses of an added item whose tool is still to run."""
ENTRIES = {
    "mcp_list_tools": ("tools", "name"),
    "code_interpreter_call": ("outputs", "type"),
    "file_search_call": ("results", "file_id"),
}
"""Key of a list in the item, and the key that names an entry in a finding."""

INCLUDED_KEYS = {"code_interpreter_call": "outputs", "file_search_call": "results", "search": "sources"}
"""Key that a reply has only if its request includes it, by the type of the item, or of the action of a web search."""


def check_hosted_added(item: JsonItem, label: str, findings: FindingList) -> None:
    """Reports an added item that has the result of its tool already."""
    kind = as_text(item.get("type"))
    if kind in HOSTED_CALL_TYPES and item.get("status") not in RUNNING_STATUSES:
        findings.add("item-status", "in_progress", quote(item["status"]), label)
    for key in RESULT_KEYS.get(kind, ()):
        if item.get(key) not in (None, "", []):
            findings.add("item-not-empty", f"no {key} before the tool has run", quote(item[key]), label)


def check_ended_shape(item: JsonItem, findings: FindingList) -> None:
    """Reports fields that an item must have once it is done or cut, and entries of its lists that lack theirs."""
    kind = as_text(item.get("type"))
    check_shape(item, DONE_SHAPES.get(kind, {}), kind, findings)
    action = item.get("action")
    if kind == "web_search_call" and isinstance(action, dict):
        shape = ACTION_SHAPES.get(as_text(action.get("type")), ACTION_SHAPES["any"])
        check_shape(action, shape, f"{kind}.action", findings)
    key, name = ENTRIES.get(kind, ("", ""))
    for entry in as_objects(item.get(key)):
        shape = ENTRY_SHAPES.get(f"{kind}.{as_text(entry.get('type'))}", ENTRY_SHAPES.get(kind, {}))
        check_shape(entry, shape, f"{kind}.{key} {as_text(entry.get(name))}".rstrip(), findings)


def check_hosted_end(item: JsonItem, ending: str | None, subject: str, findings: FindingList) -> None:
    """Checks the status and the error of a done item against the event that ended it: completed, failed or none."""
    kind = as_text(item.get("type"))
    if kind not in ENDED_TYPES:
        return
    status = item.get("status", ending or ("failed" if item.get("error") else "completed"))
    has_event = status == "completed" or (status == "failed" and kind in ERROR_TYPES)
    if ending is None and has_event:
        findings.add("body-unfinished", f"{kind}.{status}", "output_item.done", subject)
    elif ending is not None and status != ending:
        findings.add("hosted-status", f"the status {ending}, as {kind}.{ending} says", quote(status), subject)
    if kind in ERROR_TYPES:
        _check_error(item, status, subject, findings)


def _check_error(item: JsonItem, status: object, subject: str, findings: FindingList) -> None:
    error = item.get("error")
    if status == "completed" and error is not None:
        findings.add("hosted-error", "no error, as it has not failed", quote(error), subject)
    elif status == "failed" and not error:
        findings.add("hosted-error", "an error, as it has failed", quote(error), subject)
    elif isinstance(error, dict) and not as_text(error.get("type")):
        findings.add("hosted-error", "a text, or an object with a type", quote(error), subject)


def is_same_reading(one: object, other: object) -> bool:
    """Tells whether two readings of one response agree. Each may leave out what its own request does not include."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = INCLUDED_KEYS.get(as_text(one.get("type")), "")
        hidden = {key} if one.get(key) is None or other.get(key) is None else set()
        names = one.keys() - hidden
        return names == other.keys() - hidden and all(is_same_reading(one[name], other[name]) for name in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_reading, one, other))
    return one == other


def has_failed_list(items: list[JsonItem]) -> bool:
    """Returns whether a list of tools could not be fetched."""
    return any(item.get("type") == "mcp_list_tools" and item.get("error") for item in items)
