"""The interface of response stores. Turns and routes use a store only through `ResponseStore`."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.app.event_log import EventLog
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class StoredConversation(Struct, frozen=True, kw_only=True):
    """A conversation that turns can continue. Its ordered items are stored separately."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class ResponseStore(Protocol):
    """Stores event logs by owner and id. For an owner, data of other owners does not exist."""

    def add_log(self, log: EventLog) -> None:
        """Stores this log from now on, while it is being written."""

    def find_log(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the log of a response."""

    def find_item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """Returns an input item or a completed output item by its id."""

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the conversation with this id."""

    def conversation_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Returns the items of a conversation, each with an id, in order."""
        ...

    def unavailable_reason(self) -> str | None:
        """Returns the reason why nothing can be stored now, or None."""

    def on_cancel_request(self, callback: Callable[[str], None]) -> None:
        """Registers a callback for the id of each response here that another process cancels or takes over."""

    async def close(self) -> None:
        """Writes everything that is pending and closes the store."""
        ...

    # Changes return when they are durable. They raise `ApiError` 503, and change nothing, if they cannot be stored.

    async def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Stores a new conversation, or the new metadata of an existing one."""

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Deletes a conversation and its items."""

    async def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """Appends items, each with an id. The store itself appends the items of a turn in the conversation."""

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Deletes an item. Returns whether it existed."""
        ...

    async def delete_response(self, owner: str, response_id: str) -> bool:
        """Deletes a response. Returns whether it existed. Readers that already follow it are not interrupted."""
        ...

    async def request_cancel(self, log: EventLog) -> None:
        """Asks the process that writes a log to cancel its turn. The process notices within seconds."""
