"""Memory of what connections keep between turns: histories of lanes, and steers that wait for a request.

An owner may open any number of connections, so what all of them keep is limited together. No owner has more than its
share: above it, what the owner has used longest ago is dropped. Above the limit, the owner with the most loses first.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

MAX_HELD_BYTES = 512 << 20
"""Size of what all connections keep between turns, as JSON. A store in memory has the same limit."""
OWNER_SHARE = 2
"""One owner has at most this part of it: a half."""


def count_bytes(items: Iterable[Any]) -> int:
    """Returns the size of items as JSON, in bytes."""
    return sum(len(msgspec.json.encode(item)) for item in items)


class _HeldPart:
    """A history, or the steers of a response: its size in bytes, and the function that drops it."""

    def __init__(self, num_bytes: int, drop: Callable[[], None]) -> None:
        self.num_bytes, self.drop = num_bytes, drop


class HeldMemory:
    """Memory of what all connections of a server keep. Use it on the event loop."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, OrderedDict[object, _HeldPart]] = defaultdict(OrderedDict)
        """By owner, what its connections keep; what was used longest ago is first."""
        self._owner_bytes: dict[str, int] = {}
        self.num_bytes = 0

    def add(self, owner: str, held: object, num_bytes: int, drop: Callable[[], None]) -> None:
        """Counts what a connection keeps from now on; then calls `drop` of what is above a limit."""
        self._parts[owner][held] = _HeldPart(num_bytes, drop)
        self._owner_bytes[owner] = self._owner_bytes.get(owner, 0) + num_bytes
        self.num_bytes += num_bytes
        while self._owner_bytes.get(owner, 0) > MAX_HELD_BYTES // OWNER_SHARE:
            self._drop_oldest(owner)
        while self.num_bytes > MAX_HELD_BYTES:
            self._drop_oldest(max(self._owner_bytes, key=self._owner_bytes.__getitem__))

    def touch(self, owner: str, held: object) -> None:
        """Notes that something is used now, if it is counted."""
        if held in self._parts.get(owner, ()):
            self._parts[owner].move_to_end(held)

    def remove(self, owner: str, held: object) -> None:
        """Counts something no more. Does nothing if it is not counted."""
        if held in self._parts.get(owner, ()):
            self._take(owner, held)

    def _drop_oldest(self, owner: str) -> None:
        self._take(owner, next(iter(self._parts[owner]))).drop()

    def _take(self, owner: str, held: object) -> _HeldPart:
        part = self._parts[owner].pop(held)
        self._owner_bytes[owner] -= part.num_bytes
        self.num_bytes -= part.num_bytes
        if not self._parts[owner]:
            del self._parts[owner], self._owner_bytes[owner]
        return part


class ConnectionHold:
    """Histories and steers of one connection, as a part of the memory of all."""

    def __init__(self, memory: HeldMemory, owner: str) -> None:
        self._memory, self._owner = memory, owner
        self._held = set[object]()

    def add(self, held: object, num_bytes: int, drop: Callable[[], None]) -> None:
        """Counts what the connection keeps, once; `drop` is called if it has to go, now or later."""
        if held in self._held:
            return

        def forget() -> None:
            self._held.discard(held)
            drop()

        self._held.add(held)
        self._memory.add(self._owner, held, num_bytes, forget)

    def touch(self, held: object) -> None:
        """Notes that something is used now."""
        self._memory.touch(self._owner, held)

    def remove(self, held: object) -> None:
        """Counts something no more."""
        self._held.discard(held)
        self._memory.remove(self._owner, held)

    def keep_only(self, kept: Collection[object]) -> None:
        """Counts nothing else any more."""
        for held in self._held.difference(kept):
            self.remove(held)
