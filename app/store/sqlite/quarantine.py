"""Moves a corrupt store file aside, so that the server can start and the file can be examined later."""

import contextlib
import sqlite3
import time
from pathlib import Path

import structlog

from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite.schema import find_schema_fault

_log = structlog.get_logger(__name__)


def quarantine_if_corrupt(path: Path) -> None:
    """Renames a corrupt store file, with its `-wal` and `-shm` files. A file that another process locks is kept.

    Raises `StoreError` for a database of another program.
    """
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10.0, isolation_level=None)) as connection:
            fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if fault == "ok":
                fault = find_schema_fault(connection)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        fault = str(error)
    except StoreError as error:
        raise StoreError(f"cannot open the store {path}: {error}") from None
    if not fault or "locked" in fault:
        return
    new_path = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(new_path.with_name(new_path.name + suffix))
    _log.error("corrupt store file moved aside", file=str(new_path), error=fault)
