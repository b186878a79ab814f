"""A store in memory with fixed limits. It ends with the process and evicts the oldest finished responses first."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from antiphon.app.base.event_log import EventLog, is_terminal
from antiphon.app.requests.chat.stored import ChatMessages
from antiphon.app.store.base import StoredCompletion, StoredConversation
from antiphon.app.store.history.reads import MemoryHistory
from antiphon.app.store.log_items import conversation_items
from antiphon.app.store.memory_completions import MemoryCompletions
from antiphon.events.inputs import AnyInput


class MemoryStore:
    """Stores at most `responses` logs of at most `size` bytes of JSON in total. Running responses are never evicted."""

    def __init__(self, responses: int = 10_000, size: int = 512 * 1024 * 1024) -> None:
        self._most, self._size = responses, size
        self._logs: OrderedDict[tuple[str, str], EventLog] = OrderedDict()
        self._growing: dict[tuple[str, str], EventLog] = {}
        self.completions = MemoryCompletions(self._logs)
        self._conversations: dict[tuple[str, str], tuple[StoredConversation, list[AnyInput]]] = {}
        self.history = MemoryHistory(self._logs, self._conversations)
        self._settled = 0  # bytes of the logs not in `_growing`: a finished log no longer grows

    def add_log(self, log: EventLog) -> None:
        """Stores a log, and evicts old ones if a limit is exceeded."""
        self._add_logs((log,))

    def add_completion(self, completion: StoredCompletion, messages: ChatMessages, logs: Sequence[EventLog]) -> None:
        """Stores a chat completion with the logs of its choices, and evicts old ones if a limit is exceeded."""
        self.completions.add_completion(logs[0].owner, completion, messages)
        self._add_logs(logs)

    def _add_logs(self, logs: Sequence[EventLog]) -> None:
        for log in logs:
            if log.conversation_id:
                log.listener = self
                self.on_append(log, 0)
            self._logs[log.owner, log.id] = self._growing[log.owner, log.id] = log
        self._count_finished()
        self._evict_oldest()

    def on_append(self, log: EventLog, first: int) -> None:
        """Adds the items of a response to its conversation when the response has completed or is incomplete."""
        if is_terminal(log.entries[first:]):
            self._append_items(log.owner, log.conversation_id, conversation_items(log))

    async def prepare_read(self, owner: str, response_id: str = "") -> None:
        """Returns at once."""

    def unavailable_reason(self) -> None:
        """Returns None: memory is always available."""

    async def request_cancel(self, log: EventLog) -> None:
        """Does nothing: no other process writes logs of this store."""

    def on_cancel_request(self, callback: Callable[[str], None]) -> None:
        """Does nothing: no other process uses this store."""

    async def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Stores a conversation, or its new metadata."""
        _, items = self._conversations.get((owner, conversation.id), (None, []))
        self._conversations[owner, conversation.id] = conversation, items

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the owner's conversation with this id."""
        found = self._conversations.get((owner, conversation_id))
        return found[0] if found else None

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Deletes a conversation and its items."""
        self._conversations.pop((owner, conversation_id), None)

    async def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """Appends items to a conversation."""
        self._append_items(owner, conversation_id, items)

    def _append_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """Appends items to a conversation. Does nothing if it has been deleted."""
        if found := self._conversations.get((owner, conversation_id)):
            found[1].extend(items)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Deletes an item of a conversation. Returns whether it existed."""
        items = self._conversations.get((owner, conversation_id), (None, []))[1]
        remaining = [item for item in items if item.id != item_id]
        deleted = len(remaining) < len(items)
        items[:] = remaining
        return deleted

    async def read_log(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the log of the owner's response."""
        return self._logs.get((owner, response_id))

    async def close(self) -> None:
        """Does nothing: there is no file to close."""

    async def delete_response(self, owner: str, response_id: str) -> bool:
        """Deletes the owner's response. Returns whether it existed."""
        self._count_finished()
        return self._delete_log((owner, response_id))

    async def delete_completion(self, owner: str, completion_id: str) -> bool:
        """Deletes the owner's chat completion with all its choices. Returns whether it existed."""
        self._count_finished()
        if self.completions.find_completion(owner, completion_id) is None:
            return False
        for key in self.completions.delete_with_choice((owner, completion_id)):
            self._delete_log(key)
        return True

    def _delete_log(self, key: tuple[str, str]) -> bool:
        log = self._logs.pop(key, None)
        if log is not None and self._growing.pop(key, None) is None:
            self._settled -= log.size
        return log is not None

    def __len__(self) -> int:
        return len(self._logs)

    def _count_finished(self) -> None:
        """Adds the sizes of logs that have ended since the last call to the total of finished logs."""
        for key in [key for key, log in self._growing.items() if log.ended]:
            self._settled += self._growing.pop(key).size

    def _evict_oldest(self) -> None:
        """Evicts the oldest finished responses until both limits hold. Running ones count with their current size."""
        size = self._settled + sum(log.size for log in self._growing.values())
        evicted: dict[tuple[str, str], None] = {}
        for key in self._logs:
            if len(self._logs) - len(evicted) <= self._most and size <= self._size:
                break
            together = [each for each in self.completions.choices_with(key) if each in self._logs]
            if key not in evicted and not any(each in self._growing for each in together):
                evicted.update(dict.fromkeys(together))
                size -= sum(self._logs[each].size for each in together)
        for key in evicted:
            self.completions.delete_with_choice(key)
            self._settled -= self._logs.pop(key).size
