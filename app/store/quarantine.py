"""Moves a corrupt store file aside, so that the server can start and the file can be examined later."""

import sqlite3
import time
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


def quarantine_if_corrupt(path: Path) -> None:
    """Renames a corrupt store file, with its `-wal` and `-shm` files. A file that another process locks is kept."""
    if not path.exists():
        return
    try:
        with sqlite3.connect(path, timeout=10.0) as connection:
            fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        connection.close()
    except sqlite3.DatabaseError as error:
        fault = str(error)
    if fault == "ok" or "locked" in fault:
        return
    new_path = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(new_path.with_name(new_path.name + suffix))
    _log.error("corrupt store file moved aside", file=str(new_path), error=fault)
