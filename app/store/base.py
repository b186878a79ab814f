"""Where logs are kept. `Store` is all that the rest of the house knows of it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.app.event_log import EventLog
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class StoredConversation(Struct, frozen=True, kw_only=True):
    """What turns may lean on besides each other: items in order, kept apart from this."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class ResponseStore(Protocol):
    """Keeps logs by owner and id. What is not this owner's looks exactly like what does not exist."""

    def add_log(self, log: EventLog) -> None:
        """Keep this log from now on, while it is being written."""

    def find_log(self, owner: str, response_id: str) -> EventLog | None:
        """The log of that response."""

    def find_item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item that was put in, or an output item that was said to be done, by its id."""

    async def close(self) -> None:
        """Make everything safe, and let go of it."""
        ...

    def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Keep a new conversation, or new metadata of a known one."""

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """The conversation with that id."""

    def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Forget a conversation and its items."""

    def conversation_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """All items of a conversation, each with an id, in order."""
        ...

    def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More items, each with an id; what a turn in the conversation said is added by the store itself."""

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Forget an item; whether there was one."""
        ...

    def unavailable_reason(self) -> str | None:
        """Why nothing can be kept now, if so."""

    def request_cancel(self, log: EventLog) -> None:
        """Ask the process that writes a log to end its turn; it hears so within seconds."""

    def on_cancel_request(self, asked: Callable[[str], None]) -> None:
        """`asked` hears the id of every response written here that is to end, since somebody elsewhere said so."""

    def delete_response(self, owner: str, response_id: str) -> bool:
        """Forget a response; whether there was one. Whoever reads it reads on."""
        ...
