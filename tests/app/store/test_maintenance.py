"""`antiphon store`: backups under load, restores, checks that find planted faults, sizes, pruning."""

import asyncio
import json
import shutil
import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from antiphon.app.cli.commands import main
from antiphon.app.store.base import StoreError
from antiphon.app.store.maintenance import backup
from antiphon.app.store.maintenance.backup import back_up, note_path, restore
from antiphon.app.store.tables import SCHEMA_VERSION
from tests.app.store.store_helpers import SqlitePlace, StorePlace, add_log, open_test_store
from tests.serving import scripted_registry, serve

pytestmark = pytest.mark.processes

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["word "] * 50}]


def run(*arguments: str) -> Result:
    return CliRunner(env={"ANTIPHON_STORE": ""}).invoke(main, ["store", *arguments])


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_backup_under_load_restores_to_a_whole_store(tmp_path: Path) -> None:
    """A response in the background, begun before the backup, is read from the restored store as far as it was."""
    source, copy, target = tmp_path / "a" / "store.db", tmp_path / "copy.db", tmp_path / "b" / "store.db"
    source.parent.mkdir()
    stopped = threading.Event()
    with serve(scripted_registry(SCRIPT, delay=0.005), store_file=source) as server:
        slow = httpx.post(
            f"{server.url}/responses", json={"model": "scripted", "input": "x", "background": True}, timeout=60
        ).json()

        def write() -> None:
            while not stopped.is_set():
                httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "y"}, timeout=60)

        writers = [threading.Thread(target=write) for _ in range(4)]
        for writer in writers:
            writer.start()
        for number in range(3):
            result = run("backup", str(tmp_path / f"{number}.db"), "--store", str(source))
            assert result.exit_code == 0, result.output
        assert run("check", "--store", str(source)).output == "The store is whole.\n", "while servers write"
        result = run("backup", str(copy), "--store", str(source))
        stopped.set()
        for writer in writers:
            writer.join()
    key = source.with_name("store.db.key")
    assert "fingerprint" in result.output
    note = json.loads(note_path(copy).read_bytes())
    assert note["schema_version"] == SCHEMA_VERSION and note["num_responses"] > 1 and note["key_fingerprint"]
    assert key.read_bytes() not in copy.read_bytes() and key.read_bytes().hex() not in note_path(copy).read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (copy, note_path(copy))} == {0o600}
    target.parent.mkdir()
    shutil.copy(key, target.with_name("store.db.key"))
    result = run("restore", str(copy), "--store", str(target))
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert run("check", "--store", str(target)).output == "The store is whole.\n"
    with serve(scripted_registry(SCRIPT), store_file=target) as server:
        path = f"{server.url}/responses/{slow['id']}?stream=true"
        lines = httpx.get(path, timeout=60).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] in ("response.completed", "response.failed")


async def test_backup_is_the_store_at_one_moment(tmp_path: Path) -> None:
    """What is written while it is copied is not in it."""
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    async with open_test_store(path) as store:
        for number in range(20):
            await add_log(store, f"a{number}").wait_published()
        loop = asyncio.get_running_loop()
        written: list[str] = []

        def write_one(_: int, __: int) -> None:
            name = f"b{len(written)}"
            written.append(name)

            async def add() -> None:
                await add_log(store, name).wait_published()

            asyncio.run_coroutine_threadsafe(add(), loop).result(60)

        pages, backup.PAGES_PER_STEP = backup.PAGES_PER_STEP, 5
        try:
            note = await asyncio.to_thread(back_up, path, copy, None, write_one)
        finally:
            backup.PAGES_PER_STEP = pages
        assert len(written) > 3 and note.num_responses == 20


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "_copy", fail)


@pytest.mark.parametrize("fault", ["disk", "exists", "missing source", "no store"])
async def test_backup_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backups" / "copy.db"
    copy.parent.mkdir()
    async with open_test_store(path) as store:
        await add_log(store, "a").wait_published()
    if fault == "disk":
        fill_disk(monkeypatch)
    elif fault == "exists":
        copy.write_text("precious")
    elif fault == "missing source":
        path.unlink()
    else:
        path.write_text("no database")
    result = run("backup", str(copy), "--store", str(path))
    assert result.exit_code == 1 and len(result.output.splitlines()) == 1, result.output
    assert list_names(copy.parent) == (["copy.db"] if fault == "exists" else [])
    if fault == "exists":
        assert copy.read_text() == "precious"


