"""`antiphon batch`: runs a file of requests without a server, on the same store, turns and machine as a server would.

The command creates a batch in a temporary store, and merges its two output files into OUT.
"""

import asyncio
import contextlib
import os
import signal
import stat
import sys
import tempfile
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
import uvloop
from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from antiphon.app.assembly.models import create_models
from antiphon.app.batches.batch_run import RunnerLimits
from antiphon.app.batches.line_scanner import LineScanner
from antiphon.app.batches.output_files import NUMBER_DIGITS
from antiphon.app.batches.runner import BatchRunner
from antiphon.app.batches.stored_files import FileWriter, new_file_id, read_pieces
from antiphon.app.context import ServerContext, create_context
from antiphon.app.errors import ApiError
from antiphon.app.main.application import ENDPOINT_TABLE, build_app
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.store.batches.records import (
    ENDED_BATCH_STATUSES,
    FILE_PIECE_BYTES,
    LineError,
    StoredBatch,
    StoredFile,
)
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.ids import new_id
from antiphon.engine.process.spawn import SpawnWorker
from antiphon.engine.protocol import EngineError
from antiphon.engine.scripted.engine import ScriptError
from antiphon.harmony.detection.detect import DialectError
from antiphon.kit.terminal_text import show_line

FINISH_POLL_INTERVAL_S = 0.1
"""Time between two looks at the number of lines that have ended."""
LIFETIME_S = 100 * 365 * 86_400
"""Lifetime of a batch and its files. The command ends them before."""
OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
"""Flags that open the output. It is not cut: that follows once there are replies."""
OWNER = ""


class _FirstLine(Struct):
    url: str = ""


class _LineId(Struct):
    id: str


def run_batch_file(options: ServeOptions, settings: Settings, source: Path, target: Path, spawn: SpawnWorker) -> int:
    """Runs the requests of `source` and writes their replies to `target`, in the same order.

    Returns the exit status: 0, 1 if a line has no reply with status 200, 130 after Ctrl+C. Raises `ServeError`.
    """
    if target.exists() and target.samefile(source):
        raise ServeError(f"{target} is the input, too; name another file for the output")
    try:
        return uvloop.run(_run(options, settings, source, target, spawn))
    except (EngineError, ScriptError, DialectError) as error:
        raise ServeError(str(error)) from None


async def _run(options: ServeOptions, settings: Settings, source: Path, target: Path, spawn: SpawnWorker) -> int:
    endpoint = _read_endpoint(source)
    _check_lines(source, endpoint)
    with tempfile.TemporaryDirectory(prefix="antiphon-batch-") as folder, _open_target(target) as output:
        store = SqliteStore(Path(folder) / "batch.db")
        try:
            models, _ = await create_models(options, settings, _show_status, spawn)
            context = create_context(settings, models, store=store)
            context.batches = BatchRunner(store, models, limits=RunnerLimits(slot_share=1.0, max_lines=sys.maxsize))
            build_app(context)
            async with _run_engines(context):
                batch = await _store_batch(store, source, endpoint)
                batch, is_interrupted = await _await_end(context, batch)
            await _write_output(store, batch, output)
        finally:
            await store.close()
    if is_interrupted:
        return 130
    return 0 if batch.completed == batch.total else 1


