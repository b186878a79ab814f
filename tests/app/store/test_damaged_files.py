"""Damaged store files: each is moved aside or refused in one line, and the server starts and stores responses."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.app.store.base import StoreError
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
    content[60:64] = dice.choice([1, 2]).to_bytes(4, "big")
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


def has_file_set_aside(folder: Path) -> bool:
    return any(folder.glob("responses.db.damaged-*"))


DAMAGES = [truncate, overwrite_bytes, zero_page, change_version, drop_table, replace_by_text, write_random_wal]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", DAMAGES)
async def test_server_starts_with_a_damaged_file(damage: Damage, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        for number in range(8):
            await add_log(store, f"old{number}").wait_published()
    damage(path, random.Random(seed))
    async with open_test_store(path) as store:
        for number in range(8):
            store.find_log("me", f"resp_old{number}")
        await add_log(store, "new").wait_published()
        assert store.unavailable_reason() is None
    async with open_test_store(path) as store:
        assert store.find_log("me", "resp_new") is not None
    if damage in (change_version, drop_table, replace_by_text):
        assert has_file_set_aside(tmp_path)


async def test_database_of_another_program_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE responses (x)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program"):
        SqliteStore(path)
    assert path.read_bytes() == content


async def test_unreadable_response_is_not_found_and_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        for name in ("good", "bad"):
            await add_log(store, name).wait_published()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = X'7b22' WHERE response = 'resp_bad' AND number = 2")
    connection.close()
    async with open_test_store(path) as store:
        assert store.find_log("me", "resp_bad") is None
        assert store.find_log("me", "resp_good") is not None


async def test_unreadable_response_of_a_dead_writer_does_not_prevent_the_start(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        await add_log(store, "bad", count=2, background=True).wait_published()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = X'7b22' WHERE number = 0")
        connection.execute("UPDATE responses SET writer = 'gone:1::a'")
    connection.close()
    async with open_test_store(path) as store:
        assert store.find_log("me", "resp_bad") is None
        await add_log(store, "new").wait_published()
