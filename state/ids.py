"""Ids of items and calls: each is minted once, and no call has the id of another one."""

from collections.abc import Callable
from itertools import count

Ids = Callable[[str], str]
"""Mints an id with the prefix given: `rs`, `msg`, `fc`, `ctc`, `cmp` or `call`."""


class Mint:
    """Of one response. Asked with a prefix it gives a new id."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._of_calls: set[str] = set()

    def __call__(self, prefix: str) -> str:
        """A new id."""
        return self._ids(prefix)

    def of_call(self, native: str | None) -> str:
        """The model's own id of a call, made unique if it repeats one; minted where it has none."""
        call_id = native or self._ids("call")
        numbers = count(2)
        while call_id in self._of_calls:
            call_id = f"{native}_{next(numbers)}"
        self._of_calls.add(call_id)
        return call_id
