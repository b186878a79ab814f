"""Reads items from an event log; output items are converted to the input items that a client would send back."""

from collections.abc import Iterator

import msgspec

from antiphon.app.event_log import EventLog
from antiphon.app.requests.input_items import read_item
from antiphon.events.inputs import AnyInput
from antiphon.events.items import CustomToolCall, FunctionCall
from antiphon.events.response import OutputItem, Response
from antiphon.events.stream import ItemDone, LifecycleEvent


def output_as_input(response: Response) -> Iterator[AnyInput]:
    """Yields the output of a response as input items. Incomplete calls are skipped: no client acted on them."""
    for item in response.output:
        if not (isinstance(item, FunctionCall | CustomToolCall) and item.status == "incomplete"):
            yield read_item(msgspec.to_builtins(item), "previous_response_id")


def conversation_items(log: EventLog) -> list[AnyInput]:
    """Returns the items that a response adds to its conversation: its input, then its output.

    A response that failed or was cancelled adds none, and neither does one that is still running.
    """
    last = log.entries[-1].event
    if not isinstance(last, LifecycleEvent) or last.response.status not in ("completed", "incomplete"):
        return []
    return [*log.input_items, *output_as_input(last.response)]


def find_item(log: EventLog, item_id: str) -> OutputItem | AnyInput | None:
    """Returns an input item of the log, or an output item with a published `output_item.done` event, by its id."""
    for input_item in log.input_items:
        if input_item.id == item_id:
            return input_item
    if log.ended and all(item.id != item_id for item in log.response.output):
        return None  # cheap check for finished responses: only a log that contains the item is scanned
    for entry in log.entries[: log.published]:
        if isinstance(entry.event, ItemDone) and entry.event.item.id == item_id:
            return entry.event.item
    return None
