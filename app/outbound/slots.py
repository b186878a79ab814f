"""Slots: how much may run at the same time for each owner, or for each server."""

import asyncio
from weakref import WeakValueDictionary


class KeyedSlots:
    """A semaphore for each key. One that is neither held nor waited for is forgotten."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._semaphores: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def get(self, key: str) -> asyncio.Semaphore:
        """Returns the semaphore of a key. Keep it as long as it is used."""
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = asyncio.Semaphore(self._num_slots)
        return semaphore
