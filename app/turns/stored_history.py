"""Earlier items of a conversation, from the chain of `previous_response_id` or from a stored conversation.

Each response in the chain contributes its input and output items. Instructions are never inherited.
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
"""Id prefix for each item type; `item` for any other type."""
MAX_CHAIN_ITEMS = 100_000
"""Maximum number of items in a chain: every turn processes all of them."""


class StoredHistory(Struct, frozen=True):
    """Earlier items of one owner, from the store and from sealed content that the client sends back."""

    store: ResponseStore
    owner: str
    sealer: Sealer

    def find_item(self, item_id: str) -> Struct | None:
        """Returns the input or output item that an `item_reference` refers to."""
        return self.store.find_item(self.owner, item_id)

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """Returns the items that precede the input of a request. Raises `ApiError`."""
        if (conversation := conversation_of(body)) is not None:
            if self.store.find_conversation(self.owner, conversation) is None:
                raise not_found(f"Conversation with id '{clip_text(conversation)}' not found.", "conversation")
            return after_compaction(self.store.conversation_items(self.owner, conversation))
        previous = body.get("previous_response_id")
        return after_compaction(self.response_chain(previous)) if previous is not None else ()

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the text of sealed content; None if it was not sealed by this server for this owner and purpose."""
        purpose: Purpose = "compaction" if isinstance(item, CompactionInput) else "reasoning"
        try:
            return self.sealer.open(self.owner, purpose, item.encrypted_content or "")
        except DecryptionError:
            return None

    def response_chain(self, response_id: str) -> tuple[AnyInput, ...]:
        """Returns all items up to the end of a response, oldest first. Raises `ApiError` 400."""
        parts: list[tuple[AnyInput, ...]] = []
        count = 0
        next_id: str | None = response_id
        while next_id is not None:
            log = self._find_finished(next_id)
            parts.append((*log.input_items, *output_as_input(log.response)))
            count += len(parts[-1])
            if count > MAX_CHAIN_ITEMS:
                raise ApiError(
                    400, "context_length_exceeded", "The conversation has too many items. Start a new one.", "input"
                )
            next_id = log.base_response.previous_response_id
            if log.conversation_id:
                parts.append(self._conversation_before(log))
        return tuple(item for part in reversed(parts) for item in part)

    def _conversation_before(self, log: EventLog) -> tuple[AnyInput, ...]:
        """Returns the items that precede a response in its conversation; none if the response's items were deleted."""
        items = self.store.conversation_items(self.owner, log.conversation_id)
        response_ids = {item.id for item in (*log.input_items, *log.response.output)}
        first = next((index for index, item in enumerate(items) if item.id in response_ids), 0)
        return items[:first]

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
    """Removes the items that the last compaction replaces: those before it, except non-assistant messages and tools.

    Example: user 1, assistant, compaction, user 2 becomes user 1, compaction, user 2.
    """
    last = max((index for index, item in enumerate(items) if isinstance(item, CompactionInput)), default=0)
    return (*filter(_survives_compaction, items[:last]), *items[last:])


def _survives_compaction(item: AnyInput) -> bool:
    is_client_message = isinstance(item, InputMessage) and item.role != "assistant"
    return is_client_message or isinstance(item, AdditionalToolsInput)


def with_ids(items: tuple[AnyInput, ...], response_id: str) -> tuple[AnyInput, ...]:
    """Returns the items, each with an id: the client's, or one made of the response id and the item's index."""
    suffix = response_id.partition("_")[2]
    identified = []
    for index, item in enumerate(items):
        kind = item.kind if isinstance(item, HostedInput) else str(item.__struct_config__.tag)
        new_id = f"{ID_PREFIXES.get(kind, 'item')}_{suffix}{index:04x}"
        identified.append(item if item.id else msgspec.structs.replace(item, id=new_id))
    return tuple(identified)
