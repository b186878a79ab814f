"""What was said before: the chain of responses behind `previous_response_id`, and stored items by id.

A response's part of the chain is what was put in and what came out; instructions are never inherited.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.encryption import DecryptionError, Purpose, Sealer
from antiphon.app.errors import ApiError, clip_text, not_found
from antiphon.app.event_log import EventLog
from antiphon.app.requests.shared import conversation_of
from antiphon.app.store.base import ResponseStore
from antiphon.app.store.log_items import output_as_input
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    HostedInput,
    InputMessage,
    InputReasoning,
)

ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""Of ids, by the type of an item; of any other it is `item`."""
MAX_CHAIN_ITEMS = 100_000
"""Items that a chain may have: each of them is looked at for every turn."""


class StoredHistory(Struct, frozen=True):
    """One owner's past, as a store knows it and seals keep it."""

    store: ResponseStore
    owner: str
    sealer: Sealer

    def find_item(self, item_id: str) -> Struct | None:
        """The item, put in or put out, that an `item_reference` means."""
        return self.store.find_item(self.owner, item_id)

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """What stands before the input of a request. Raises `ApiError`."""
        if (conversation := conversation_of(body)) is not None:
            if self.store.find_conversation(self.owner, conversation) is None:
                raise not_found(f"Conversation with id '{clip_text(conversation)}' not found.", "conversation")
            return after_compaction(self.store.conversation_items(self.owner, conversation))
        previous = body.get("previous_response_id")
        return after_compaction(self.response_chain(previous)) if previous is not None else ()

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """The text inside what came sealed; None: it was not sealed here, for this owner."""
        purpose: Purpose = "compaction" if isinstance(item, CompactionInput) else "reasoning"
        try:
            return self.sealer.open(self.owner, purpose, item.encrypted_content or "")
        except DecryptionError:
            return None

    def response_chain(self, response_id: str) -> tuple[AnyInput, ...]:
        """Everything that was said up to the end of a response. Raises `ApiError` 400."""
        parts: list[tuple[AnyInput, ...]] = []
        count, wanted = 0, response_id
        while wanted:
            log = self._find_finished(wanted)
            parts.append((*log.input_items, *output_as_input(log.response)))
            count += len(parts[-1])
            if count > MAX_CHAIN_ITEMS:
                raise ApiError(400, "context_length_exceeded", "The conversation has too many items.", "input")
            wanted = log.base_response.previous_response_id or ""
            if log.conversation_id:
                parts.append(self._conversation_before(log))
        return tuple(item for part in reversed(parts) for item in part)

    def _conversation_before(self, log: EventLog) -> tuple[AnyInput, ...]:
        """What was said in a response's conversation before it; nothing where that is gone."""
        talk = self.store.conversation_items(self.owner, log.conversation_id)
        own = {item.id for item in (*log.input_items, *log.response.output)}
        first = next((place for place, item in enumerate(talk) if item.id in own), 0)
        return talk[:first]

    def _find_finished(self, response_id: str) -> EventLog:
        log = self.store.find_log(self.owner, response_id)
        if log is None:
            message = f"Previous response with id '{clip_text(response_id)}' not found."
            raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
        if not log.ended or log.published < len(log.entries):
            message = f"Previous response with id '{clip_text(response_id)}' is still in progress."
            raise ApiError(400, "previous_response_in_progress", message, "previous_response_id")
        return log


def after_compaction(items: tuple[AnyInput, ...]) -> tuple[AnyInput, ...]:
    """What a compaction leaves of a past: before the last one, the messages that were not the model's, and tools."""
    last = max((place for place, item in enumerate(items) if isinstance(item, CompactionInput)), default=0)
    return (*filter(_survives_compaction, items[:last]), *items[last:])


def _survives_compaction(item: AnyInput) -> bool:
    said = isinstance(item, InputMessage) and item.role != "assistant"
    return said or isinstance(item, AdditionalToolsInput)


def with_ids(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """The items, each with an id: the client's own, or one that follows from the response's and the place."""
    suffix = response_id.partition("_")[2]
    found = []
    for place, item in enumerate(items):
        kind = item.kind if isinstance(item, HostedInput) else str(item.__struct_config__.tag)
        made = f"{ID_PREFIXES.get(kind, 'item')}_{suffix}{place:04x}"
        found.append(item if item.id else msgspec.structs.replace(item, id=made))
    return tuple(found)
