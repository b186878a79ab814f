"""What becomes of a file that is damaged: it is put aside, so that the server starts, and can be looked into."""

import sqlite3
import time
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


def quarantine_if_corrupt(path: Path) -> None:
    """Put a damaged file aside, so that the server starts without it. Only where no other process uses it."""
    if not path.exists():
        return
    try:
        with sqlite3.connect(path, timeout=10.0) as line:
            fault = line.execute("PRAGMA quick_check(1)").fetchone()[0]
        line.close()
    except sqlite3.DatabaseError as error:
        fault = str(error)
    if fault == "ok" or "locked" in fault:
        return
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    _log.error("store file is damaged and was moved aside", file=str(aside), error=fault)
