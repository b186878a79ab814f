"""The store that the settings ask for."""

from antiphon.app.settings import Settings
from antiphon.app.store.base import Store
from antiphon.app.store.memory import MemoryStore
from antiphon.app.store.sqlite import FileStore
from antiphon.app.store.writer import Times

DAY = 86_400


def open_store(settings: Settings) -> Store:
    """Open it; whoever does closes it. In a running event loop. Raises `StoreError` with one line for a person."""
    if settings.store_file is None:
        return MemoryStore()
    times = Times(age=settings.store_retention_days * DAY)
    return FileStore(settings.store_file, times=times, most=int(settings.store_max_gib * 2**30))