async def test_restore_keeps_the_store_that_was_there(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    async with open_test_store(path) as store:
        await add_log(store, "a").wait_published()
    back_up(path, copy)
    async with open_test_store(path) as store:
        await add_log(store, "b").wait_published()
    kept, warning = restore(copy, path)
    assert kept is not None and warning == ""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM responses").fetchall() == [("resp_a",)]
    with closing(sqlite3.connect(kept)) as connection:
        assert len(connection.execute("SELECT id FROM responses").fetchall()) == 2


async def test_restore_is_refused(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    async with open_test_store(path) as store:
        await add_log(store, "a").wait_published()
        back_up(path, copy)
        with pytest.raises(StoreError, match="1 running servers use it; stop them first"):
            restore(copy, path)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match=f"no backup of a store.*schema version {SCHEMA_VERSION + 1}"):
        restore(copy, path)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE notes (x)")
    for other, message in ((foreign, "is no backup"), (tmp_path / "none", "no such file")):
        with pytest.raises(StoreError, match=message):
            restore(other, path)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="is no backup"):
        restore(damaged, path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM responses").fetchall() == [("resp_a",)]


async def test_restore_tells_that_the_key_is_another_one(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    with serve(SCRIPT, store_file=path):
        pass
    key = path.with_name("store.db.key")
    back_up(path, copy, key)
    key.write_bytes(bytes(32))
    result = run("restore", str(copy), "--store", str(path))
    assert result.exit_code == 0 and "is not that of the backup" in result.stderr


FAULTS = {
    "responses whose events have a gap": "DELETE FROM events WHERE response = 'ID' AND number = 1",
    "ended responses without events": "DELETE FROM events WHERE response = 'ID'",
    "events without their response": "DELETE FROM responses WHERE id = 'ID'",
    "summaries without their response": "DELETE FROM responses WHERE id = 'ID'",
    "records without their response": "DELETE FROM responses WHERE id = 'ID'",
    "blobs that nothing refers to": "INSERT INTO blobs (owner, sha256, size) VALUES ('me', BYTES, 1)",
    "pieces of missing blobs": "INSERT INTO blob_pieces (owner, sha256, number, data) VALUES ('me', BYTES, 0, BYTES)",
}


@pytest.mark.parametrize("what", FAULTS)
def test_check_finds_rows_that_do_not_fit(place: StorePlace, what: str) -> None:
    more = {} if isinstance(place, SqlitePlace) else {"encryption_key_file": None}
    with serve(SCRIPT, inspect="store", **place.settings(), **more) as server:
        bodies = [{"model": "scripted", "input": text} for text in ("a", "b")]
        ids = [httpx.post(f"{server.url}/responses", json=body, timeout=60).json()["id"] for body in bodies]
    whole = run("check", "--store", place.name)
    assert (whole.exit_code, whole.output) == (0, "The store is whole.\n")
    place.read_rows(FAULTS[what].replace("ID", ids[0]).replace("BYTES", place.quote_bytes("x")))
    result = run("check", "--store", place.name)
    assert result.exit_code == 1 and f"1 {what}, such as " in result.output, result.output


async def test_stats_and_prune(place: StorePlace) -> None:
    now = int(time.time())
    async with place.open() as store:
        for number, (owner, days) in enumerate([("a", 0), ("a", 3), ("a", 9), ("b", 9), ("b", 20)]):
            await add_log(store, f"x{number}", owner=owner, created=now - days * 86_400).wait_published()
        add_log(store, "running", count=2, owner="a", created=now - 20 * 86_400)
        async with asyncio.timeout(60):
            while place.read_rows("SELECT count(*) FROM responses") != [(6,)]:
                await asyncio.sleep(0.01)
        lines = run("stats", "--store", place.name).output.split()
        assert lines[lines.index("a") + 1] == "4" and lines[lines.index("b") + 1] == "2"
        assert (
            "1 responses would be deleted."
            in run("prune", "--older-than", "2w", "--dry-run", "--store", place.name).output
        )
        assert "2 responses were deleted." in run("prune", "--owner", "b", "--store", place.name).output
        assert "1 responses were deleted." in run("prune", "--older-than", "7d", "--store", place.name).output
    left = {name for (name,) in place.read_rows("SELECT id FROM responses")}
    assert left == {"resp_x0", "resp_x1", "resp_running"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prune",), "name an age"),
        (("prune", "--older-than", "1y"), "is no age"),
        (("backup", "x.db", "--store", "postgresql://h/d"), "use pg_dump"),
        (("restore", "x.db", "--store", "memory"), "it has no file"),
        (("check", "--store", "missing.db"), "there is no such file"),
    ],
)
def test_commands_that_cannot_run(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0 and message in result.output