def _read_endpoint(source: Path) -> str:
    """Returns the URL of the first line. Raises `ServeError`."""
    try:
        with source.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
        url = msgspec.json.decode(first.removeprefix(BOM_UTF8), type=_FirstLine).url
    except OSError as error:
        raise ServeError(f"{source}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServeError(f"{source}: line 1 is not a request: {error}") from None
    batchable = ENDPOINT_TABLE.list_batchable()
    if url not in batchable:
        raise ServeError(f"{source}: line 1: the url must be one of {', '.join(batchable)}")
    return url


def _check_lines(source: Path, endpoint: str) -> None:
    """Checks every line as the runner does later, before a model is loaded. Raises `ServeError` after their faults."""
    scanner = LineScanner(endpoint, sys.maxsize)
    try:
        with source.open("rb") as content:
            while not scanner.is_done and (piece := content.read(FILE_PIECE_BYTES)):
                scanner.feed(piece)
                scanner.lines.clear()
    except OSError as error:
        raise ServeError(f"{source}: {error.strerror or error}") from None
    if errors := scanner.finish():
        _refuse_lines(errors)


def _refuse_lines(errors: Sequence[LineError]) -> NoReturn:
    """Prints the faults of lines and raises `ServeError`."""
    for error in errors:
        place = f"line {error.line}: " if error.line is not None else ""
        print(show_line(f"{place}{error.message}"), file=sys.stderr)  # noqa: T201  # the output of the command
    raise ServeError(f"the input has faulty lines ({len(errors)}); nothing was run")


@contextlib.contextmanager
def _open_target(target: Path) -> Iterator[BinaryIO]:
    """Opens the output before anything is computed. Raises `ServeError`.

    A file that exists keeps its content until `_write_output` replaces it, and a new one is deleted if that fails.
    """
    is_new, is_written = not target.exists(), False
    try:
        with os.fdopen(os.open(target, OPEN_FLAGS, 0o666), "wb") as output:
            yield output
            is_written = True
    except OSError as error:
        raise ServeError(f"{target}: {error.strerror or error}") from None
    finally:
        if is_new and not is_written:
            target.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _run_engines(context: ServerContext) -> AsyncIterator[None]:
    """Starts the engines and the runner, and ends them."""
    engines = [model.engine for model in context.models.all_models]
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        yield
    finally:
        if context.batches is not None:
            await context.batches.close()
        for engine in engines:
            await engine.close()


async def _store_batch(store: ResponseStore, source: Path, endpoint: str) -> StoredBatch:
    """Copies the input to the store and creates the batch."""
    now = int(time.time())
    file = StoredFile(id=new_file_id(new_id), created_at=now, expires_at=None, filename=source.name, purpose="batch")
    writer = FileWriter(store, OWNER, file)
    await writer.begin()
    with source.open("rb") as content:
        while piece := await asyncio.to_thread(content.read, FILE_PIECE_BYTES):
            await writer.write(piece)
    await writer.flush()
    batch = StoredBatch(
        id=new_id("batch"),
        endpoint=endpoint,
        input_file_id=file.id,
        created_at=now,
        expires_at=now + LIFETIME_S,
        completion_window="24h",
        metadata=None,
        output_expires_s=LIFETIME_S,
    )
    await store.change(lambda database: writer.complete(database) and database.start_batch(OWNER, batch, store.name))
    return batch


async def _await_end(context: ServerContext, batch: StoredBatch) -> tuple[StoredBatch, bool]:
    """Runs the batch. Returns it at its end, and whether Ctrl+C ended it. Raises `ServeError` if its file is faulty."""
    store, runner, interrupted, batch_id = context.store, context.batches, asyncio.Event(), batch.id
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    if runner is not None:
        runner.start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("requests", total=None)
        while batch.status not in ENDED_BATCH_STATUSES:
            await asyncio.sleep(FINISH_POLL_INTERVAL_S)
            with contextlib.suppress(ApiError):  # the store is slow beside a busy engine
                if interrupted.is_set() and batch.status != "cancelling" and runner is not None:
                    await store.change(lambda database: database.batches.request_cancel(batch_id, time.time()))
                    runner.wake()
                found = await store.read(lambda database: database.batches.find_batch(OWNER, batch_id))
                batch = found if found is not None else batch
            progress.update(bar, completed=batch.completed + batch.failed, total=batch.total or None)
    if batch.errors:  # the file has changed since it was checked
        _refuse_lines(batch.errors)
    return batch, interrupted.is_set()


async def _write_output(store: ResponseStore, batch: StoredBatch, output: BinaryIO) -> None:
    """Writes the lines of the two output files in the order of the input, and reports their numbers."""
    ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
    files = [_read_lines(store, file_id) for file_id in ids]
    heads = [(await anext(file), file) for file in files]  # a file that was made has a line
    if stat.S_ISREG(os.fstat(output.fileno()).st_mode):  # not a pipe or a terminal
        output.truncate(0)
    while heads:
        line, file = heads.pop(min(range(len(heads)), key=lambda index: _read_number(heads[index][0])))
        output.write(line)
        if (following := await anext(file, None)) is not None:
            heads.append((following, file))
    usage = batch.usage
    print(  # noqa: T201  # the output of the command
        f"{batch.completed} of {batch.total} requests completed, {batch.failed} failed; "
        f"{usage.input} input tokens ({usage.cached} cached), {usage.output} output tokens",
        file=sys.stderr,
    )


async def _read_lines(store: ResponseStore, file_id: str) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in read_pieces(store, file_id):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _read_number(line: bytes) -> int:
    """Returns the number of the input's line that an output line belongs to, which its id ends with."""
    return int(msgspec.json.decode(line, type=_LineId).id[-NUMBER_DIGITS:], 16)


def _show_status(name: str, status: str) -> None:
    print(show_line(f"{name}: {status}"), file=sys.stderr)  # noqa: T201  # the output of the command
