"""Opens the store that the settings select."""

from antiphon.app.settings import Settings
from antiphon.app.store.base import ResponseStore
from antiphon.app.store.memory import MemoryStore
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.write_ops import StoreTimings

DAY_SECONDS = 86_400


def open_store(settings: Settings) -> ResponseStore:
    """Opens the store in a running event loop; the caller closes it. Raises `StoreError` with a one-line message."""
    if settings.store_file is None:
        return MemoryStore()
    timings = StoreTimings(retention_s=settings.store_retention_days * DAY_SECONDS)
    return SqliteStore(settings.store_file, timings=timings, max_bytes=int(settings.store_max_gib * 2**30))
