"""Events of streams, made comparable where they arrived in other portions: adjacent deltas become one."""

import json
from typing import Any

from tests.invariants import Event

TEXT_PLACES: tuple[tuple[str | int, ...], ...] = (
    ("delta",),  # Responses
    ("delta", "text"),  # Messages
    ("delta", "thinking"),
    ("choices", 0, "delta", "content"),  # Chat
    ("choices", 0, "delta", "reasoning_content"),
    ("choices", 0, "text"),  # completions
)
"""Paths of the text of a delta in an event, one for each form."""
UNTIMED = ("keepalive", "ping")
"""Types of events that only show that the stream lives."""


def read_events(stream: str) -> list[Event]:
    """Returns the events of a stream of server-sent events, without the end mark."""
    lines = [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def merge_deltas(events: list[Event]) -> list[Event]:
    """Joins adjacent deltas of one text, and removes sequence numbers and signs of life. Changes the events."""
    merged: list[Event] = []
    last: tuple[Any, str] | None = None
    for event in events:
        if event.get("type") in UNTIMED:
            continue
        event.pop("sequence_number", None)
        delta = _take_delta(event)
        if delta is None or last != (event, delta[0]):
            merged.append({"event": event})
            last = None if delta is None else (event, delta[0])
        if delta is not None:
            merged[-1].setdefault("deltas", []).append(delta[1])
            merged[-1]["logprobs"] = [*merged[-1].get("logprobs", []), *delta[2]]
    return [entry | {"deltas": "".join(entry["deltas"])} if "deltas" in entry else entry for entry in merged]


def _take_delta(event: Event) -> tuple[str, str, list[Any]] | None:
    """Removes the text and the log-probabilities of a delta. Returns the place of the text, and both."""
    for path in TEXT_PLACES:
        holder: Any = event
        for key in path[:-1]:
            holder = holder[key] if isinstance(key, int) and holder else isinstance(holder, dict) and holder.get(key)
        if isinstance(holder, dict) and isinstance(holder.get(path[-1]), str) and holder[path[-1]]:
            return str(path), holder.pop(path[-1]), event.pop("logprobs", None) or []
    return None
