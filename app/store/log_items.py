"""Reads items from an event log; output items are converted to the input items that a client would send back."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.builtin_calls import ApplyPatchCall, LocalShellCall, ShellCall
from antiphon.events.hosted import ToolSearchCall
from antiphon.events.inputs import AnyInput
from antiphon.events.items import CustomToolCall, FunctionCall
from antiphon.events.response import OutputItem
from antiphon.events.stream import ItemDone, LifecycleEvent


def output_as_input(output: Iterable[OutputItem]) -> Iterator[AnyInput]:
    """Yields the output of a response as input items.

    Incomplete calls are skipped, because no client acted on them, but not those that the server runs: it may have.
    """
    for item in output:
        if not _is_cut_call(item):
            yield read_item(msgspec.to_builtins(item), "previous_response_id")


def _is_cut_call(item: OutputItem) -> bool:
    if isinstance(item, ApplyPatchCall):
        return item.status != "completed"
    return (
        isinstance(item, FunctionCall | CustomToolCall | ShellCall | LocalShellCall | ToolSearchCall)
        and item.status == "incomplete"
    )


def conversation_items(log: EventLog) -> list[AnyInput]:
    """Returns the items that a response adds to its conversation: its input, then its output.

    A response that failed or was cancelled adds none, and neither does one that is still running.
    """
    last = log.entries[-1].event
    if not isinstance(last, LifecycleEvent) or last.response.status not in ("completed", "incomplete"):
        return []
    return [*log.input_items, *output_as_input(last.response.output)]


def completed_items(log: EventLog) -> Iterator[OutputItem]:
    """Yields the output items of a log that have a published `output_item.done` event."""
    for entry in log.entries[: log.published]:
        if isinstance(entry.event, ItemDone):
            yield entry.event.item


class StoredTurn(Struct, frozen=True, kw_only=True):
    """The items of a response, and what it continues. While it runs, its output has the completed items only."""

    input_items: tuple[AnyInput, ...]
    output: tuple[OutputItem, ...]
    is_finished: bool
    previous_response_id: str | None
    conversation_id: str
    num_bytes: int = 0
    """Size of the input items as JSON; 0 if they were in memory before."""

    def items_by_id(self) -> dict[str, OutputItem | AnyInput]:
        """Returns all items that have ids."""
        return {item.id: item for item in (*self.output, *self.input_items) if item.id}


def turn_of_log(log: EventLog) -> StoredTurn:
    """Returns the turn of a log. Any thread may call it."""
    is_finished = log.ended and log.published >= len(log.entries)
    return StoredTurn(
        input_items=log.input_items,
        output=log.response.output if is_finished else tuple(completed_items(log)),
        is_finished=is_finished,
        previous_response_id=log.base_response.previous_response_id,
        conversation_id=log.conversation_id,
    )
