"""A server that is killed while it creates its store: the next start creates it."""

import asyncio
import sqlite3
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.app.store.maintenance.commands import store_commands
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.tables import SCHEMA_VERSION
from tests.app.store.store_helpers import open_test_store
from tests.counts import FULL_COUNTS

pytestmark = pytest.mark.processes

NUM_KILLS_UNLESS_FULL = 7
KILLED_STARTS = """
import asyncio, os, signal, sqlite3, sys
from functools import partial
from pathlib import Path

from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.tables import SCHEMA_VERSION

class KillingConnection(sqlite3.Connection):
    num_left = 0

    def execute(self, sql, *values):
        if KillingConnection.num_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        KillingConnection.num_left -= 1
        return super().execute(sql, *values)

async def open_store(path):
    SqliteStore(path)

sqlite3.connect = partial(sqlite3.connect, factory=KillingConnection)
for folder in sys.argv[1:]:
    KillingConnection.num_left = int(Path(folder).name)
    pid = os.fork()
    if pid == 0:
        asyncio.run(open_store(Path(folder, "responses.db")))
        os._exit(0)
    if os.waitpid(pid, 0)[1] != signal.SIGKILL:
        sys.exit(f"the start in {folder} was not killed")
"""
"""Opens the store of each folder in a process that is killed before a statement: that with the number in its name."""


async def list_start_statements(folder: Path) -> list[str]:
    """Returns the statements that an undisturbed start runs until the store is open."""
    statements: list[str] = []

    class RecordingConnection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            statements.append(sql.strip())
            return super().execute(sql, *values)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=RecordingConnection))
        store = SqliteStore(folder / "responses.db")
        num_statements = len(statements)
        await store.close()
    return statements[:num_statements]


@pytest.fixture
async def killed_starts(tmp_path: Path) -> dict[str, Path]:
    """Stores whose first start was killed, by number and text of the statement that it did not run."""
    (tmp_path / "whole").mkdir()
    statements = await list_start_statements(tmp_path / "whole")
    last = statements.index("COMMIT", statements.index(f"PRAGMA user_version = {SCHEMA_VERSION}"))
    step = 1 if FULL_COUNTS else last // (NUM_KILLS_UNLESS_FULL - 2)
    numbers = sorted({*range(0, len(statements), step), last, last + 1})
    folders = [tmp_path / str(number) for number in numbers]
    for folder in folders:
        folder.mkdir()
    starts = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_STARTS, *map(str, folders))
    assert await starts.wait() == 0
    return {
        f"{number}: {statements[number]}": folder / "responses.db"
        for number, folder in zip(numbers, folders, strict=True)
    }


async def test_start_that_is_killed_at_a_statement_is_repeated(killed_starts: dict[str, Path]) -> None:
    versions: Counter[int] = Counter()
    for statement, path in killed_starts.items():
        with sqlite3.connect(path) as connection:
            versions[connection.execute("PRAGMA user_version").fetchone()[0]] += 1
        connection.close()
        async with open_test_store(path) as store:
            assert store.unavailable_reason() is None, statement
        check = CliRunner().invoke(store_commands, ["check", "--store", str(path)])
        assert (check.exit_code, check.output) == (0, "The store is whole.\n"), statement
    assert versions.keys() == {0, SCHEMA_VERSION}, "a kill before the commit changes nothing, one after it all"
