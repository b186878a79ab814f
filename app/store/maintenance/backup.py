"""Copies of a store file: while servers write to it, and back in its place."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite.schema import require_schema
from antiphon.app.store.writing.writer_lease import is_recent
from antiphon.app.turn_types.encryption import open_sealer

PAGES_PER_STEP = 256
"""Pages of 4 KiB that are copied at once: the source is locked for reading only, which delays no writer."""
PAGES_PER_SYNC = 2048
"""Pages after which the copy is flushed to the disk: commits of the servers would wait for a large flush at the end."""
STEP_PAUSE_S = 0.002
"""Time between two steps, which leaves the disk to the servers."""
LEASE_S = 7.0
"""Time without a heartbeat after which a server that uses a file counts as gone."""
SIDE_FILES = ("-wal", "-shm", "-journal")


class BackupNote(msgspec.Struct, kw_only=True):
    """Facts about a backup, in a JSON file beside it. It names the encryption key by its fingerprint."""

    object: str = "antiphon.backup"
    created_at: int
    schema_version: int
    num_responses: int
    num_bytes: int
    key_fingerprint: str = ""
    """Public digest of the encryption key; empty if the store has no key file."""


def note_path(backup: Path) -> Path:
    """Returns the path of the note beside a backup."""
    return backup.with_name(f"{backup.name}.json")


def back_up(
    source: Path, target: Path, key_file: Path | None = None, on_progress: Callable[[int, int], None] = lambda *_: None
) -> BackupNote:
    """Copies a store file as it is at one moment, and writes a note beside the copy. Raises `StoreError`.

    `on_progress` receives the numbers of copied and of all pages. A target that exists is not replaced, and a copy that
    fails leaves nothing.
    """
    if target.exists():
        raise StoreError(f"{target} exists: choose another file, or move it away")
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with _open_source(source) as reader:
            _copy(reader, partial, on_progress)
        note = _describe(partial, key_file)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        _write_note(target, note)
        partial.rename(target)
    except (sqlite3.Error, OSError) as error:
        note_path(target).unlink(missing_ok=True)
        raise StoreError(f"{source} cannot be copied to {target}: {_explain(error)}") from None
    finally:
        partial.unlink(missing_ok=True)
    return note


def restore(backup: Path, target: Path, key_file: Path | None = None) -> tuple[Path | None, str]:
    """Puts a backup in the place of a store file. Raises `StoreError`.

    Returns the path of the file that was there, which is kept under another name, and a warning if the encryption key
    is not that of the backup, else "".
    """
    _check_backup(backup)
    if target.exists() and (names := list_live_writers(target)):
        raise StoreError(f"{target}: {len(names)} running servers use it; stop them first")
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    kept: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _open_source(backup) as reader:
            _copy(reader, partial)
        _forget_writers(partial)
        if target.exists():
            kept = target.with_name(f"{target.name}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
            for suffix in ("", *SIDE_FILES):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{target}{suffix}").rename(f"{kept}{suffix}")
        partial.rename(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{backup} cannot be restored to {target}: {_explain(error)}") from None
    finally:
        partial.unlink(missing_ok=True)
    return kept, _compare_keys(backup, key_file)


def list_live_writers(path: Path) -> list[str]:
    """Returns the names of the servers that use a file. Raises `StoreError`."""
    try:
        with _open_source(path) as connection:
            rows = connection.execute("SELECT name, heartbeat FROM writers").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # no such table: it is no store
            return []
        raise StoreError(f"{path} cannot be read: {error}") from None
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    return [name for name, heartbeat in rows if is_recent(name, heartbeat, LEASE_S)]


@contextlib.contextmanager
def _open_source(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a file for reading, at one moment: what is written meanwhile is not seen."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file")
    with contextlib.closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)
    ) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield connection


def _copy(source: sqlite3.Connection, target: Path, on_progress: Callable[[int, int], None] = lambda *_: None) -> None:
    target.unlink(missing_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    num_copied = num_synced = 0

    def show_progress(_: int, left: int, total: int) -> None:
        nonlocal num_copied, num_synced
        num_copied = total - left
        if num_copied - num_synced >= PAGES_PER_SYNC:
            num_synced = num_copied
            os.fdatasync(descriptor)
        on_progress(num_copied, total)

    try:
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute(f"PRAGMA cache_size = {PAGES_PER_STEP}")  # else all pages are written at the end
            source.backup(copy, pages=PAGES_PER_STEP, progress=show_progress, sleep=STEP_PAUSE_S)
            copy.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file
    finally:
        os.close(descriptor)


def _describe(path: Path, key_file: Path | None) -> BackupNote:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        _check_pages(connection)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        num_responses = connection.execute("SELECT count(*) FROM responses").fetchone()[0]
    return BackupNote(
        created_at=int(time.time()),
        schema_version=version,
        num_responses=num_responses,
        num_bytes=path.stat().st_size,
        key_fingerprint=_fingerprint(key_file),
    )


def _fingerprint(key_file: Path | None) -> str:
    return open_sealer(key_file).key_id if key_file is not None and key_file.exists() else ""


def _write_note(target: Path, note: BackupNote) -> None:
    path = note_path(target)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(note), indent=2) + b"\n")
        os.fsync(file.fileno())


def _check_pages(connection: sqlite3.Connection) -> None:
    [(result,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if result != "ok":
        raise StoreError(f"the copy is damaged: {result}")


def _check_backup(backup: Path) -> None:
    """Raises `StoreError` for a file that no store can be restored from."""
    try:
        with _open_source(backup) as connection:
            _check_pages(connection)
            require_schema(connection)
    except (sqlite3.Error, StoreError) as error:
        raise StoreError(f"{backup} is no backup of a store of this Antiphon: {error}") from None


def _forget_writers(path: Path) -> None:
    """Deletes the signs of life of servers that ran when the backup was taken."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE writers SET heartbeat = 0")


def _compare_keys(backup: Path, key_file: Path | None) -> str:
    try:
        note = msgspec.json.decode(note_path(backup).read_bytes(), type=BackupNote)
    except (OSError, msgspec.DecodeError):
        return ""
    if not note.key_fingerprint or note.key_fingerprint == _fingerprint(key_file):
        return ""
    return (
        f"The encryption key {key_file} is not that of the backup: sealed reasoning in it cannot be opened. "
        "Put the key file of the backed-up server there."
    )


def _explain(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
