"""A store that lives as long as the process, and stays within bounds: the oldest finished responses go first."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from antiphon.app.event_log import Log, ends
from antiphon.app.store.base import Conversation
from antiphon.app.store.log_items import item_of, spoken
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem


class MemoryStore:
    """Keeps at most `responses` logs of at most `size` bytes of JSON together. Running ones are never dropped."""

    def __init__(self, responses: int = 10_000, size: int = 512 * 1024 * 1024) -> None:
        self._most, self._size = responses, size
        self._logs: OrderedDict[tuple[str, str], Log] = OrderedDict()
        self._growing: dict[tuple[str, str], Log] = {}
        self._conversations: dict[tuple[str, str], tuple[Conversation, list[AnyInput]]] = {}
        self._settled = 0  # bytes of the others: what has ended grows no more

    def put(self, log: Log) -> None:
        """Keep a log, and let go of old ones if that is one too many."""
        if log.conversation:
            log.keeper = self
            self.keep(log, 0)
        self._logs[log.owner, log.id] = self._growing[log.owner, log.id] = log
        self._settle()
        self._forget()

    def keep(self, log: Log, first: int) -> None:
        """A log has grown: what was said in a conversation belongs to it when its response has ended well."""
        if ends(log.frames[first:]):
            self.add(log.owner, log.conversation, spoken(log))

    def obstacle(self) -> None:
        """There is none."""

    def end(self, log: Log) -> None:
        """There is no other process."""

    def listen(self, asked: Callable[[str], None]) -> None:
        """Nobody elsewhere knows of this store."""

    def save(self, owner: str, conversation: Conversation) -> None:
        """Keep a conversation."""
        _, items = self._conversations.get((owner, conversation.id), (None, []))
        self._conversations[owner, conversation.id] = conversation, items

    def conversation(self, owner: str, conversation_id: str) -> Conversation | None:
        """The conversation of that owner with that id."""
        found = self._conversations.get((owner, conversation_id))
        return found[0] if found else None

    def drop(self, owner: str, conversation_id: str) -> None:
        """Forget it."""
        self._conversations.pop((owner, conversation_id), None)

    def talk(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items."""
        found = self._conversations.get((owner, conversation_id))
        return tuple(found[1]) if found else ()

    def add(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More of them; to one that was dropped meanwhile, nothing."""
        if found := self._conversations.get((owner, conversation_id)):
            found[1].extend(items)

    def remove(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """One of them less."""
        items = self._conversations.get((owner, conversation_id), (None, []))[1]
        rest = [item for item in items if item.id != item_id]
        gone = len(rest) < len(items)
        items[:] = rest
        return gone

    def get(self, owner: str, response_id: str) -> Log | None:
        """The log of that response of that owner."""
        return self._logs.get((owner, response_id))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response of that owner's."""
        self._settle()
        key = owner, response_id
        log = self._logs.pop(key, None)
        if log is not None and self._growing.pop(key, None) is None:
            self._settled -= log.size
        return log is not None

    def item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item of that owner's by id; the latest responses are looked through first, then conversations."""
        for (holder, _), log in reversed(self._logs.items()):
            if holder == owner and (found := item_of(log, item_id)) is not None:
                return found
        talks = (items for (holder, _), (_, items) in self._conversations.items() if holder == owner)
        return next((item for items in talks for item in items if item.id == item_id), None)

    def __len__(self) -> int:
        return len(self._logs)

    def _settle(self) -> None:
        """Count what has ended since the last time, once and for all."""
        for key in [key for key, log in self._growing.items() if log.ended]:
            self._settled += self._growing.pop(key).size

    def _forget(self) -> None:
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
