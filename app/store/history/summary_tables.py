"""SQL statements of the table of summaries: one row a stored turn that has ended, as methods of one connection."""

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from antiphon.app.inspection.summaries import TurnFilter
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.sql_connection import SqlConnection
from antiphon.app.turn_types.endings import CAUSES, Ending
from antiphon.app.turn_types.turn_stats import Api, TurnStats, TurnTimes

SUMMARY_COLUMNS: Mapping[str, str] = {
    "id": "text",
    "owner": "text",
    "started": "float8",
    "api": "text",
    "model": "text",
    "status": "text",
    "cause": "text",
    "detail": "text",
    "error_code": "text",
    "previous": "text",
    "tools": "text",
    "input_tokens": "bigint",
    "cached_tokens": "bigint",
    "output_tokens": "bigint",
    "times": "text",
}
"""Names of the columns, each with its type in PostgreSQL."""
LATEST = (math.inf, "")
"""Place before the latest turn."""
MAX_RUNNING_SUMMARIES = 1_000
"""Turns in progress that a list has at most."""
_SUMMARY_APIS = frozenset(get_args(Api))
_COLUMNS = ", ".join(name for name in SUMMARY_COLUMNS if name != "owner")
_FILTERED = ("status", "model", "api", "cause", "previous")


def encode_summary(owner: str, stats: TurnStats) -> tuple[Any, ...]:
    """Returns the values of `SUMMARY_COLUMNS`. `times` holds the milliseconds from the request on."""
    times, ending = stats.times, stats.ending or Ending("server_bug")
    offsets = {
        name: round(seconds * 1e3, 3)
        for name, at in msgspec.structs.asdict(times).items()
        if (seconds := times.seconds_until(at)) is not None
    }
    return (
        *(stats.response_id, owner, stats.started_at, stats.api, stats.model, stats.status),
        *(ending.cause, ending.detail, stats.error_code, stats.previous_id),
        msgspec.json.encode(stats.tools).decode(),
        *(stats.input_tokens, stats.cached_tokens, stats.output_tokens),
        msgspec.json.encode(offsets).decode(),
    )


class _BegunResponse(msgspec.Struct, frozen=True):
    """The part of a response that is known when its turn begins."""

    created_at: float = 0.0
    model: str = ""
    status: str = "in_progress"
    previous_response_id: str | None = None


_base_decoder = msgspec.json.Decoder(_BegunResponse)


class SummaryTables:
    """Statements on summaries. `Database` writes them with the last step of a turn."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection, self._deleted = connection, DeletedEntries(connection)

    def find(self, owner: str, turn_id: str) -> TurnStats | None:
        """Returns the summary of the owner's turn."""
        query = f"SELECT {_COLUMNS} FROM turn_summaries WHERE id = ? AND owner = ?"  # noqa: S608
        row = self._connection.execute(query, (turn_id, owner)).fetchone()
        return None if row is None else _decode_summary(row)

    def list_summaries(
        self, owner: str, wanted: TurnFilter, limit: int, before: tuple[float, str] = LATEST
    ) -> list[TurnStats]:
        """Returns up to `limit` summaries, latest first, of turns before this place: time and id of another turn."""
        chosen = {**msgspec.structs.asdict(wanted), "cause": wanted.ending}
        conditions, values = ["owner = ?"], list[Any]([owner])
        for name in _FILTERED:
            if chosen[name]:
                conditions.append(f"{name} = ?")
                values.append(chosen[name])
        if wanted.tool:
            conditions.append("tools LIKE ? ESCAPE '!'")
            values.append(f"%{_escape_pattern(msgspec.json.encode(wanted.tool).decode())}%")
        for condition, bound in (("started >= ?", wanted.since), ("started <= ?", wanted.until)):
            if math.isfinite(bound):
                conditions.append(condition)
                values.append(bound)
        if math.isfinite(before[0]):
            conditions.append("(started, id) < (?, ?)")
            values += before
        query = f"""
            SELECT {_COLUMNS} FROM turn_summaries WHERE {" AND ".join(conditions)}
            ORDER BY started DESC, id DESC LIMIT ?
        """  # noqa: S608
        return [_decode_summary(row) for row in self._connection.execute(query, (*values, limit))]

    def list_running(self, owner: str) -> list[TurnStats]:
        """Returns what is known of the owner's stored turns that have not ended, on all servers of the store."""
        query = "SELECT id, base_response FROM responses WHERE owner = ? AND writer IS NOT NULL LIMIT ?"
        return [_read_running(*row) for row in self._connection.execute(query, (owner, MAX_RUNNING_SUMMARIES))]

    def keep_place(self, owner: str, turn_id: str, started: float) -> None:
        """Keeps the place of a turn that is deleted where it was recorded, and may not be in the store."""
        self._deleted.record("turn_summaries", [(owner, turn_id, started, 0)])

    def find_deleted(self, owner: str, turn_id: str) -> float | None:
        """Returns the time of the owner's turn if it was deleted."""
        place = self._deleted.find_deleted("turn_summaries", owner, turn_id, descending=True)
        return None if place is None else place[0]

    def keep_place_of(self, turn_id: str) -> None:
        """Keeps the place of a turn whose response is about to be deleted. One that has not ended has no summary."""
        query = """
            SELECT responses.owner, responses.id, coalesce(started, created), 0
            FROM responses LEFT JOIN turn_summaries ON turn_summaries.id = responses.id WHERE responses.id = ?
        """
        self._deleted.record("turn_summaries", self._connection.execute(query, (turn_id,)).fetchall())

    def delete(self, turn_id: str) -> None:
        """Deletes the summary of a response that is deleted."""
        self._connection.execute("DELETE FROM turn_summaries WHERE id = ?", (turn_id,))


def _escape_pattern(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _read_running(turn_id: str, base_response: bytes) -> TurnStats:
    """Returns the figures of a turn as it began. A damaged response is shown by its id."""
    try:
        base = _base_decoder.decode(base_response)
    except (msgspec.DecodeError, UnicodeDecodeError):
        base = _BegunResponse()
    api: Api = "chat" if turn_id.startswith("chatcmpl_") else "responses"
    return TurnStats(
        response_id=turn_id,
        model=base.model,
        api=api,
        started_at=base.created_at,
        status=base.status,
        previous_id=base.previous_response_id or "",
    )


def _decode_summary(row: Any) -> TurnStats:
    """Returns a row as figures, whose times count from 0. A damaged value is left out: a list is shown without it."""
    turn_id, started, api, model, status, cause, detail, error_code, previous, tools, *counts, times = row
    stats = TurnStats(response_id=turn_id, model=model, status=status, started_at=started, error_code=error_code)
    stats.previous_id, stats.api = previous, api if api in _SUMMARY_APIS else "responses"
    stats.ending = Ending(cause, detail) if cause in CAUSES else None
    stats.input_tokens, stats.cached_tokens, stats.output_tokens = counts
    try:
        stats.tools = msgspec.json.decode(tools, type=tuple[str, ...])
        offsets = msgspec.json.decode(times, type=dict[str, float])
    except msgspec.DecodeError:
        return stats
    stats.times = msgspec.convert({name: value / 1e3 for name, value in offsets.items()}, TurnTimes)
    return stats
