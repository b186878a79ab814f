"""What was said before: the chain of responses behind `previous_response_id`, and stored items by id.

A response's part of the chain is what was put in and what came out; instructions are never inherited.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from app.errors import ApiError, clip
from app.log import Log
from app.requests.items import read_item
from app.store import Store
from events.inputs import AnyInput, HostedInput
from events.items import CustomToolCall, FunctionCall

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""Of ids, by the type of an item; of any other it is `item`."""
MOST = 100_000
"""Items that a chain may have: each of them is looked at for every turn."""


class Past(Struct, frozen=True):
    """One owner's past, as a store knows it."""

    store: Store
    owner: str

    def item(self, item_id: str) -> Struct | None:
        """The item, put in or put out, that an `item_reference` means."""
        return self.store.item(self.owner, item_id)

    def before(self, response_id: str) -> tuple[AnyInput, ...]:
        """Everything that was said up to the end of a response. Raises `ApiError` 400."""
        parts: list[tuple[AnyInput, ...]] = []
        count, wanted = 0, response_id
        while wanted:
            log = self._find(wanted)
            parts.append((*log.given, *said(log)))
            count += len(parts[-1])
            if count > MOST:
                raise ApiError(400, "context_length_exceeded", "The conversation has too many items.", "input")
            wanted = log.head.previous_response_id or ""
        return tuple(item for part in reversed(parts) for item in part)

    def _find(self, response_id: str) -> Log:
        log = self.store.get(self.owner, response_id)
        if log is None:
            message = f"Previous response with id '{clip(response_id)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        if not log.ended or log.shown < len(log.frames):
            message = f"Previous response with id '{clip(response_id)}' is still in progress."
            raise ApiError(400, "previous_response_in_progress", message, "previous_response_id")
        return log


def said(log: Log) -> Iterator[AnyInput]:
    """What a response put out, as a client would send it back. A call that broke off is none: nobody acted on it."""
    for item in log.response.output:
        if not (isinstance(item, FunctionCall | CustomToolCall) and item.status == "incomplete"):
            yield read_item(msgspec.to_builtins(item), "previous_response_id")


def identified(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """The items, each with an id: the client's own, or one that follows from the response's and the place."""
    suffix = response_id.partition("_")[2]
    found = []
    for place, item in enumerate(items):
        kind = item.kind if isinstance(item, HostedInput) else str(item.__struct_config__.tag)
        made = f"{PREFIXES.get(kind, 'item')}_{suffix}{place:04x}"
        found.append(item if item.id else msgspec.structs.replace(item, id=made))
    return tuple(found)
