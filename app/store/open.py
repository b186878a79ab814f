"""The store that the settings ask for."""

from app.settings import Settings
from app.store import Store
from app.store.file import FileStore
from app.store.memory import MemoryStore
from app.store.writer import Times

DAY = 86_400


def open_store(settings: Settings) -> Store:
    """Open it; whoever does closes it. In a running event loop. Raises `StoreError` with one line for a person."""
    if settings.store is None:
        return MemoryStore()
    times = Times(age=settings.store_days * DAY)
    return FileStore(settings.store, times=times, most=int(settings.store_gib * 2**30))
