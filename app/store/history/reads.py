"""Reads of earlier turns and items, which may be thousands: prepared on the event loop, done in any thread.

A store's logs in memory are used on its event loop only. So each method of `HistoryReads` is called there, collects
what is in memory, and returns a function that does the rest in a thread: decoding, searching, reading the database.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import cache

from antiphon.app.errors import ApiError
from antiphon.app.store.base import AnyItem, FindItem, ReadTurn
from antiphon.app.store.conversation_tables import ItemPage
from antiphon.app.store.database import Database
from antiphon.app.store.log_items import completed_items, turn_of_log
from antiphon.app.store.writing.tracked_logs import TrackedLogs
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.inputs import AnyInput

SIZE_AGE_S = 20.0
"""Time between two counts of the size of an owner's conversations, which reads all of their rows."""
ReadDamagedLog = Callable[[], tuple[EventLog, str] | None]
MAX_SEARCHED_BYTES = 256 << 20
"""Maximum size of the turns that one request reads for its references. All of them are in memory at once."""


class HistoryReads:
    """The reads of a store, on a connection that any thread may use."""

    def __init__(self, database: Database, logs: TrackedLogs) -> None:
        self._turns, self._conversations, self._logs = database.turns, database.conversations, logs
        self._events = database.events
        self._sizes: dict[str | None, tuple[int, float]] = {}

    def turn_reader(self, owner: str, response_id: str) -> ReadTurn:
        """Returns a function that reads the turn of a response, finished or not. It returns None if there is none."""
        if response_id in self._logs.deleted:
            return lambda: None
        if (cached := self._logs.find(owner, response_id)) is not None:
            return lambda: turn_of_log(cached)
        return lambda: self._turns.load_turn(owner, response_id)

    def damaged_log_reader(self, owner: str, response_id: str) -> ReadDamagedLog:
        """Returns a function that reads a damaged log: see `EventTables.find_readable_part`."""
        if response_id in self._logs.deleted:
            return lambda: None
        return lambda: self._events.find_readable_part(owner, response_id)

    def load_conversation(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Returns the items of a conversation, each with an id, in order. Any thread may call it."""
        return self._conversations.load_items(owner, conversation_id)

    def load_page(
        self, owner: str, conversation_id: str, after: str | None, limit: int, *, descending: bool
    ) -> ItemPage | None:
        """Returns a page of the items of a conversation: see `ConversationTables`. Any thread may call it."""
        return self._conversations.load_page(owner, conversation_id, after, limit, descending=descending)

    def find_conversation_item(self, owner: str, conversation_id: str, item_id: str) -> AnyInput | None:
        """Returns an item of a conversation. Any thread may call it."""
        return self._conversations.find_item(owner, item_id, conversation_id)

    def count_items(self, owner: str, conversation_id: str) -> tuple[int, int]:
        """Returns the number of items of a conversation, and their size in bytes. Any thread may call it."""
        return self._conversations.count_items(owner, conversation_id)

    def count_conversation_bytes(self, owner: str | None, num_added: int = 0) -> int:
        """Returns the size of the conversations of an owner, or of all, with `num_added` bytes that are added now.

        Sizes are counted at most once in `SIZE_AGE_S`; what this process adds counts at once. Any thread may call it.
        """
        now, (size, counted_at) = time.monotonic(), self._sizes.get(owner, (0, -math.inf))
        if now - counted_at >= SIZE_AGE_S:
            size, counted_at = self._conversations.count_bytes(owner), now
        self._sizes[owner] = size + num_added, counted_at
        return size + num_added

    def forget_sizes(self, owner: str) -> None:
        """Makes the next question about the size of this owner's conversations, or of all, count them anew."""
        for name in (owner, None):
            self._sizes.pop(name, None)

    def item_finder(self, owner: str) -> FindItem:
        """Returns a function that returns an input item, or a completed output item, by its id."""
        running, deleted = iter(self._logs.list_running(owner)), frozenset(self._logs.deleted)
        in_memory: dict[str, AnyItem] = {}
        load_creation_time = cache(self._turns.load_creation_time)
        num_bytes = 0

        @cache
        def load_items(response_id: str) -> Mapping[str, AnyItem]:
            nonlocal num_bytes
            turn = self._turns.load_turn(owner, response_id)
            num_bytes += turn.num_bytes if turn is not None else 0
            if num_bytes > MAX_SEARCHED_BYTES:
                raise ApiError(
                    400, "context_length_exceeded", "The input refers to items of too many responses.", "input"
                )
            return {} if turn is None else turn.items_by_id()

        def find(item_id: str) -> AnyItem | None:
            while item_id not in in_memory and (log := next(running, None)) is not None:
                for item in (*log.input_items, *completed_items(log)):
                    in_memory.setdefault(item.id or "", item)
            if item_id in in_memory:
                return in_memory[item_id]
            found = None
            holders = [each for each in self._turns.find_holders(owner, item_id) if each not in deleted]
            if holders:
                latest = max(holders, key=load_creation_time) if len(holders) > 1 else holders[0]
                found = load_items(latest).get(item_id)
            return found or self._conversations.find_item(owner, item_id)

        return find
