"""Store files that cannot be used: a corrupt one is moved aside, everything else is refused and left as it is."""

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite import quarantine
from antiphon.app.store.sqlite.quarantine import FILE_HEADER
from antiphon.app.store.sqlite.store import SqliteStore
from tests.app.store.store_helpers import add_log, open_test_store

Damage = Callable[[Path, random.Random], None]
PAGE_BYTES = 4096


def truncate(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content))])


def overwrite_bytes(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(60):
        content[dice.randrange(len(content))] = dice.randrange(256)
    path.write_bytes(content)


def zero_page(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = dice.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
    content[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(content)


def change_version(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[60:64] = dice.choice([2, 12]).to_bytes(4, "big")
    path.write_bytes(content)


def drop_table(path: Path, dice: random.Random) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE {dice.choice(['events', 'responses', 'items', 'writers', 'conversations'])}")
    connection.close()


def replace_by_text(path: Path, _: random.Random) -> None:
    path.write_text("not a database\n" * 500, encoding="utf-8")


def write_random_wal(path: Path, dice: random.Random) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(dice.randbytes(5_000))
    path.with_name(f"{path.name}-shm").write_bytes(dice.randbytes(32_768))


def list_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


DAMAGES = [truncate, overwrite_bytes, zero_page, write_random_wal]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", DAMAGES)
async def test_server_starts_with_a_damaged_file(damage: Damage, seed: int, tmp_path: Path) -> None:
    """A file that has lost its header is refused instead: it may be something else."""
    path = tmp_path / "responses.db"
    await fill_store(path)
    damage(path, random.Random(seed))
    if not path.read_bytes().startswith(FILE_HEADER):
        with pytest.raises(StoreError, match="not a SQLite database"):
            SqliteStore(path)
        return
    async with open_test_store(path) as store:
        for number in range(8):
            await store.read_log("me", f"resp_old{number}")
        await add_log(store, "new").wait_published()
        assert store.unavailable_reason() is None
    async with open_test_store(path) as store:
        assert await store.read_log("me", "resp_new") is not None


async def fill_store(path: Path) -> None:
    async with open_test_store(path) as store:
        for number in range(8):
            await add_log(store, f"old{number}").wait_published()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", [change_version, drop_table, replace_by_text])
async def test_file_that_sqlite_does_not_call_corrupt_is_refused_untouched(
    damage: Damage, seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "responses.db"
    await fill_store(path)
    damage(path, random.Random(seed))
    before = list_files(tmp_path)
    with pytest.raises(StoreError, match=f"cannot open the store {path}: it"):
        SqliteStore(path)
    assert list_files(tmp_path) == before


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE responses (x)", "CREATE TABLE notes (x); PRAGMA user_version = 3"], ids=["0", "3"]
)
async def test_database_of_another_program_is_refused_and_kept(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; {statement}")
        with pytest.raises(StoreError, match="database of another program"):
            SqliteStore(path)
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    connection.close()
    assert list(list_files(tmp_path)) == ["other.db"]


async def test_folder_and_pipe_are_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, reason in (("folder", "a folder"), ("link", "a folder"), ("pipe", "no regular file")):
        with pytest.raises(StoreError, match=f"{name}: it is {reason}"):
            SqliteStore(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "pipe"]  # noqa: PTH208  # reads none of them


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
        (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
        (sqlite3.SQLITE_IOERR | 10 << 8, "disk I/O error"),
        (sqlite3.SQLITE_FULL, "database or disk is full"),
    ],
)
async def test_healthy_file_that_cannot_be_used_is_refused_and_kept(
    code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQLite reports for a file of another user, or on a disk that fails."""
    path = tmp_path / "responses.db"
    await fill_store(path)
    before = list_files(tmp_path)

    def fail(_: object) -> None:
        error = sqlite3.OperationalError(reason)
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(quarantine, "check_schema", fail)
    with pytest.raises(StoreError, match=reason):
        SqliteStore(path)
    assert list_files(tmp_path) == before


async def test_file_of_another_user_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "responses.db"
    await fill_store(path)
    before = list_files(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with pytest.raises(StoreError, match=r"responses\.db: Permission denied"):
            SqliteStore(path)
    assert list_files(tmp_path) == before


async def test_unreadable_response_is_not_found_and_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        for name in ("good", "bad"):
            await add_log(store, name).wait_published()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = X'7b22' WHERE response = 'resp_bad' AND number = 2")
    connection.close()
    async with open_test_store(path) as store:
        assert await store.read_log("me", "resp_bad") is None
        assert await store.read_log("me", "resp_good") is not None


async def test_unreadable_response_of_a_dead_writer_does_not_prevent_the_start(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        await add_log(store, "bad", count=2, background=True).wait_published()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = X'7b22' WHERE number = 0")
        connection.execute("UPDATE responses SET writer = 'gone:1::a'")
    connection.close()
    async with open_test_store(path) as store:
        assert await store.read_log("me", "resp_bad") is None
        await add_log(store, "new").wait_published()
