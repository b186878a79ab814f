"""Calls of tools that were not offered, as `/v1/inspect` tells of them: what the model called, where, and why so."""

import re
from collections.abc import Sequence
from typing import Any

from antiphon.app.turn_types.event_log import LogEntry
from antiphon.events import stream as ev
from antiphon.harmony.tools import VALID_NAME, UnofferedCall

Json = dict[str, Any]
UNOFFERED_CODE = "tool-not-offered"
MAX_SEARCHED_CHARS = 4096
"""Length of a text in which the arguments of a call are searched, where a plain answer may look like one."""
MAX_SHOWN_NAMES = 10
"""Names of offered tools in a sentence."""
_MEMBERS = re.compile(r"[\"'](?:arguments|parameters|function|input)[\"']\s*:")


def list_unoffered_calls(entries: Sequence[LogEntry]) -> list[Json]:
    """Returns the calls of tools that were not offered, in their order. It takes long: call it in a thread."""
    calls: list[Json] = []
    offered: tuple[list[str], int] = [], 0
    start = 0
    for number, entry in enumerate(entries):
        if entry.detail is None:
            continue
        for note in entry.detail.unoffered:
            if note.offered or not calls:
                offered = list(note.offered), note.num_offered
            event = _find_event(entries, start, number, note)
            if not note.is_plain or _looks_like_call(entries, event, note.name):
                calls.append(_describe(note, event, *offered))
        start = number + 1
    return calls


def describe_unoffered_finding(call: Json) -> Json:
    """Returns a call as a finding."""
    first, end = call["tokens"]
    became = {"text": "that became text", "call": "that was returned", "nothing": "that was dropped"}[call["became"]]
    return {
        "code": UNOFFERED_CODE,
        "level": "note" if call["became"] == "call" else "warning",
        "event": call["event"],
        "subject": call["name"],
        "expected": f"a call of {_list_names(call['offered'], call['num_offered'])}" if call["offered"] else "no call",
        "actual": f"a call of {call['name']} {became}, in the tokens {first} to {end - 1} of the output",
        "count": 1,
        "why": call["reason"],
    }


def _describe(note: UnofferedCall, event: int, offered: list[str], num_offered: int) -> Json:
    end, reason = max(note.end_token, note.first_token + 1), _explain(note, num_offered)
    place = f"Event {event}, tokens {note.first_token} to {end - 1}"
    return {
        "name": note.name,
        "became": note.became,
        "event": event,
        "tokens": [note.first_token, end],
        "offered": offered,
        "num_offered": num_offered,
        "reason": reason,
        "description": f"{reason} {place}; offered: {_list_names(offered, num_offered) or 'nothing'}.",
    }


def _list_names(offered: Sequence[str], count: int) -> str:
    shown = ", ".join(offered[:MAX_SHOWN_NAMES])
    return f"{shown} and {count - MAX_SHOWN_NAMES} more" if count > MAX_SHOWN_NAMES else shown


def _explain(note: UnofferedCall, num_offered: int) -> str:
    if not num_offered:
        return f"The model called {note.name}, and the request allows no call, so the call is text."
    head = f"The model called {note.name}, a tool that the request does not offer"
    if note.became == "call":
        return f"{head}. The call was returned for the client to answer, as --unknown-tools call says."
    if note.became == "nothing":
        return f"{head}. The call was dropped, since others in the same block are valid."
    if note.is_plain:
        return f"{head}. The call is text, since ordinary answers are written in the same syntax."
    if not VALID_NAME.fullmatch(note.name):
        return f"{head}. The call is text, since no tool can have this name."
    return f"{head}. The call is text, as --unknown-tools text says."


def _find_event(entries: Sequence[LogEntry], start: int, last: int, note: UnofferedCall) -> int:
    """Returns the number of the event of a step that has the call, or the beginning of its text."""
    step = range(start, last + 1)
    if note.became == "call":
        added = (number for number in step if _has_name(entries[number], note.name))
        return next(added, last)
    pieces = [number for number in step if _read_delta(entries[number])]
    return next((number for number in pieces if note.name in _read_delta(entries[number])), (*pieces, last)[0])


def _has_name(entry: LogEntry, name: str) -> bool:
    return isinstance(entry.event, ev.ItemAdded) and getattr(entry.event.item, "name", None) == name


def _read_delta(entry: LogEntry) -> str:
    delta = getattr(entry.event, "delta", "")
    return delta if isinstance(delta, str) else ""


def _looks_like_call(entries: Sequence[LogEntry], event: int, name: str) -> bool:
    """Tells whether the item of an event has arguments, too: a name alone makes no call of an object or a list."""
    item_id = getattr(entries[event].event, "item_id", None)
    text = ""
    for entry in entries:
        if item_id is not None and getattr(entry.event, "item_id", None) == item_id:
            text += _read_delta(entry)
            if len(text) > MAX_SEARCHED_CHARS:
                break
    return f"{name}(" in text or _MEMBERS.search(text) is not None
