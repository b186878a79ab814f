"""Ids of items and calls: each is minted once, and no call has the id of another one."""

from collections.abc import Callable
from itertools import count

NewId = Callable[[str], str]
"""Mints an id with the prefix given: `rs`, `msg`, `fc`, `ctc`, `cmp` or `call`."""


class IdFactory:
    """Of one response. Asked with a prefix it gives a new id."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._call_ids: set[str] = set()

    def __call__(self, prefix: str) -> str:
        """A new id."""
        return self._new_id(prefix)

    def call_id_for(self, native: str | None) -> str:
        """The model's own id of a call, made unique if it repeats one; minted where it has none."""
        call_id = native or self._new_id("call")
        numbers = count(2)
        while call_id in self._call_ids:
            call_id = f"{native}_{next(numbers)}"
        self._call_ids.add(call_id)
        return call_id
