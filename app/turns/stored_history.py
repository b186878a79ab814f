"""What was said before: the chain of responses behind `previous_response_id`, and stored items by id.

A response's part of the chain is what was put in and what came out; instructions are never inherited.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.encryption import Purpose, SealError, Seals
from antiphon.app.errors import ApiError, clip, not_found
from antiphon.app.event_log import Log
from antiphon.app.requests.shared import conversation_of
from antiphon.app.store.base import Store
from antiphon.app.store.log_items import said
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    HostedInput,
    InputMessage,
    InputReasoning,
)

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""Of ids, by the type of an item; of any other it is `item`."""
MOST = 100_000
"""Items that a chain may have: each of them is looked at for every turn."""


class Past(Struct, frozen=True):
    """One owner's past, as a store knows it and seals keep it."""

    store: Store
    owner: str
    seals: Seals

    def item(self, item_id: str) -> Struct | None:
        """The item, put in or put out, that an `item_reference` means."""
        return self.store.item(self.owner, item_id)

    def earlier(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """What stands before the input of a request. Raises `ApiError`."""
        if (conversation := conversation_of(body)) is not None:
            if self.store.conversation(self.owner, conversation) is None:
                raise not_found(f"Conversation with id '{clip(conversation)}' not found.", "conversation")
            return shortened(self.store.talk(self.owner, conversation))
        previous = body.get("previous_response_id")
        return shortened(self.before(previous)) if previous is not None else ()

    def opened(self, item: InputReasoning | CompactionInput) -> str | None:
        """The text inside what came sealed; None: it was not sealed here, for this owner."""
        purpose: Purpose = "compaction" if isinstance(item, CompactionInput) else "reasoning"
        try:
            return self.seals.open(self.owner, purpose, item.encrypted_content or "")
        except SealError:
            return None

    def before(self, response_id: str) -> tuple[AnyInput, ...]:
        """Everything that was said up to the end of a response. Raises `ApiError` 400."""
        parts: list[tuple[AnyInput, ...]] = []
        count, wanted = 0, response_id
        while wanted:
            log = self._find(wanted)
            parts.append((*log.given, *said(log.response)))
            count += len(parts[-1])
            if count > MOST:
                raise ApiError(400, "context_length_exceeded", "The conversation has too many items.", "input")
            wanted = log.head.previous_response_id or ""
            if log.conversation:
                parts.append(self._up_to(log))
        return tuple(item for part in reversed(parts) for item in part)

    def _up_to(self, log: Log) -> tuple[AnyInput, ...]:
        """What was said in a response's conversation before it; nothing where that is gone."""
        talk = self.store.talk(self.owner, log.conversation)
        own = {item.id for item in (*log.given, *log.response.output)}
        first = next((place for place, item in enumerate(talk) if item.id in own), 0)
        return talk[:first]

    def _find(self, response_id: str) -> Log:
        log = self.store.get(self.owner, response_id)
        if log is None:
            message = f"Previous response with id '{clip(response_id)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        if not log.ended or log.shown < len(log.frames):
            message = f"Previous response with id '{clip(response_id)}' is still in progress."
            raise ApiError(400, "previous_response_in_progress", message, "previous_response_id")
        return log


def shortened(items: tuple[AnyInput, ...]) -> tuple[AnyInput, ...]:
    """What a compaction leaves of a past: before the last one, the messages that were not the model's, and tools."""
    last = max((place for place, item in enumerate(items) if isinstance(item, CompactionInput)), default=0)
    return (*filter(_outlives, items[:last]), *items[last:])


def _outlives(item: AnyInput) -> bool:
    said = isinstance(item, InputMessage) and item.role != "assistant"
    return said or isinstance(item, AdditionalToolsInput)


def identified(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """The items, each with an id: the client's own, or one that follows from the response's and the place."""
    suffix = response_id.partition("_")[2]
    found = []
    for place, item in enumerate(items):
        kind = item.kind if isinstance(item, HostedInput) else str(item.__struct_config__.tag)
        made = f"{PREFIXES.get(kind, 'item')}_{suffix}{place:04x}"
        found.append(item if item.id else msgspec.structs.replace(item, id=made))
    return tuple(found)
