"""The store that the settings ask for."""

from antiphon.app.settings import Settings
from antiphon.app.store.base import ResponseStore
from antiphon.app.store.memory import MemoryStore
from antiphon.app.store.sqlite import SqliteStore
from antiphon.app.store.writer import StoreTimings

DAY_SECONDS = 86_400


def open_store(settings: Settings) -> ResponseStore:
    """Open it; whoever does closes it. In a running event loop. Raises `StoreError` with one line for a person."""
    if settings.store_file is None:
        return MemoryStore()
    times = StoreTimings(retention_s=settings.store_retention_days * DAY_SECONDS)
    return SqliteStore(settings.store_file, timings=times, max_bytes=int(settings.store_max_gib * 2**30))
