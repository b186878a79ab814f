"""Moves a corrupt store file aside, so that the server can start and the file can be examined later.

Only a file that has SQLite's header and that SQLite calls corrupt is moved. Everything else that cannot be used as the
store is refused and left as it is: a folder, a text, a database of another program, a file of another user.
"""

import contextlib
import sqlite3
import time
from pathlib import Path

import structlog

from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite.schema import LOCK_TIMEOUT_S, PRIMARY_CODE_MASK, check_schema, decode_text

FILE_HEADER = b"SQLite format 3\0"
CORRUPT_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_log = structlog.get_logger(__name__)


def quarantine_if_corrupt(path: Path) -> None:
    """Renames a corrupt store file, with its `-wal` and `-shm` files. A file that another process locks is kept.

    Raises `StoreError` for everything else that cannot be used.
    """
    try:
        fault = _find_corruption(path) if path.exists() else ""
        if fault:
            _move_aside(path, fault)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open the store {path}: {_describe_error(error)}") from None


def _find_corruption(path: Path) -> str:
    """Returns what is corrupt in a store file; empty if nothing is.

    Raises `StoreError`, `OSError` or `sqlite3.Error` if it cannot be used for another reason.
    """
    _check_header(path)
    try:
        # Not a connection for reading only: it would leave the files of a write-ahead log behind.
        with contextlib.closing(_connect(path)) as connection:
            fault = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            if fault != "ok":
                return fault
            check_schema(connection)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE_MASK
        if code in LOCKED_CODES:
            return ""
        if code not in CORRUPT_CODES:
            raise
        return str(error)
    except UnicodeDecodeError as error:  # of the message of SQLITE_CORRUPT, which quotes the damaged schema
        return str(error)
    return ""


def _connect(path: Path) -> sqlite3.Connection:
    """Returns a connection to a file that exists."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, timeout=LOCK_TIMEOUT_S, isolation_level=None, uri=True)
    connection.text_factory = decode_text
    return connection


def _check_header(path: Path) -> None:
    """Raises `StoreError` for what is no SQLite database. An empty file is one without tables."""
    if not path.is_file():
        raise StoreError(f"it is {'a folder' if path.is_dir() else 'no regular file'}. Choose a file with --store.")
    with path.open("rb") as file:
        header = file.read(len(FILE_HEADER))
    if not FILE_HEADER.startswith(header):
        raise StoreError("it is not a SQLite database. Choose another file with --store, or move this one away.")


def _describe_error(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _move_aside(path: Path, fault: str) -> None:
    new_path = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(new_path.with_name(new_path.name + suffix))
    _log.error("corrupt store file moved aside", file=str(new_path), error=fault)
