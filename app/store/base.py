"""The interface of response stores. Turns and routes use a store only through `ResponseStore`."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.app.base.event_log import EventLog
from antiphon.app.base.reply_form import ChatOptions
from antiphon.app.requests.chat.stored import ChatMessages, CompletionQuery
from antiphon.app.store.log_items import StoredTurn
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class StoreError(OSError):
    """The store cannot be opened or used. The message is one line for the operator."""


class StoredConversation(Struct, frozen=True, kw_only=True):
    """A conversation that turns can continue. Its ordered items are stored separately."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class ChatForm(Struct, frozen=True, kw_only=True):
    """Form of the messages in a chat completion, as the request and the server's settings determined it."""

    logprobs: bool = False
    as_function_call: bool = False
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    options: ChatOptions = ChatOptions()


class StoredCompletion(Struct, frozen=True, kw_only=True):
    """A chat completion. Each choice is a log of the store; the completion has the id of the first one."""

    id: str
    created_at: int
    model: str
    metadata: dict[str, str]
    choice_ids: tuple[str, ...]
    form: ChatForm


class CompletionStore(Protocol):
    """The chat completions of a store. One exists for its readers from the end of all its choices on."""

    def find_completion(self, owner: str, completion_id: str) -> StoredCompletion | None:
        """Returns the completion with this id."""

    def list_completions(self, owner: str, query: CompletionQuery) -> list[StoredCompletion]:
        """Returns the completions that the query selects."""
        ...

    def completion_messages(self, owner: str, completion_id: str) -> ChatMessages:
        """Returns the messages that the client sent; none if the completion does not exist."""
        ...

    async def save_metadata(self, owner: str, completion_id: str, metadata: dict[str, str]) -> None:
        """Replaces the metadata of a completion. Like every change, it returns when it is durable."""


AnyItem = OutputItem | AnyInput
ReadTurn = Callable[[], StoredTurn | None]
ReadItems = Callable[[], tuple[AnyInput, ...]]
FindItem = Callable[[str], AnyItem | None]


class HistoryReads(Protocol):
    """The reads of one store. For an owner, data of other owners does not exist."""

    def turn_reader(self, owner: str, response_id: str) -> ReadTurn:
        """Returns a function that reads the turn of a response, finished or not. It returns None if there is none."""
        ...

    def conversation_reader(self, owner: str, conversation_id: str) -> ReadItems:
        """Returns a function that returns the items of a conversation, each with an id, in order."""
        ...

    def item_finder(self, owner: str) -> FindItem:
        """Returns a function that returns an input item, or a completed output item, by its id."""
        ...


class ResponseStore(Protocol):
    """Stores event logs by owner and id. For an owner, data of other owners does not exist."""

    @property
    def completions(self) -> CompletionStore:
        """The chat completions."""
        ...

    @property
    def history(self) -> HistoryReads:
        """Earlier turns and items."""
        ...

    def add_log(self, log: EventLog) -> None:
        """Stores this log from now on, while it is being written."""

    def add_completion(self, completion: StoredCompletion, messages: ChatMessages, logs: Sequence[EventLog]) -> None:
        """Stores a chat completion with the logs of its choices from now on."""

    async def read_log(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the log of a response. A thread reads it, however large it is."""

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the conversation with this id."""

    async def prepare_read(self, owner: str, response_id: str = "") -> None:
        """Waits until reads will not keep the event loop waiting: of all that the owner has, or of one response.

        Raises `ApiError` 503 if the data cannot be read now.
        """

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

    async def delete_completion(self, owner: str, completion_id: str) -> bool:
        """Deletes a chat completion with all its choices. Returns whether it existed."""
        ...

    async def request_cancel(self, log: EventLog) -> None:
        """Asks the process that writes a log to cancel its turn. The process notices within seconds."""
