"""Turns that are looked at: their logs, wherever they are, and their records, if there are any."""

import re
from collections.abc import Iterable

from msgspec import Struct

from antiphon.app.base.errors import clip_text, not_found
from antiphon.app.base.event_log import EventLog
from antiphon.app.base.turn_stats import TurnStats
from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.summaries import read_stats

TURN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class InspectedTurn(Struct, frozen=True, kw_only=True):
    """A turn of the owner. `record` is None if it was not recorded, or if its record was evicted."""

    log: EventLog
    stats: TurnStats
    record: TurnRecord | None


async def find_turn(request: AnyRequest, turn_id: str) -> InspectedTurn:
    """Returns the owner's turn. Raises `ApiError` 404, also for an id that is malformed."""
    context, owner = server_context(request), request_owner(request)
    if TURN_ID.fullmatch(turn_id):
        recorder = context.turn_manager.recorder
        record = None if recorder is None else recorder.find(owner, turn_id)
        if record is not None:
            return InspectedTurn(log=record.open_log(), stats=record.stats, record=record)
        await context.store.prepare_read(owner, turn_id)
        log = await context.store.read_log(owner, turn_id)
        if log is not None:
            stats = log.stats or await context.store.read(lambda database: database.summaries.find(owner, turn_id))
            return InspectedTurn(log=log, stats=stats or read_stats(log.response), record=None)
    raise not_found(f"There is no turn with the id '{clip_text(turn_id)}'.")


def forget_records(context: ServerContext, owner: str, ids: Iterable[str]) -> None:
    """Drops the records of turns whose responses were deleted: nothing of them is to be seen any more."""
    recorder = context.turn_manager.recorder
    if recorder is not None:
        for turn_id in ids:
            recorder.forget(owner, turn_id)
