"""Records of turns in memory: a ring that is bounded by bytes, in which no owner has more than half.

With `uses_store`, the store writes the records of stored turns with their last steps, and the ring has all others. The
ring is no database in memory: packed, a turn of 1 024 tokens has 9 KB, and as rows 362 KB, of which the limit would
keep few. Its rows also take 3.6 µs of CPU an event, and packing takes 0.5 µs.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog
from msgspec import structs

from antiphon.app.inspection.prompt_blocks import SharedBlocks
from antiphon.app.inspection.record import PackedTurn, TurnRecord
from antiphon.app.inspection.record_rows import create_packer
from antiphon.app.turn_types.event_log import EventLog

OWNER_SHARE = 2
"""One owner has at most this part of the ring: a half."""

_Key = tuple[str, str]
_logger = structlog.get_logger(__name__)


class TurnRecorder:
    """Keeps the records of turns: those that run, and the latest that have ended, within `max_bytes`.

    Use it on the event loop. A thread packs what has ended.
    """

    def __init__(self, max_bytes: int, *, uses_store: bool = False) -> None:
        self.max_bytes, self._uses_store = max_bytes, uses_store
        self._records: OrderedDict[_Key, TurnRecord] = OrderedDict()
        self._packed: dict[_Key, None] = {}
        """Keys of the records that are packed, oldest first."""
        self._owner_bytes: defaultdict[str, int] = defaultdict(int)
        self._num_bytes = 0
        self._blocks = SharedBlocks()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="inspect")
        self._is_closed = False
        """True once turns are not recorded any more: the last ones may begin while the server shuts down."""
        self._packing: set[asyncio.Future[PackedTurn]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks that wait until the store has the records of turns that have ended."""

    @property
    def num_bytes(self) -> int:
        """Memory of the records that are packed, in bytes."""
        return self._num_bytes

    @property
    def num_packing(self) -> int:
        """Number of records that are being packed, or written by the store."""
        return len(self._packing) + len(self._leaving)

    def begin(self, record: TurnRecord, log: EventLog) -> None:
        """Keeps the record of a turn that runs, and makes the store keep it if it keeps the turn."""
        if self._is_closed:
            return
        self._records[record.owner, record.id] = record
        if self._uses_store and log.base_response.store:
            record.stored_log, log.pack_record, log.keeps_details = log, create_packer(record), True
            self._executor.submit(record.pack_parts)  # most of the work is then done when the last step is written

    def finish(self, owner: str, turn_id: str) -> None:
        """Packs the record of a turn that has ended, if there is one; then drops the oldest ones over a limit."""
        record = self._records.get((owner, turn_id))
        if record is None or self._is_closed:
            return
        if record.stats.status == "refused":
            del self._records[owner, turn_id]
            return
        if (log := record.stored_log) is not None:
            leaving = asyncio.create_task(self._leave_to_store(record, log), name=f"record-{turn_id}")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            return
        loop = asyncio.get_running_loop()
        packing = loop.run_in_executor(self._executor, record.pack)
        self._packing.add(packing)
        packing.add_done_callback(lambda done: self._on_packed(record, done))

    def find(self, owner: str, turn_id: str) -> TurnRecord | None:
        """Returns the owner's record of this turn."""
        return self._records.get((owner, turn_id))

    def list_records(self, owner: str) -> Iterator[TurnRecord]:
        """Yields the owner's records, latest first."""
        return (record for (each, _), record in reversed(self._records.items()) if each == owner)

    def list_running(self) -> list[TurnRecord]:
        """Returns the records of all owners' turns that run, latest first."""
        return [record for record in reversed(self._records.values()) if record.is_running]

    def forget(self, owner: str, turn_id: str) -> bool:
        """Drops a record. Returns whether there was one. A turn that runs continues without it."""
        record = self._records.get((owner, turn_id))
        if record is not None and record.stored_log is not None:
            record.stored_log.pack_record = None
        return self._drop((owner, turn_id))

    async def close(self) -> None:
        """Waits for the thread that packs. The store still writes the records that it is to keep."""
        self._is_closed = True
        for leaving in list(self._leaving):
            leaving.cancel()
        if self._packing:
            await asyncio.wait(self._packing)
        await asyncio.to_thread(self._executor.shutdown)

    async def _leave_to_store(self, record: TurnRecord, log: EventLog) -> None:
        """Drops a record once the store has it, or will never have it."""
        await log.wait_kept()
        if self._records.get((record.owner, record.id)) is record:
            del self._records[record.owner, record.id]

    def _on_packed(self, record: TurnRecord, done: "asyncio.Future[PackedTurn]") -> None:
        self._packing.discard(done)
        key = record.owner, record.id
        if done.cancelled() or self._records.get(key) is not record:
            return
        if (error := done.exception()) is not None:
            _logger.error("a turn could not be recorded", response=record.id, exc_info=error)
            del self._records[key]
            return
        packed, size = done.result(), 0
        rounds = []
        for each in packed.rounds:
            blocks, added = self._blocks.share(each.blocks)
            rounds.append(structs.replace(each, blocks=blocks))
            size += added
        record.finish_packing(structs.replace(packed, rounds=tuple(rounds)))
        self._packed[key] = None
        self._owner_bytes[record.owner] += size + packed.num_bytes
        self._num_bytes += size + packed.num_bytes
        self._evict(record.owner)

    def _evict(self, owner: str) -> None:
        """Drops the oldest records: those of an owner with more than its share, then those of all."""
        while self._owner_bytes[owner] > self.max_bytes // OWNER_SHARE:
            self._drop(next(key for key in self._packed if key[0] == owner))
        while self._num_bytes > self.max_bytes:
            self._drop(next(iter(self._packed)))

    def _drop(self, key: _Key) -> bool:
        record = self._records.pop(key, None)
        if record is None:
            return False
        if record.packed is None:
            return True
        freed = record.packed.num_bytes + sum(self._blocks.release(each.blocks) for each in record.packed.rounds)
        del self._packed[key]
        self._owner_bytes[key[0]] -= freed
        self._num_bytes -= freed
        if not self._owner_bytes[key[0]]:
            del self._owner_bytes[key[0]]
        return True
