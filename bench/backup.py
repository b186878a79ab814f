"""Waits of responses for their last step while the store is backed up: `python -m bench.backup`.

The store has 1 GiB of images, and 20 responses a second end, with about ten events each. A wait is the time from the
last event of a response until it is durable.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.app.store.database import Database
from antiphon.app.store.maintenance.backup import back_up
from antiphon.app.store.sqlite.store import SqliteStore
from tests.app.store.store_helpers import add_log, make_steps

NUM_CHUNKS, PIECES_PER_CHUNK, PIECE_BYTES = 64, 16, 1 << 20
RESPONSES_PER_S = 20
STEP_PAUSE_S = 0.05
"""Time between two steps of a response."""
ALONE_S = 6.0
"""Time without a backup."""


async def fill(store: SqliteStore) -> None:
    """Writes a gibibyte."""
    piece = os.urandom(PIECE_BYTES)

    def write(database: Database, chunk: int) -> None:
        statement = "INSERT INTO blob_pieces (owner, sha256, number, data) VALUES ('me', ?, ?, ?)"
        for number in range(PIECES_PER_CHUNK):
            database._connection.execute(statement, (chunk.to_bytes(32, "big"), number, piece))

    for chunk in range(NUM_CHUNKS):
        await store.change(lambda database, chunk=chunk: write(database, chunk))  # type: ignore[misc]


async def run_load(store: SqliteStore, seconds: float) -> list[float]:
    """Runs responses for a time. Returns the wait of each in seconds."""

    async def run_one(name: str) -> float:
        log = add_log(store, name, count=1)
        for step in make_steps()[1:]:
            await asyncio.sleep(STEP_PAUSE_S)
            log.append_step(step)
        log.end_log()
        start = time.monotonic()
        await log.wait_published()
        return time.monotonic() - start

    tasks, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        tasks.append(asyncio.create_task(run_one(f"x{time.monotonic_ns()}")))
        await asyncio.sleep(1 / RESPONSES_PER_S)
    return await asyncio.gather(*tasks)


def report(title: str, waits: list[float]) -> None:
    median, longest = statistics.median(waits) * 1e3, max(waits) * 1e3
    sys.stdout.write(f"{title}: median {median:.1f} ms, longest {longest:.1f} ms, of {len(waits)} responses\n")


async def measure(folder: Path) -> None:
    store = SqliteStore(folder / "store.db")
    await fill(store)
    report("alone", await run_load(store, ALONE_S))
    start = time.monotonic()
    backup = asyncio.create_task(asyncio.to_thread(back_up, folder / "store.db", folder / "copy.db"))
    waits: list[float] = []
    while not backup.done():
        waits += await run_load(store, 1.0)
    note = await backup
    report("beside the backup", waits)
    sys.stdout.write(f"backup of {note.num_bytes >> 20} MiB: {time.monotonic() - start:.1f} s\n")
    await store.close()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
