"""`kill -9` of servers in all states of batches: each batch ends, with every line once, and no half file is left.

A round brings a batch into a state and kills the server that runs it, in half of the rounds at a random moment after
that. Then another server runs, or is started; it takes over what the dead one left. Batches are killed several times.
`ANTIPHON_TEST_FULL=1` kills 100 times for each number of servers and each database.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from antiphon.app.store.batches.records import ENDED_BATCH_STATUSES
from tests.app.batches.batch_checks import (
    BatchInput,
    check_ended,
    check_input_in_use,
    check_inputs_can_be_deleted,
    make_input,
)
from tests.app.batches.batch_cluster import DEFAULT_TIMINGS, BatchCluster, BatchServer, run_cluster, wait_until
from tests.app.store.store_helpers import PostgresPlace, SqlitePlace, StorePlace
from tests.counts import FULL_COUNTS

pytestmark = pytest.mark.processes

NUM_KILLS = 100 if FULL_COUNTS else 2
MAX_LINES = 300 if FULL_COUNTS else 80
NUM_PAUSES = 6 if FULL_COUNTS else 1
TARGETS = (
    "uploading", "validating", "in_progress", "finalizing", "cancelling", "expiring", "ended", "any",
    "cancelling_validation", "double",
)  # fmt: skip
"""What a round waits for before it kills."""
HIT_STATES = frozenset(
    (
        "uploading",
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
        "expiring",
        "completed",
        "cancelled",
        "expired",
    )
)
"""States in which a full run kills at least one batch. Those that have ended still have rows of lines."""
MAX_DELAYS_S = {"finalizing": 0.03, "ended": 0.03}
"""Longest time from a state to a kill. Others last longer."""
MAX_OPEN_BATCHES = 4
MAX_TAKE_OVER_S = 10.0
SHORT_TIMINGS = (0.2, 1.0)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "store" / "responses.db")
    return PostgresPlace(request.getfixturevalue("postgres_server").create_database())


async def send_slowly(num_pieces: int, sent: asyncio.Event) -> AsyncIterator[bytes]:
    """Yields a form whose file never ends. Sets `sent` after some pieces."""
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="endless"\r\n\r\n'
    yield head
    for _ in range(num_pieces):
        yield b"x" * (1 << 19)
    sent.set()
    await asyncio.Event().wait()


async def upload_endlessly(cluster: BatchCluster, server: BatchServer, num_pieces: int, sent: asyncio.Event) -> None:
    """Uploads a file that never ends, until the server is killed."""
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with contextlib.suppress(httpx.HTTPError):
        content = send_slowly(num_pieces, sent)
        await cluster.client.post(f"{server.url}/files", content=content, headers=headers)


class KillRun:
    """Rounds of kills on one cluster."""

    def __init__(self, cluster: BatchCluster, dice: random.Random) -> None:
        self.cluster, self.dice = cluster, dice
        self.inputs: dict[str, BatchInput] = {}
        """Batch id to its input."""
        self.hits: Counter[str] = Counter()
        """Number of batches that a kill met in each state."""
        self.statuses: Counter[str] = Counter()
        self.num_kills = self.num_lines = 0
        self.slowest_take_over_s = 0.0
        self._uploads: dict[BatchServer, asyncio.Task[None]] = {}
        self._latest_id = ""

    async def play_round(self, target: str) -> None:
        """Kills servers once, or twice, and starts as many."""
        num_servers = len(self.cluster.servers)
        server = self.dice.choice(self.cluster.servers)
        await self._await_target(target, server)
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.uniform(0.0, MAX_DELAYS_S.get(target, 0.15)))
        await self._kill(server)
        if target == "double" and num_servers > 1:
            await asyncio.sleep(self.dice.uniform(0.0, 2.0))
            await self._kill(self.cluster.servers[0])
        while len(self.cluster.servers) < num_servers:
            await self.cluster.start_server()
        await self._check_open()
        await wait_until(lambda: self._num_open() < MAX_OPEN_BATCHES, "batches do not end")

    async def finish(self) -> None:
        """Waits for the ends of all batches, and checks them and what is left in the tables."""
        await wait_until(lambda: self._num_open() == 0, "batches do not end")
        listed = await self.cluster.get_json("/batches?limit=100")
        assert {batch["id"] for batch in listed["data"]} <= self.inputs.keys()
        kept = set[str | None]()
        for batch_id, batch_input in self.inputs.items():
            batch = await self.cluster.get_json(f"/batches/{batch_id}")
            self.num_lines += await check_ended(self.cluster, batch, batch_input)
            self.statuses[batch["status"]] += 1
            await check_inputs_can_be_deleted(self.cluster, batch_input.file_id)
            kept |= {batch["output_file_id"], batch["error_file_id"]}
        files = await self.cluster.get_json("/files?limit=10000")
        assert {file["id"] for file in files["data"]} == kept - {None}, "files that no client knows are visible"
        await wait_until(self._is_clean, "rows are left", seconds=30.0, interval_s=0.2)

    def _is_clean(self) -> bool:
        """Tells whether the rows of files and lines that are not needed are gone."""
        count = self.cluster.count_rows
        num_orphans = count("file_pieces WHERE file NOT IN (SELECT id FROM files WHERE writer IS NULL)")
        return not (count("files WHERE filename = ''") or num_orphans or count("batch_lines"))

    def _num_open(self) -> int:
        return sum(row.writer is not None for row in self.cluster.load_batches().values())

    async def _await_target(self, target: str, server: BatchServer) -> None:
        """Brings a batch, or a file, of a server into a state."""
        if target == "uploading":
            await self._begin_upload(server)
            return
        many, few = self.dice.randrange(60, MAX_LINES), self.dice.randrange(1, 60)
        if target in {"validating", "cancelling_validation"}:
            batch_id = await self._start(server, make_input(self.dice, few + 20, large_bodies=30))
        elif target in {"finalizing", "expiring"}:
            batch_id = await self._start(server, make_input(self.dice, many // 2, large_replies=True))
        elif target == "ended":
            batch_id = await self._start(server, make_input(self.dice, few // 3 + 1))
        else:
            batch_id = await self._start(server, make_input(self.dice, many, large_bodies=2))
        if target == "any":
            await asyncio.sleep(self.dice.uniform(0.0, 1.0))
        elif target in {"in_progress", "double"}:
            await self._poll(server, batch_id, "in_progress", self.dice.randrange(many // 2))
        elif target == "cancelling":
            await self._poll(server, batch_id, "in_progress", self.dice.randrange(many // 2))
            await self._cancel(batch_id)
        elif target == "cancelling_validation":
            await self._cancel(batch_id)
        elif target == "expiring":
            await self._poll(server, batch_id, "in_progress", self.dice.randrange(many // 5, many // 4))
            await self._expire(batch_id)
            await self._poll(server, batch_id, "finalizing")
        else:
            await self._poll(server, batch_id, target)

    async def _start(self, server: BatchServer, batch_input: BatchInput) -> str:
        batch_input.file_id = await self.cluster.upload(server, batch_input.content, "lines.jsonl")
        batch_input.content = b""
        batch_id = await self.cluster.start_batch(server, batch_input.file_id)
        self.inputs[batch_id] = batch_input
        self._latest_id = batch_id
        return batch_id

    async def _poll(self, server: BatchServer, batch_id: str, status: str, min_completed: int = 0) -> None:
        """Waits until a batch has reached a status and a number of lines, or has gone past it."""
        past = {"validating": 0, "in_progress": 1, "finalizing": 2}
        while True:
            batch = await self.cluster.get_json(f"/batches/{batch_id}", server)
            if past.get(batch["status"], 3) > past.get(status, 3) or batch["status"] in ENDED_BATCH_STATUSES:
                return
            if batch["status"] == status and batch["request_counts"]["completed"] >= min_completed:
                return
            await asyncio.sleep(0.001)

    async def _cancel(self, batch_id: str) -> None:
        """Cancels a batch, by any server."""
        self.inputs[batch_id].is_cancelled = True
        url = f"{self.dice.choice(self.cluster.servers).url}/batches/{batch_id}/cancel"
        assert (await self.cluster.client.post(url)).status_code == 200
        await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.02, 0.2)))

    async def _expire(self, batch_id: str) -> None:
        """Lets a batch expire. Its server may overwrite that with the row that it has read before."""
        self.inputs[batch_id].is_expired = True
        for _ in range(3):
            await asyncio.to_thread(self.cluster.expire_batch, batch_id)

    async def _begin_upload(self, server: BatchServer) -> None:
        """Begins to upload a file and waits until the server has received some of it."""
        sent = asyncio.Event()
        num_pieces = self.dice.randrange(1, 8)
        await self._end_upload(server)
        self._uploads[server] = asyncio.create_task(upload_endlessly(self.cluster, server, num_pieces, sent))
        await sent.wait()
        await wait_until(lambda: self.cluster.count_rows("files WHERE filename = ''"), "the upload does not begin")

    async def _end_upload(self, server: BatchServer) -> None:
        """Stops to upload to a server: the client does not notice that it is dead while it has nothing to send."""
        if (upload := self._uploads.pop(server, None)) is not None:
            upload.cancel()
            await asyncio.wait({upload})

    async def _kill(self, server: BatchServer) -> None:
        """Kills a server, notes what it did, and waits until another server has taken that over."""
        await self.cluster.kill_server(server)
        self.num_kills += 1
        for batch_id, row in self.cluster.load_batches().items():
            if server.owns(row.writer) or (batch_id == self._latest_id and row.writer is None):
                self.hits[row.state] += 1
        for _, purpose, writer in self.cluster.list_incomplete_files():
            if server.owns(writer):
                self.hits["uploading" if not purpose else "output"] += 1
        await self._end_upload(server)
        if not self.cluster.servers:
            await self.cluster.start_server()
        await self._await_take_over(server)

    async def _await_take_over(self, dead: BatchServer) -> None:
        def is_taken_over() -> bool:
            writers = [row.writer for row in self.cluster.load_batches().values()]
            writers += [writer for _, _, writer in self.cluster.list_incomplete_files()]
            return not any(dead.owns(writer) for writer in writers)

        seconds = await wait_until(is_taken_over, "nothing was taken over", seconds=MAX_TAKE_OVER_S)
        self.slowest_take_over_s = max(self.slowest_take_over_s, seconds)

    async def _check_open(self) -> None:
        """Asserts that inputs of batches that run cannot be deleted, and that half an upload is not shown."""
        files = await self.cluster.get_json("/files?limit=10000")
        assert all(file["filename"] and file["purpose"] for file in files["data"])
        for batch_id, row in self.cluster.load_batches().items():
            if row.writer is not None and batch_id in self.inputs:
                await check_input_in_use(self.cluster, self.inputs[batch_id], batch_id)


@pytest.mark.parametrize(
    ("place", "num_servers"),
    [("sqlite", 1), ("postgres", 2), *([("sqlite", 2), ("postgres", 1)] if FULL_COUNTS else [])],
    indirect=["place"],
)
@pytest.mark.timeout(300 + 20 * NUM_KILLS)
async def test_every_line_is_there_once_after_kills(place: StorePlace, num_servers: int) -> None:
    async with run_cluster(place, num_servers, DEFAULT_TIMINGS if FULL_COUNTS else (0.2, 7.0)) as cluster:
        run = KillRun(cluster, random.Random(31 + num_servers))
        targets = list[str]()
        while run.num_kills < NUM_KILLS:
            targets = targets or run.dice.sample(TARGETS, len(TARGETS))
            await run.play_round(targets.pop())
        await run.finish()
    print(
        f"\n{type(place).__name__}, {num_servers} servers: {run.num_kills} kills, {len(run.inputs)} batches, "
        f"{run.num_lines} lines; hits {dict(run.hits)}; ends {dict(run.statuses)}; "
        f"slowest takeover {run.slowest_take_over_s:.2f} s"
    )
    assert not FULL_COUNTS or run.hits.keys() >= HIT_STATES, f"no kill in {HIT_STATES - run.hits.keys()}"


async def pause_between_transactions(cluster: BatchCluster, server: BatchServer) -> None:
    """Pauses a server while it does not hold the lock of a SQLite file, which would keep all others from writing."""
    while True:
        server.pause()
        await asyncio.sleep(0.02)
        if not await asyncio.to_thread(cluster.is_locked):
            return
        server.resume()
        await asyncio.sleep(0.003)


@pytest.mark.timeout(300 + 60 * NUM_PAUSES)
async def test_paused_server_changes_nothing_after_it_has_lost_its_batches(place: StorePlace) -> None:
    """The lease of a stopped server ends; the server continues while another one runs its batches, or has ended them."""
    dice, hits = random.Random(41), Counter[str]()
    timings = DEFAULT_TIMINGS if FULL_COUNTS else SHORT_TIMINGS
    async with run_cluster(place, 2, timings) as cluster:
        run = KillRun(cluster, dice)
        for number in range(NUM_PAUSES):
            paused = cluster.servers[0]
            for large_bodies, num_lines in ((0, 40), (0, MAX_LINES), (30, 40)):
                built = make_input(dice, num_lines, large_bodies=large_bodies, large_replies=not large_bodies)
                await run._start(paused, built)
            upload = asyncio.create_task(upload_endlessly(cluster, paused, 3, asyncio.Event()))
            if dice.random() < 0.5:
                await run._cancel(dice.choice(list(run.inputs)))
            await asyncio.sleep(dice.uniform(0.0, 0.6))
            await pause_between_transactions(cluster, paused)
            rows = cluster.load_batches()
            hits.update(row.state for row in rows.values() if paused.owns(row.writer))
            await run._await_take_over(paused)
            await asyncio.sleep(dice.uniform(0.0, 2 * timings[0]))
            paused.resume()
            await asyncio.wait({upload}, timeout=0.5)
            upload.cancel()
            await asyncio.wait({upload})
            await wait_until(lambda: run._num_open() == 0, f"batches of round {number} do not end")
            assert (await cluster.get_json("/files", paused))["data"], "it serves again"
            await asyncio.sleep(2 * timings[0])  # until its next heartbeat, the other server takes away what it begins
        await run.finish()
    print(
        f"\n{type(place).__name__}: {NUM_PAUSES} pauses, {len(run.inputs)} batches, {run.num_lines} lines; {dict(hits)}"
    )
