"""Long work in a thread beside an event loop, in small parts: the loop gets the interpreter's lock between them."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Pace = Callable[[Iterable[Item]], Iterator[Item]]
"""Passes the items of a loop on."""
ITEMS_PER_PAUSE = 50
"""Items of a loop that are handled without a pause: about half a millisecond of work."""
PAUSE_S = 0.002
"""Length of a pause, in which other threads run."""


def run_through(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items without a pause."""
    return iter(items)


def pause_between(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items with pauses, in which other threads run.

    A thread that computes hands the lock over every 5 ms only, and a loop with many streams then falls behind.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % ITEMS_PER_PAUSE == 0:
            time.sleep(PAUSE_S)
