"""What a response said, as a client would send it back."""

from collections.abc import Iterator

import msgspec

from antiphon.app.event_log import EventLog
from antiphon.app.requests.input_items import read_item
from antiphon.events.inputs import AnyInput
from antiphon.events.items import CustomToolCall, FunctionCall
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import ItemDone, LifecycleEvent


def output_as_input(response: Response) -> Iterator[AnyInput]:
    """What it put out. A call that broke off is none: nobody acted on it."""
    for item in response.output:
        if not (isinstance(item, FunctionCall | CustomToolCall) and item.status == "incomplete"):
            yield read_item(msgspec.to_builtins(item), "previous_response_id")


def conversation_items(log: EventLog) -> list[AnyInput]:
    """What it adds to its conversation: what was put in, then what it put out; nothing where it did not end well."""
    last = log.entries[-1].event
    if not isinstance(last, LifecycleEvent) or last.response.status not in ("completed", "incomplete"):
        return []
    return [*log.input_items, *output_as_input(last.response)]


def find_item(log: EventLog, item_id: str) -> OutputItem | AnyInput | None:
    """An item that was put in, or one that was said to be done, by its id."""
    for given in log.input_items:
        if given.id == item_id:
            return given
    if log.ended and all(item.id != item_id for item in log.response.output):
        return None  # the output of a finished response is at hand; only one that holds the item is gone through
    for frame in log.entries[: log.published]:
        if isinstance(frame.event, ItemDone) and frame.event.item.id == item_id:
            return frame.event.item
    return None
