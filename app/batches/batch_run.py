"""Runs one batch: validates its input file, queues its lines, stores their results, and writes the output files.

The steps follow the status of the batch, which is stored before each one. So a server that takes the batch over begins
at the step in which the other one stopped; lines that have a result are not run again.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeVar

import structlog
from msgspec import Struct, structs

from antiphon.app.batches.line_request import LineReply, read_usage
from antiphon.app.batches.line_scanner import MAX_BATCH_LINES, LineScanner
from antiphon.app.batches.line_scheduler import LineQueue
from antiphon.app.batches.output_files import OutputFiles
from antiphon.app.batches.stored_files import FileGoneError, read_range
from antiphon.app.errors import ApiError
from antiphon.app.store.batches.records import BatchLine, BatchStatus, LineError, LineResult, StoredBatch
from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.state.ids import NewId

T = TypeVar("T")
EndCause = Literal["completed", "cancelled", "expired"]
QUEUED_LINES = 256
"""Lines to have in memory, without their bodies."""
LINES_PER_CHANGE = 1000
"""Lines to insert in one transaction."""
RETRY_PAUSE_S = 1.0
"""Pause before a change is tried again that the store could not make."""
_log = structlog.get_logger(__name__)


class BatchLostError(Exception):
    """Another server runs the batch now, or it was deleted."""


class RunnerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the batches of a server."""

    slot_share: float = 0.75
    """Share of each engine's slots that lines may take."""
    max_lines: int = MAX_BATCH_LINES
    """Lines of one batch."""


class BatchTools(Struct, frozen=True):
    """Objects that all batches of a server use. `on_lines` is called when lines wait, `clock` returns seconds."""

    store: ResponseStore
    clock: Callable[[], float]
    new_id: NewId
    on_lines: Callable[[], None]
    limits: RunnerLimits = RunnerLimits()


