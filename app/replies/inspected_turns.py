"""Turns that are looked at: their logs, wherever they are, and their records, if there are any."""

import re

from msgspec import Struct

from antiphon.app.base.endings import Ending
from antiphon.app.base.errors import clip_text, not_found
from antiphon.app.base.event_log import EventLog
from antiphon.app.base.turn_stats import TurnStats
from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.inspection.record import TurnRecord

TURN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class InspectedTurn(Struct, frozen=True, kw_only=True):
    """A turn of the owner. `record` is None if it was not recorded, or if its record was evicted."""

    log: EventLog
    stats: TurnStats
    started_at: float
    """Seconds since 1970."""
    record: TurnRecord | None


async def find_turn(request: AnyRequest, turn_id: str) -> InspectedTurn:
    """Returns the owner's turn. Raises `ApiError` 404, also for an id that is malformed."""
    context, owner = server_context(request), request_owner(request)
    if TURN_ID.fullmatch(turn_id):
        recorder = context.turn_manager.recorder
        record = None if recorder is None else recorder.find(owner, turn_id)
        if record is not None:
            return InspectedTurn(log=record.open_log(), stats=record.stats, started_at=record.started_at, record=record)
        await context.store.prepare_read(owner, turn_id)
        log = await context.store.read_log(owner, turn_id)
        if log is not None:
            return InspectedTurn(
                log=log, stats=log.stats or read_stats(log), started_at=float(log.base_response.created_at), record=None
            )
    raise not_found(f"There is no turn with the id '{clip_text(turn_id)}'.")


def read_stats(log: EventLog) -> TurnStats:
    """Returns the figures of a turn of another process, as far as its response has them."""
    response = log.response
    usage, error = response.usage, response.error
    stats = TurnStats(response_id=log.id, model=response.model, status=str(response.status))
    stats.previous_id = response.previous_response_id or ""
    if usage is not None:
        stats.input_tokens, stats.output_tokens = usage.input_tokens, usage.output_tokens
        stats.cached_tokens = usage.input_tokens_details.cached_tokens
    if error is not None:
        stats.error_code = error.code
        stats.ending = Ending("server_restarted") if error.code == "server_restarted" else None
    return stats
