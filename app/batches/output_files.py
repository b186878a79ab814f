"""Writes the results of a batch to its output file and its error file, in the order of the input."""

import contextlib
from collections.abc import Sequence

from msgspec import Raw, Struct, structs

from antiphon.app.batches.stored_files import FileWriter, new_file_id
from antiphon.app.errors import ApiError
from antiphon.app.requests.batches.body import BATCH_FILE_LIFETIME_S, OUTPUT_PURPOSE
from antiphon.app.store.batches.records import LineResult, StoredBatch, StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.events.json_lines import encode_json_line
from antiphon.state.ids import NewId

RESULTS_PER_QUERY = 32
"""Results to have in memory at once; each may have megabytes."""
NUMBER_DIGITS = 8
"""Hexadecimal digits at the end of the id of a line: its number in the input."""
UNRUN_MESSAGES = {
    "batch_expired": "This request could not be run before the batch expired.",
    "batch_cancelled": "This request was not run, because the batch was cancelled.",
}


class LineResponse(Struct, frozen=True):
    """The HTTP reply in a line of an output file."""

    status_code: int
    request_id: str
    body: Raw


class UnrunError(Struct, frozen=True):
    """The reason why a line has no reply."""

    code: str
    message: str


class OutputLine(Struct, frozen=True, kw_only=True):
    """A line of an output file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: UnrunError | None = None


def build_output_line(batch_id: str, result: LineResult, unrun_code: str) -> bytes:
    """Returns the line of a result. Its id is made of the batch's, so that it is the same whenever it is written."""
    line_id = f"batch_req_{batch_id.removeprefix('batch_')[:24]}{result.number:0{NUMBER_DIGITS}x}"
    response = error = None
    if result.status is None:
        error = UnrunError(unrun_code, UNRUN_MESSAGES[unrun_code])
    else:
        response = LineResponse(result.status, result.request_id, Raw(result.body))
    line = OutputLine(id=line_id, custom_id=result.custom_id, response=response, error=error)
    return encode_json_line(line)


class OutputFiles:
    """The two files of a batch, which exist once the batch has ended. A file without lines is not made."""

    def __init__(self, store: ResponseStore, owner: str, batch: StoredBatch, new_id: NewId, now: float) -> None:
        self._store, self._owner, self._batch = store, owner, batch
        self._new_id, self._now = new_id, int(now)
        self._writers: dict[str, FileWriter] = {}

    async def write(self, unrun_code: str) -> StoredBatch:
        """Writes all results. Returns the batch with the ids of its files. Raises `ApiError` and `FileGoneError`."""
        number = 0
        while results := await self._list_results(number):
            for result in results:
                await self._write_result(result, unrun_code)
            number = results[-1].number
        for writer in self._writers.values():
            await writer.flush()
        ids = {name: writer.file.id for name, writer in self._writers.items()}
        return structs.replace(self._batch, output_file_id=ids.get("output"), error_file_id=ids.get("error"))

    def complete(self, database: Database) -> bool:
        """Makes the files exist, as a part of a change. Returns False, and changes nothing, if one was deleted."""
        writers = self._writers.values()
        if not all(writer.lock(database) for writer in writers):
            return False
        return all(writer.complete(database) for writer in writers)

    async def discard(self) -> None:
        """Deletes what was written, as far as the store can be reached."""
        for writer in self._writers.values():
            with contextlib.suppress(ApiError):
                await writer.discard()

    async def _list_results(self, after_number: int) -> Sequence[LineResult]:
        batch_id = self._batch.id
        return await self._store.read(
            lambda database: database.batches.list_results(batch_id, after_number, RESULTS_PER_QUERY)
        )

    async def _write_result(self, result: LineResult, unrun_code: str) -> None:
        name = "output" if result.status == 200 else "error"
        if name not in self._writers:
            self._writers[name] = writer = FileWriter(self._store, self._owner, self._create_file(name))
            await writer.begin()
        await self._writers[name].write(build_output_line(self._batch.id, result, unrun_code))

    def _create_file(self, name: str) -> StoredFile:
        lifetime_s = self._batch.output_expires_s or BATCH_FILE_LIFETIME_S
        return StoredFile(
            id=new_file_id(self._new_id),
            created_at=self._now,
            expires_at=self._now + lifetime_s,
            filename=f"{self._batch.id}_{name}.jsonl",
            purpose=OUTPUT_PURPOSE,
        )
