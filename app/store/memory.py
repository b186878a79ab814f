"""A store that lives as long as the process, and stays within bounds: the oldest finished responses go first."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from antiphon.app.event_log import EventLog, is_terminal
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.log_items import conversation_items, find_item
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class MemoryStore:
    """Keeps at most `responses` logs of at most `size` bytes of JSON together. Running ones are never dropped."""

    def __init__(self, responses: int = 10_000, size: int = 512 * 1024 * 1024) -> None:
        self._most, self._size = responses, size
        self._logs: OrderedDict[tuple[str, str], EventLog] = OrderedDict()
        self._growing: dict[tuple[str, str], EventLog] = {}
        self._conversations: dict[tuple[str, str], tuple[StoredConversation, list[AnyInput]]] = {}
        self._settled = 0  # bytes of the others: what has ended grows no more

    def add_log(self, log: EventLog) -> None:
        """Keep a log, and let go of old ones if that is one too many."""
        if log.conversation_id:
            log.listener = self
            self.on_append(log, 0)
        self._logs[log.owner, log.id] = self._growing[log.owner, log.id] = log
        self._count_finished()
        self._evict_oldest()

    def on_append(self, log: EventLog, first: int) -> None:
        """A log has grown: what was said in a conversation belongs to it when its response has ended well."""
        if is_terminal(log.entries[first:]):
            self.add_items(log.owner, log.conversation_id, conversation_items(log))

    def unavailable_reason(self) -> None:
        """There is none."""

    def request_cancel(self, log: EventLog) -> None:
        """There is no other process."""

    def on_cancel_request(self, asked: Callable[[str], None]) -> None:
        """Nobody elsewhere knows of this store."""

    def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Keep a conversation."""
        _, items = self._conversations.get((owner, conversation.id), (None, []))
        self._conversations[owner, conversation.id] = conversation, items

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """The conversation of that owner with that id."""
        found = self._conversations.get((owner, conversation_id))
        return found[0] if found else None

    def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Forget it."""
        self._conversations.pop((owner, conversation_id), None)

    def conversation_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items."""
        found = self._conversations.get((owner, conversation_id))
        return tuple(found[1]) if found else ()

    def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More of them; to one that was dropped meanwhile, nothing."""
        if found := self._conversations.get((owner, conversation_id)):
            found[1].extend(items)

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """One of them less."""
        items = self._conversations.get((owner, conversation_id), (None, []))[1]
        rest = [item for item in items if item.id != item_id]
        gone = len(rest) < len(items)
        items[:] = rest
        return gone

    def find_log(self, owner: str, response_id: str) -> EventLog | None:
        """The log of that response of that owner."""
        return self._logs.get((owner, response_id))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def delete_response(self, owner: str, response_id: str) -> bool:
        """Forget a response of that owner's."""
        self._count_finished()
        key = owner, response_id
        log = self._logs.pop(key, None)
        if log is not None and self._growing.pop(key, None) is None:
            self._settled -= log.size
        return log is not None

    def find_item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item of that owner's by id; the latest responses are looked through first, then conversations."""
        for (holder, _), log in reversed(self._logs.items()):
            if holder == owner and (found := find_item(log, item_id)) is not None:
                return found
        talks = (items for (holder, _), (_, items) in self._conversations.items() if holder == owner)
        return next((item for items in talks for item in items if item.id == item_id), None)

    def __len__(self) -> int:
        return len(self._logs)

    def _count_finished(self) -> None:
        """Count what has ended since the last time, once and for all."""
        for key in [key for key, log in self._growing.items() if log.ended]:
            self._settled += self._growing.pop(key).size

    def _evict_oldest(self) -> None:
        """Let the oldest go that have ended, as many as there are too many. What still runs counts as far as it is."""
        size = self._settled + sum(log.size for log in self._growing.values())
        gone: list[tuple[str, str]] = []
        for key, log in self._logs.items():
            if len(self._logs) - len(gone) <= self._most and size <= self._size:
                break
            if key not in self._growing:
                gone.append(key)
                size -= log.size
        for key in gone:
            self._settled -= self._logs.pop(key).size
