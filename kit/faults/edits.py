"""Faults that change a stream wherever a value occurs: repeated ids, changed ids; broken arguments elsewhere."""

from typing import Any

from antiphon.kit.faults.arguments import ArgumentsEditor, StreamEditor
from antiphon.kit.faults.fault import WireFault
from antiphon.kit.faults.frames import EventFrame

Json = dict[str, Any]

CHANGED_SUFFIX = "_changed"
"""Suffix of an id that changes."""


def create_editor(fault: WireFault) -> StreamEditor | None:
    """Returns the editor of a kind of fault, or None if it has none: it happens at a marked event."""
    number = fault.number or 1
    if fault.kind == "broken_arguments":
        return ArgumentsEditor(number)
    if fault.kind == "duplicate_id":
        return RepeatedIdEditor(number)
    return ChangedIdEditor(number) if fault.kind == "id_changed" else None


class RepeatedIdEditor(StreamEditor):
    """Gives the item after the `number`-th one its id, in all events and in the terminal response."""

    def __init__(self, number: int) -> None:
        self._index = number
        self._num_items = 0
        self._first_id = self._second_id = ""

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frame with the repeated id."""
        event = frame.event
        if event is None:
            return [frame.raw]
        if frame.kind == "response.output_item.added":
            self._num_items += 1
            if self._num_items == self._index:
                self._first_id = event["item"].get("id", "")
            elif self._num_items == self._index + 1:
                self._second_id, self.is_applied = event["item"].get("id", ""), True
        if self._second_id and _replace_id(event, self._second_id, self._first_id):
            return [frame.replace_event(event)]
        return [frame.raw]


class ChangedIdEditor(StreamEditor):
    """Gives the `number`-th item another id in the terminal response."""

    def __init__(self, number: int) -> None:
        self._index = number - 1

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frame, with the changed id if it is the terminal one."""
        event = frame.event or {}
        output = (event.get("response") or {}).get("output") or []
        if len(output) <= self._index:
            return [frame.raw]
        output[self._index]["id"] += CHANGED_SUFFIX
        self.is_applied = True
        return [frame.replace_event(event)]


def _replace_id(event: Json, old_id: str, new_id: str) -> bool:
    """Replaces an item's id wherever an event has it. Returns whether it had it."""
    owners = [(event, "item_id"), (event.get("item") or {}, "id")]
    owners += [(item, "id") for item in (event.get("response") or {}).get("output") or ()]
    found = [(owner, key) for owner, key in owners if owner.get(key) == old_id]
    for owner, key in found:
        owner[key] = new_id
    return bool(found)
