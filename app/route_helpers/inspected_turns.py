"""Turns that are looked at: their logs, wherever they are, and their records, if there are any."""

import re
from collections.abc import Iterable
from functools import partial

import structlog
from msgspec import Struct, structs

from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context
from antiphon.app.errors import clip_text, not_found
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.record_rows import UnreadableRecordError, unpack_record
from antiphon.app.inspection.summaries import read_stats
from antiphon.app.store.database import Database
from antiphon.app.store.history.bounded_read import read_in_thread
from antiphon.app.store.sql_connection import UnreadableRowError
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnStats

TURN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


REPLY_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_)([A-Za-z0-9]{1,64})")
"""Ids of replies of the other APIs."""
NOT_RECORDED = (
    "This turn was not recorded: recording was off, the record was deleted or evicted, or another server went on with "
    "the turn."
)
STILL_RUNNING = "This turn runs on another server, or without recording. Its record, if there is one, comes at its end."
DAMAGED_RECORD_MESSAGE = "The record of this turn is damaged."
_log = structlog.get_logger(__name__)


class InspectedTurn(Struct, frozen=True, kw_only=True):
    """A turn of the owner. `record` is None if there is none, for the reason `missing`."""

    log: EventLog
    stats: TurnStats
    record: TurnRecord | None
    missing: str = ""
    damage: str = ""
    """Why the log ends before its end, if a row of the store is damaged."""


async def find_turn(request: AnyRequest, turn_id: str) -> InspectedTurn:
    """Returns the owner's turn. Raises `ApiError` 404, also for an id that is malformed.

    `turn_id` is the id of its response, or that of the reply in another API.
    """
    context, owner = server_context(request), request_owner(request)
    for each in list_turn_ids(turn_id):
        if (turn := await _find(context, owner, each)) is not None:
            return turn
    raise not_found(f"There is no turn with the id '{clip_text(turn_id)}'.")


def list_turn_ids(sent: str) -> tuple[str, ...]:
    """Returns the ids of responses that a client may mean: its reply has the same one after another prefix."""
    if not TURN_ID.fullmatch(sent):
        return ()
    reply = REPLY_ID.fullmatch(sent)
    return (sent,) if reply is None else (sent, f"resp_{reply[1]}", f"chatcmpl_{reply[1]}")


async def _find(context: ServerContext, owner: str, turn_id: str) -> InspectedTurn | None:
    recorder, store = context.turn_manager.recorder, context.store
    record = None if recorder is None else recorder.find(owner, turn_id)
    if record is not None:
        return InspectedTurn(log=record.open_log(), stats=record.stats, record=record)
    await store.prepare_read(owner, turn_id)
    log, damage = await store.read_log(owner, turn_id), ""
    if log is None:
        log, damage = await read_in_thread(store.history.damaged_log_reader(owner, turn_id)) or (None, "")
    if log is None:
        return None
    stats = log.stats or await store.read(lambda database: database.summaries.find(owner, turn_id))
    turn = await store.read(partial(_load_turn, log, stats or read_stats(log.response)))
    return structs.replace(turn, damage=damage)


def _load_turn(log: EventLog, stats: TurnStats, database: Database) -> InspectedTurn:
    """Returns a turn with its record in the store, if there is one."""
    record, missing = None, NOT_RECORDED if log.ended else STILL_RUNNING
    try:
        row = database.records.find(log.owner, log.id)
        record = None if row is None else unpack_record(log, stats, row)
    except (UnreadableRowError, UnreadableRecordError) as error:
        _log.error("stored record is unreadable", response=log.id, error=str(error))
        missing = DAMAGED_RECORD_MESSAGE
    return InspectedTurn(log=log, stats=stats, record=record, missing=missing)


async def forget_turn(context: ServerContext, owner: str, turn_id: str) -> bool:
    """Deletes the record of a turn, wherever it is. Returns whether there was one. The response stays."""
    recorder = context.turn_manager.recorder
    record = None if recorder is None else recorder.find(owner, turn_id)
    was_in_memory = recorder is not None and recorder.forget(owner, turn_id)

    def delete(database: Database) -> bool:
        if record is not None:
            database.summaries.keep_place(owner, turn_id, record.stats.started_at)
        if not database.records.list_data(owner, [turn_id]):
            return False
        database.records.delete(turn_id)
        return True

    return await context.store.change(delete) or was_in_memory


def forget_records(context: ServerContext, owner: str, ids: Iterable[str]) -> None:
    """Drops the records of turns whose responses were deleted: nothing of them is to be seen any more."""
    recorder = context.turn_manager.recorder
    if recorder is not None:
        for turn_id in ids:
            recorder.forget(owner, turn_id)
