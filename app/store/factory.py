"""Opens the store that the settings select."""

from antiphon.app.options.settings import Settings
from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite.store import MemoryStore, SqliteStore
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.turn_types.encryption import open_sealer

DAY_SECONDS = 86_400


def open_store(settings: Settings) -> ResponseStore:
    """Opens the store in a running event loop; the caller closes it. Raises `StoreError` with a one-line message."""
    timings = StoreTimings(retention_s=settings.store_retention_days * DAY_SECONDS)
    if settings.store_url is not None:
        return _open_postgres(settings, settings.store_url, timings)
    if settings.store_file is None:
        return MemoryStore()
    return SqliteStore(settings.store_file, timings=timings, max_bytes=int(settings.store_max_gib * 2**30))


def _open_postgres(settings: Settings, url: str, timings: StoreTimings) -> ResponseStore:
    try:
        from antiphon.app.store.postgres.store import PostgresStore  # noqa: PLC0415  # psycopg is optional
    except ImportError as error:
        remedy = "install Antiphon with its extra: pip install 'antiphon[postgres]'"
        raise StoreError(f"--store postgresql://… requires psycopg 3 ({error}); {remedy}") from None
    key_path = settings.encryption_key_path
    key_id = open_sealer(key_path).key_id if key_path is not None else ""
    max_bytes = int(settings.store_max_gib * 2**30)
    return PostgresStore(url, encryption_key=key_id, timings=timings, max_bytes=max_bytes)
