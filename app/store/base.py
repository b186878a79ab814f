"""Where logs are kept. `Store` is all that the rest of the house knows of it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.app.event_log import Log
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class Conversation(Struct, frozen=True, kw_only=True):
    """What turns may lean on besides each other: items in order, kept apart from this."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class Store(Protocol):
    """Keeps logs by owner and id. What is not this owner's looks exactly like what does not exist."""

    def put(self, log: Log) -> None:
        """Keep this log from now on, while it is being written."""

    def get(self, owner: str, response_id: str) -> Log | None:
        """The log of that response."""

    def item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item that was put in, or an output item that was said to be done, by its id."""

    async def close(self) -> None:
        """Make everything safe, and let go of it."""
        ...

    def save(self, owner: str, conversation: Conversation) -> None:
        """Keep a new conversation, or new metadata of a known one."""

    def conversation(self, owner: str, conversation_id: str) -> Conversation | None:
        """The conversation with that id."""

    def drop(self, owner: str, conversation_id: str) -> None:
        """Forget a conversation and its items."""

    def talk(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """All items of a conversation, each with an id, in order."""
        ...

    def add(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More items, each with an id; what a turn in the conversation said is added by the store itself."""

    def remove(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Forget an item; whether there was one."""
        ...

    def obstacle(self) -> str | None:
        """Why nothing can be kept now, if so."""

    def end(self, log: Log) -> None:
        """Ask the process that writes a log to end its turn; it hears so within seconds."""

    def listen(self, asked: Callable[[str], None]) -> None:
        """`asked` hears the id of every response written here that is to end, since somebody elsewhere said so."""

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; whether there was one. Whoever reads it reads on."""
        ...
