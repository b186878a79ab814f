"""Changes of a legal stream, from which the tables of mutants are made."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_writer import Event

Change = Callable[[list[Event]], Any]


@dataclass(frozen=True)
class StreamMutant:
    """A change of a legal stream. `change` alters the events in place, or returns others."""

    name: str
    base: str
    change: Change
    code: str
    renumber: bool = True
    """Whether the events are numbered again after the change."""
    request: dict[str, Any] | None = None

    def build(self) -> list[Event]:
        """Returns the events of the broken stream."""
        events = LEGAL[self.base]()
        changed = self.change(events)
        events = [copy.deepcopy(event) for event in (changed if isinstance(changed, list) else events)]
        if self.renumber:
            for number, event in enumerate(events):
                event["sequence_number"] = number
        return events


def find(events: list[Event], kind: str, number: int = 0) -> Event:
    """Returns an event by its type without `response.`. A negative number counts from the end."""
    return [event for event in events if event["type"].removeprefix("response.") == kind][number]


def drop(kind: str, number: int = 0) -> Change:
    return lambda events: [event for event in events if event is not find(events, kind, number)]


def repeat(kind: str, number: int = 0) -> Change:
    def change(events: list[Event]) -> list[Event]:
        position = events.index(find(events, kind, number))
        return events[: position + 1] + copy.deepcopy(events[position : position + 1]) + events[position + 1 :]

    return change


def move(kind: str, distance: int, number: int = 0) -> Change:
    def change(events: list[Event]) -> None:
        event = find(events, kind, number)
        position = events.index(event)
        events.insert(position + distance, events.pop(position))

    return change


def put(kind: str, path: str, value: Any, number: int = 0) -> Change:
    """Sets the value at a path such as `item.content.0.text` of one event."""

    def change(events: list[Event]) -> None:
        *keys, last = path.split(".")
        place: Any = find(events, kind, number)
        for key in keys:
            place = place[int(key) if isinstance(place, list) else key]
        place[int(last) if isinstance(place, list) else last] = value

    return change


def cut(kind: str, path: str, number: int = 0) -> Change:
    """Deletes the key at a path of one event."""

    def change(events: list[Event]) -> None:
        *keys, last = path.split(".")
        place: Any = find(events, kind, number)
        for key in keys:
            place = place[int(key) if isinstance(place, list) else key]
        del place[int(last) if isinstance(place, list) else last]

    return change


def both(*changes: Change) -> Change:
    def change(events: list[Event]) -> list[Event]:
        for each in changes:
            changed = each(events)
            events = changed if isinstance(changed, list) else events
        return events

    return change


def insert(position: int, event: Event) -> Change:
    return lambda events: events.insert(position, event)


def everywhere(key: str, value: Any) -> Change:
    """Sets a key of the response in all snapshots."""

    def change(events: list[Event]) -> None:
        for event in events:
            if "response" in event:
                event["response"][key] = value

    return change


def rename_item(kinds: tuple[str, ...], new: str) -> Change:
    """Gives the events of these kinds another item id."""

    def change(events: list[Event]) -> None:
        for event in events:
            if event["type"].removeprefix("response.") in kinds:
                event["item_id"] = new

    return change


def replace_strings(value: Any, texts: dict[str, str]) -> Any:
    """Returns a JSON value in which whole strings are replaced."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [replace_strings(each, texts) for each in value]
    if isinstance(value, dict):
        return {key: replace_strings(each, texts) for key, each in value.items()}
    return value
