"""Runs the batches of this server: starts their lines while engines have places, and takes over those of dead servers.

Lines have the lowest priority and leave a quarter of each engine's slots to other requests (`turn_gate.py`). The store
has the state of every batch, so the server may be killed at any time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import structlog

from antiphon.app.batches.batch_run import BatchLostError, BatchRun, BatchTools, RunnerLimits
from antiphon.app.batches.line_request import LineReply, error_reply, read_error_code, send_line
from antiphon.app.batches.line_scanner import decode_line_body
from antiphon.app.batches.line_scheduler import LineQueue, LineScheduler
from antiphon.app.batches.stored_files import FileGoneError
from antiphon.app.batches.turn_gate import UNKNOWN_MODEL_PLACES, LinePermit, TurnGate
from antiphon.app.errors import ApiError, internal_error
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.http.body_parsing import run_parser
from antiphon.app.http.endpoints.table import EndpointTable
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.batches.body import check_line_body
from antiphon.app.store.batches.records import BatchLine
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.ids import new_id
from antiphon.app.usage.meter import UsageMeter
from antiphon.engine.protocol import Engine

BATCH_POLL_INTERVAL_S = 1.0
"""Time between two looks for batches that were taken over or cancelled."""
MAX_BUSY_TRIES = 60
"""Attempts to run a line that is answered 429; half an hour."""
MAX_RETRY_PAUSE_S = 30.0
"""Longest pause before a line is sent again that the server could not run."""
TEMPORARY_CODES = ("engine_unavailable", "storage_unavailable", "server_shutting_down")
"""Codes of a 503 that says nothing about the line: it is run again, however often."""
_log = structlog.get_logger(__name__)


class BatchRunner:
    """Runs batches from `start` to `close`. `clock` returns seconds since 1970."""

    def __init__(
        self,
        store: ResponseStore,
        models: ModelRegistry,
        clock: Callable[[], float] = time.time,
        limits: RunnerLimits = RunnerLimits(),  # noqa: B008  # it is frozen
        meter: UsageMeter | None = None,
    ) -> None:
        self._meter = meter or UsageMeter()
        self._store, self._models = store, models
        self._tools = BatchTools(store, clock, new_id, self._start_lines, limits)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._scheduler: LineScheduler[BatchRun] = LineScheduler()
        self._gate = TurnGate(limits.slot_share)
        self._open_lines: Counter[Engine | None] = Counter()
        self._wake = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None

    def connect(self, app: AsgiApp, table: EndpointTable) -> None:
        """Sets the application to which lines are requests, and its endpoints."""
        self._app, self._table = app, table

    def start(self) -> None:
        """Begins to run batches, after `connect`."""
        self._store.run_batches()
        self._poll_task = asyncio.create_task(self._poll(), name="batches")

    async def close(self) -> None:
        """Cancels the lines that run; they stay open, for the next server."""
        tasks = [task for task in (self._poll_task, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Looks for new and cancelled batches at once."""
        self._wake.set()

    async def _poll(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._find_batches()
            except Exception as error:  # noqa: BLE001  # the store may be away; the next look may find it
                _log.warning("batches could not be read", error=str(error))
            self._start_lines()  # places may have become free, or a model may have been loaded
            try:
                async with asyncio.timeout(BATCH_POLL_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _find_batches(self) -> None:
        """Starts the batches that belong to this server now, and stops those that are cancelled."""
        name = self._store.name
        for owner, batch in await self._store.read(lambda database: database.batches.list_owned(name)):
            if batch.id not in self._runs:
                run = self._runs[batch.id] = BatchRun(self._tools, owner, batch)
                self._tasks[batch.id] = asyncio.create_task(self._run_batch(run), name=f"batch-{batch.id}")
            elif batch.status == "cancelling":
                self._runs[batch.id].stop("cancelled", batch.status_times["cancelling"])

    async def _run_batch(self, run: BatchRun) -> None:
        self._scheduler.add_queue(run.queue)
        try:
            await run.run()
        except BatchLostError:
            _log.warning("batch is run by another server now", batch=run.batch.id)
        except Exception:  # noqa: BLE001  # a bug; the next look begins again
            _log.exception("batch stopped", batch=run.batch.id)
            await asyncio.sleep(BATCH_POLL_INTERVAL_S)
        finally:
            await run.end_tasks()
            self._scheduler.remove_queue(run.queue)
            del self._runs[run.batch.id], self._tasks[run.batch.id]

    def _start_lines(self) -> None:
        """Starts lines while there are places."""
        while (found := self._scheduler.start_next(self._may_start)) is not None:
            queue, line = found
            engine = self._find_engine(line.model)
            self._open_lines[engine] += 1
            task = asyncio.create_task(self._run_line(queue, line), name=f"batch-line-{line.number}")
            queue.run.line_tasks.add(task)
            task.add_done_callback(lambda task, queue=queue, engine=engine: self._on_line_end(task, queue, engine))  # type: ignore[misc]

    def _on_line_end(self, task: "asyncio.Task[None]", queue: LineQueue[BatchRun], engine: Engine | None) -> None:
        self._open_lines[engine] -= 1
        self._scheduler.end_line(queue)
        queue.run.end_line(task)
        self._start_lines()

    def _may_start(self, queue: LineQueue[BatchRun]) -> bool:
        """Tells whether the first line of a queue may start: it has a place, and its owner has an API key."""
        model = queue.lines[0].model
        return self._has_place(model) and self._find_key(queue.run, model) is not None

    def _find_key(self, run: BatchRun, model: str | None) -> ApiKey | None:
        return self._meter.find_worker(run.owner, run.batch.key_id, model)

    def _has_place(self, model: str | None) -> bool:
        engine = self._find_engine(model)
        return self._open_lines[engine] < (UNKNOWN_MODEL_PLACES if engine is None else self._gate.count_places(engine))

    def _find_engine(self, name: str | None) -> Engine | None:
        """Returns the engine of a model, or None for an unknown model, whose lines end with an error."""
        model = self._models.get_model(name)
        if model is not None:
            return model.engine
        return next((encoder.engine for encoder in self._models.encoders if name in encoder.names), None)

    async def _run_line(self, queue: LineQueue[BatchRun], line: BatchLine) -> None:
        """Runs a line and stores its reply, which may be an error. Without a key of its owner, it waits again."""
        run = queue.run
        try:
            reply = await self._get_reply(run, line)
            if reply is None:
                queue.lines.appendleft(line)
                return
        except Exception:  # noqa: BLE001  # a bug, which must not stop the other lines
            _log.exception("line of a batch failed", batch=run.batch.id, line=line.number)
            reply = error_reply(internal_error())
        try:
            await run.store_reply(line, reply)
        except BatchLostError:
            self._tasks[run.batch.id].cancel()

    async def _get_reply(self, run: BatchRun, line: BatchLine) -> LineReply | None:
        """Returns the reply to a line; while the server is busy or a part of it is away, the line is sent again.

        Returns None once the owner has no API key any more.
        """
        try:
            content = await run.read_line(line)
            body = await run_parser(len(content), _read_line_body, content)
        except FileGoneError:
            return error_reply(ApiError(404, None, "The input file of the batch was deleted."))
        except ApiError as error:
            return error_reply(error)
        tries = 0
        while (key := self._find_key(run, line.model)) is not None:
            reply = await self._send(run, body, key)
            tries += 1
            if not _is_temporary(reply, tries):
                self._meter.count_reply(key, reply.status)
                return reply
            await asyncio.sleep(min(0.25 * 2 ** min(tries, 10), MAX_RETRY_PAUSE_S))
        return None

    async def _send(self, run: BatchRun, body: bytes, key: ApiKey) -> LineReply:
        """Returns the reply to a line as a request of this key, whatever the endpoint."""
        permit = LinePermit(self._gate)
        try:
            self._meter.check_tokens(key)
            match = self._table.find("POST", run.batch.endpoint)
            return await send_line(self._app, match, body, key, permit)
        except ApiError as error:
            return error_reply(error)
        finally:
            permit.release()


def _read_line_body(content: bytes) -> bytes:
    """Returns the body of a line, as it was sent. Raises `ApiError` for one that no line can have."""
    body = decode_line_body(content)
    check_line_body(body)
    return body


def _is_temporary(reply: LineReply, tries: int) -> bool:
    """Tells whether a reply says nothing about the line, because the server cannot run it now."""
    if reply.status == 429:
        return tries < MAX_BUSY_TRIES and read_error_code(reply.body) != "insufficient_quota"
    return reply.status == 503 and read_error_code(reply.body) in TEMPORARY_CODES
