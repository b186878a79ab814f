"""Ids of items and calls. Each is minted once, and no two calls of a response share a call id."""

from collections.abc import Callable
from itertools import count

NewId = Callable[[str], str]
"""Mints an id with the given prefix: `rs`, `msg`, `fc`, `ctc`, `mcp`, `cmp`, `call` and others."""


class IdFactory:
    """Mints the ids of one response."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._call_ids: set[str] = set()

    def __call__(self, prefix: str) -> str:
        """Returns a new id with this prefix."""
        return self._new_id(prefix)

    def call_id_for(self, native: str | None) -> str:
        """Returns the model's own id of a call, with a suffix if it repeats one; mints an id if there is none."""
        call_id = native or self._new_id("call")
        numbers = count(2)
        while call_id in self._call_ids:
            call_id = f"{native}_{next(numbers)}"
        self._call_ids.add(call_id)
        return call_id