class BatchRun:
    """One batch of this server. `queue` holds the lines that wait; the runner starts them."""

    def __init__(self, tools: BatchTools, owner: str, batch: StoredBatch) -> None:
        self._tools, self._store = tools, tools.store
        self.owner, self.batch = owner, batch
        self.queue: LineQueue[BatchRun] = LineQueue(owner, self)
        self.line_tasks: set[asyncio.Task[None]] = set()
        self._stopped_by: tuple[EndCause, float] | None = None
        self._changed = asyncio.Event()
        if batch.status == "cancelling":  # on another server, which is dead
            self.stop("cancelled", batch.status_times["cancelling"])
            self.batch = structs.replace(batch, status="in_progress" if batch.total else "validating")

    async def run(self) -> None:
        """Runs the batch to its end. Raises `BatchLostError` if it is not this server's any more."""
        if self.batch.status == "validating":
            errors = await self._validate()
            if errors and self._stopped_by is None:
                failed = structs.replace(self.batch, errors=tuple(errors))
                await self._end_batch(failed.with_status("failed", self._tools.clock()))
                return
            await self._save_status("in_progress", self._tools.clock())
        if self.batch.status == "in_progress":
            await self._run_lines()
            cause, now = self._stopped_by or ("completed", self._tools.clock())
            await self._save_status("cancelling" if cause == "cancelled" else "finalizing", now)
        await self._finalize()

    def stop(self, cause: EndCause, now: float) -> None:
        """Ends the batch without the lines that have not been run. Only the first call has an effect."""
        if self._stopped_by is None:
            self._stopped_by = cause, now
            self._changed.set()

    async def store_reply(self, line: BatchLine, reply: LineReply) -> None:
        """Stores the reply to a line. Raises `BatchLostError`."""
        result = LineResult(
            number=line.number,
            custom_id=line.custom_id,
            status=reply.status,
            body=reply.body,
            request_id=reply.request_id,
        )
        usage, batch_id, writer = read_usage(reply.body), self.batch.id, self._store.name
        saved = await self._change(lambda database: database.batches.save_result(batch_id, writer, result, usage))
        if saved is None:
            raise BatchLostError
        if saved.completed + saved.failed > self.batch.completed + self.batch.failed:  # they may arrive out of order
            self.batch = saved

    def end_line(self, task: "asyncio.Task[None]") -> None:
        """Notes that a line has ended, with or without a result."""
        self.line_tasks.discard(task)
        self._changed.set()

    async def end_tasks(self) -> None:
        """Cancels the lines that run. They stay without results."""
        self.queue.lines.clear()
        tasks = list(self.line_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _validate(self) -> Sequence[LineError]:
        """Stores the lines of the input file, and notes their number and their model. Returns the faults."""
        batch, scanner = self.batch, LineScanner(self.batch.endpoint, self._tools.limits.max_lines)
        writer = self._store.name
        if not await self._change(lambda database: database.batches.delete_lines(batch.id, writer)):
            raise BatchLostError
        number = 0
        while not scanner.is_done and (piece := await self._read_piece(number)) is not None:
            await asyncio.to_thread(scanner.feed, piece)
            await self._insert_lines(scanner)
            number += 1
        errors = scanner.finish()
        await self._insert_lines(scanner)
        model = next(iter(scanner.models)) if len(scanner.models) == 1 else None
        self.batch = structs.replace(batch, total=scanner.total, model=model)
        return errors

    async def _insert_lines(self, scanner: LineScanner) -> None:
        lines, scanner.lines = scanner.lines, []
        for start in range(0, len(lines), LINES_PER_CHANGE):
            part = lines[start : start + LINES_PER_CHANGE]
            if not await self._change(partial(_insert_lines, self.batch.id, self._store.name, part)):
                raise BatchLostError

    async def _run_lines(self) -> None:
        """Waits until all lines have a result, or the batch is stopped."""
        rank = -1
        while self._stopped_by is None:
            self._changed.clear()
            if not self.queue.lines and (lines := await self._list_open(rank)):
                rank = lines[-1].rank
                self.queue.lines.extend(lines)
                self._tools.on_lines()
            elif not self.queue.lines and not self.line_tasks:
                if rank == -1:
                    return
                rank = -1  # lines that ended without a result, if there are any
                continue
            await self._wait_change(self.batch.expires_at - self._tools.clock())
        await self.end_tasks()

    async def _wait_change(self, seconds: float) -> None:
        """Waits for the end of a line or of the batch, at most until the batch expires."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            self.stop("expired", self._tools.clock())

    async def _finalize(self) -> None:
        """Writes the output files and ends the batch."""
        cause: EndCause = "completed"
        if self.batch.status == "cancelling":
            cause = "cancelled"
        elif self.batch.completed + self.batch.failed < self.batch.total:
            cause = "expired"
        while True:
            files = OutputFiles(self._store, self.owner, self.batch, self._tools.new_id, self._tools.clock())
            try:
                batch = await files.write("batch_cancelled" if cause == "cancelled" else "batch_expired")
                await self._end_batch(batch.with_status(cause, self._tools.clock()), files.complete)
            except (ApiError, FileGoneError) as error:
                _log.warning("output of a batch was not written, trying again", batch=self.batch.id, error=str(error))
                await files.discard()
                await asyncio.sleep(RETRY_PAUSE_S)
            except BaseException:
                await files.discard()
                raise
            else:
                return

    async def _save_status(self, status: BatchStatus, now: float) -> None:
        """Stores a status. Results whose lines were cancelled while they were stored count from then on."""
        batch, writer = self.batch.with_status(status, now), self._store.name
        saved = await self._change(lambda database: database.batches.save_batch(batch, writer))
        if saved is None:
            raise BatchLostError
        self.batch = saved

    async def _end_batch(self, batch: StoredBatch, complete: Callable[[Database], bool] = lambda _: True) -> None:
        """Stores the end of the batch, together with the completion of its files. Raises `FileGoneError`."""
        writer = self._store.name
        outcome = await self._change(partial(_end_batch, batch, writer, complete))
        if outcome == "lost":
            raise BatchLostError
        if outcome == "file_gone":
            raise FileGoneError
        self.batch = batch

    async def _list_open(self, after_rank: int) -> list[BatchLine]:
        batch_id = self.batch.id
        return await self._read(lambda database: database.batches.list_open_lines(batch_id, after_rank, QUEUED_LINES))

    async def _read_piece(self, number: int) -> bytes | None:
        file_id = self.batch.input_file_id
        return await self._read(lambda database: database.files.read_piece(file_id, number))

    async def read_line(self, line: BatchLine) -> bytes:
        """Returns a line of the input file. Raises `FileGoneError`."""
        file_id = self.batch.input_file_id
        return await _repeat(lambda: read_range(self._store, file_id, line.start, line.length))

    async def _read(self, query: Callable[[Database], T]) -> T:
        """Returns the result of a query, however long the store cannot be read."""
        return await _repeat(lambda: self._store.read(query))

    async def _change(self, apply: Callable[[Database], T]) -> T:
        """Makes a change, however long the store refuses it. It may be made twice."""
        return await _repeat(lambda: self._store.change(apply))


async def _repeat(attempt: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await attempt()
        except (ApiError, sqlite3.OperationalError):
            await asyncio.sleep(RETRY_PAUSE_S)


def _insert_lines(batch_id: str, writer: str, lines: Iterable[BatchLine], database: Database) -> bool:
    return database.batches.insert_lines(batch_id, writer, lines)


def _end_batch(
    batch: StoredBatch, writer: str, complete: Callable[[Database], bool], database: Database
) -> Literal["ended", "lost", "file_gone"]:
    """Ends a batch and completes its files, or changes nothing."""
    if not database.batches.lock_batch(batch.id, writer):
        return "ended" if database.batches.has_ended(batch) else "lost"
    if not complete(database):
        return "file_gone"
    database.batches.end_batch(batch, writer)
    return "ended"
