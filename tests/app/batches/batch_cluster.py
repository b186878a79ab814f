"""Server processes on one database that run batches, for tests that kill and pause them."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from antiphon.app.store.batches.records import ENDED_BATCH_STATUSES, StoredBatch
from tests.app.store.store_helpers import SqlitePlace, StorePlace
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

BATCH_SERVER_PROGRAM = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from pathlib import Path
from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.server import run_server
from antiphon.app.options.settings import Settings
from antiphon.app.store.postgres.store import PostgresStore
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.writing.write_ops import StoreTimings
from tests.serving import scripted_registry

SCRIPT = [{"name": "line", "output": ["A reply of some words, no more."], "tokens_per_chunk": 8}]

async def main(path, heartbeat_s, lease_s):
    is_url = path.startswith("postgresql:")
    settings = Settings(port=0, shutdown_timeout=0.2, **({"store_url": path} if is_url else {"store_file": Path(path)}))
    timings = StoreTimings(heartbeat_s=float(heartbeat_s), lease_s=float(lease_s))
    with bind_socket(settings) as listener:
        store = PostgresStore(path, timings=timings) if is_url else SqliteStore(Path(path), timings=timings)
        context = create_context(settings, scripted_registry(SCRIPT, delay=0.01, max_num_seqs=8), store=store)
        on_ready = lambda port: print(port, flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

uvloop.run(main(*sys.argv[1:]))
"""
"""Program of a server process. Its arguments are a file or a URL, and two times of the lease. Prints its port."""
Timings = tuple[float, float]
"""Seconds between two heartbeats, and those after which a server without one counts as dead."""
DEFAULT_TIMINGS: Timings = (1.0, 7.0)


class BatchRow(Struct, frozen=True, kw_only=True):
    """A batch as it is in the database."""

    batch: StoredBatch
    is_cancelled: bool
    writer: str | None
    has_lines: bool

    @property
    def state(self) -> str:
        """The state of the batch in more detail than its status."""
        batch = self.batch
        if batch.status in ENDED_BATCH_STATUSES:
            return batch.status if self.has_lines else "purged"
        if self.is_cancelled and batch.status != "finalizing":
            return "cancelling"
        if batch.status == "finalizing" and batch.completed + batch.failed < batch.total:
            return "expiring"
        return batch.status


class BatchServer:
    """A server process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.url = process, f"http://127.0.0.1:{port}/v1"

    def owns(self, writer: str | None) -> bool:
        """Tells whether a name of a writer is that of this process."""
        return writer is not None and writer.split(":")[1] == str(self.process.pid)

    async def kill(self) -> None:
        """Kills the process, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def pause(self) -> None:
        """Stops the process; it does not notice."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process continue."""
        self.process.send_signal(signal.SIGCONT)


class BatchCluster:
    """Servers on the database of `place`, and a client of them."""

    def __init__(self, place: StorePlace, client: httpx.AsyncClient, timings: Timings) -> None:
        self.place, self.client, self._timings = place, client, timings
        self.servers: list[BatchServer] = []

    async def start_server(self) -> BatchServer:
        """Starts another server."""
        program = BATCH_SERVER_PROGRAM.replace("ROOT", repr(str(ROOT)))
        command = [sys.executable, "-c", program, self.place.name, *map(str, self._timings)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        reading = asyncio.create_task(process.stdout.readline())
        try:
            await asyncio.to_thread(wait_with_progress, reading.done, "the server did not start", pid=process.pid)
            server = BatchServer(process, int(reading.result()))
        except BaseException:
            process.kill()
            await process.wait()
            raise
        self.servers.append(server)
        return server

    async def kill_server(self, server: BatchServer) -> None:
        """Kills a server."""
        self.servers.remove(server)
        await server.kill()

    async def get_json(self, path: str, server: BatchServer | None = None) -> Any:
        """Returns the JSON of a GET that must succeed."""
        reply = await self.client.get(f"{(server or self.servers[-1]).url}{path}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def upload(self, server: BatchServer, content: bytes, filename: str) -> str:
        """Uploads an input file. Returns its id."""
        files = {"file": (filename, content)}
        reply = await self.client.post(f"{server.url}/files", data={"purpose": "batch"}, files=files)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    async def start_batch(self, server: BatchServer, file_id: str) -> str:
        """Starts a batch. Returns its id."""
        body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
        reply = await self.client.post(f"{server.url}/batches", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def load_batches(self) -> dict[str, BatchRow]:
        """Returns all batches that are in the database now."""
        query = "SELECT id, data, cancel_requested, writer, has_lines FROM batches"
        return {
            batch_id: BatchRow(
                batch=msgspec.json.decode(bytes(data), type=StoredBatch),
                is_cancelled=bool(is_cancelled),
                writer=writer,
                has_lines=bool(has_lines),
            )
            for batch_id, data, is_cancelled, writer, has_lines in self.place.read_rows(query)
        }

    def list_incomplete_files(self) -> list[tuple[str, str, str]]:
        """Returns id, purpose, which an upload does not have yet, and writer of the files that are written."""
        query = "SELECT id, purpose, writer FROM files WHERE writer IS NOT NULL"
        return [(file_id, purpose, writer) for file_id, purpose, writer in self.place.read_rows(query)]

    def count_rows(self, source: str) -> int:
        """Returns the number of rows of a table, which may have a condition."""
        return int(self.place.read_rows(f"SELECT count(*) FROM {source}")[0][0])

    def is_locked(self) -> bool:
        """Tells whether a process holds the lock of the SQLite file. In PostgreSQL, locks of a paused process end."""
        if not isinstance(self.place, SqlitePlace):
            return False
        with contextlib.closing(sqlite3.connect(self.place.path, timeout=0.5)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    def expire_batch(self, batch_id: str) -> None:
        """Moves the end of a batch's window to the past."""
        expires_at = self.load_batches()[batch_id].batch.expires_at
        is_sqlite = isinstance(self.place, SqlitePlace)
        text = "CAST(data AS TEXT)" if is_sqlite else "convert_from(data, 'UTF8')"
        changed = f"""replace({text}, '"expires_at":{expires_at}', '"expires_at":1')"""
        value = f"CAST({changed} AS BLOB)" if is_sqlite else f"convert_to({changed}, 'UTF8')"
        self.place.read_rows(f"UPDATE batches SET data = {value} WHERE id = '{batch_id}'")


@asynccontextmanager
async def run_cluster(
    place: StorePlace, num_servers: int, timings: Timings = DEFAULT_TIMINGS
) -> AsyncIterator[BatchCluster]:
    """Runs servers on one database. Kills them at the end."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client:
        cluster = BatchCluster(place, client, timings)
        try:
            for _ in range(num_servers):
                await cluster.start_server()
            yield cluster
        finally:
            for server in cluster.servers:
                await server.kill()


async def wait_until(condition: Any, what: str, *, seconds: float = HANG_TIMEOUT_S, interval_s: float = 0.02) -> float:
    """Waits until a function, which reads the database, returns a true value. Returns the time that it took."""
    begin = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - begin < seconds, f"{what}: not within {seconds:g} s"
        await asyncio.sleep(interval_s)
    return time.monotonic() - begin
