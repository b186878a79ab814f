"""Lists of turns for `/v1/inspect`: those in memory, those in the store, and those that run on any of its servers."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from antiphon.app.context import ServerContext
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.record_rows import UnreadableRecordError, read_stored_excerpt, read_stored_request
from antiphon.app.inspection.summaries import TurnFilter
from antiphon.app.store.database import Database
from antiphon.app.store.history.summary_tables import LATEST
from antiphon.app.turn_types.turn_stats import TurnStats

MAX_SEARCHED_TURNS = 1_000
"""Turns whose requests are searched for a text, latest first."""
SEARCHED_TOGETHER = 50
"""Requests that are in memory at once while they are searched."""
Place = tuple[float, str]
"""Place of a turn in a list: its time and its id."""


class TurnQuery(Struct, frozen=True, kw_only=True):
    """Which turns of an owner to list: up to `limit` before the place, that fit the filter and have the text."""

    owner: str
    wanted: TurnFilter
    text: str
    before: Place
    limit: int


class ListedTurn(Struct, frozen=True):
    """A turn in a list."""

    stats: TurnStats
    is_recorded: bool
    excerpt: str = ""


def place_of(stats: TurnStats) -> Place:
    """Returns the place of a turn in a list."""
    return stats.started_at, stats.response_id


async def find_place(context: ServerContext, owner: str, turn_id: str) -> Place | None:
    """Returns the place of the owner's turn, which may have been deleted; None if there was no such one.

    Without an id, it is the place before all turns.
    """
    if not turn_id:
        return LATEST
    recorder = context.turn_manager.recorder
    record = None if recorder is None else recorder.find(owner, turn_id)
    if record is not None:
        return place_of(record.stats)

    def find_stored(database: Database) -> Place | None:
        running = (each for each in database.summaries.list_running(owner) if each.response_id == turn_id)
        stats = database.summaries.find(owner, turn_id) or next(running, None)
        if stats is not None:
            return place_of(stats)
        started = database.summaries.find_deleted(owner, turn_id)
        return None if started is None else (started, turn_id)

    return await context.store.read(find_stored)


async def list_owner_turns(context: ServerContext, query: TurnQuery) -> list[ListedTurn]:
    """Returns the turns, latest first."""
    recorder = context.turn_manager.recorder
    records = [] if recorder is None else list(recorder.list_records(query.owner))
    chosen = {each.id: each for each in records if _is_chosen(query, each.stats)}
    return await context.store.read(partial(_search if query.text else _list_page, query, chosen))


def _is_chosen(query: TurnQuery, stats: TurnStats) -> bool:
    return place_of(stats) < query.before and query.wanted.fits(stats)


def _merge(query: TurnQuery, records: dict[str, TurnRecord], database: Database, limit: int) -> Sequence[TurnStats]:
    """Returns up to `limit` turns, latest first, without regard to the text."""
    running = [each for each in database.summaries.list_running(query.owner) if _is_chosen(query, each)]
    stored = database.summaries.list_summaries(query.owner, query.wanted, limit, query.before)
    known = (each.stats for each in records.values())
    found = {each.response_id: each for each in (*running, *stored, *known)}
    return sorted(found.values(), key=place_of, reverse=True)[:limit]


def _list_page(query: TurnQuery, records: dict[str, TurnRecord], database: Database) -> list[ListedTurn]:
    turns = _merge(query, records, database, query.limit)
    rows = database.records.list_data(query.owner, [each.response_id for each in turns])
    return [_list_turn(each, records.get(each.response_id), rows.get(each.response_id)) for each in turns]


def _list_turn(stats: TurnStats, record: TurnRecord | None, row: bytes | None) -> ListedTurn:
    if record is not None:
        return ListedTurn(stats, is_recorded=True, excerpt=record.read_excerpt())
    return ListedTurn(stats, is_recorded=row is not None, excerpt="" if row is None else read_stored_excerpt(row))


def _search(query: TurnQuery, records: dict[str, TurnRecord], database: Database) -> list[ListedTurn]:
    """Returns the turns whose requests have the text, in upper or lower case."""
    searched, found = query.text.casefold(), list[ListedTurn]()
    turns = _merge(query, records, database, MAX_SEARCHED_TURNS)
    for start in range(0, len(turns), SEARCHED_TOGETHER):
        part = turns[start : start + SEARCHED_TOGETHER]
        rows = database.records.list_data(query.owner, [each.response_id for each in part])
        for stats in part:
            record, row = records.get(stats.response_id), rows.get(stats.response_id)
            if searched in _read_request(record, row).decode(errors="replace").casefold():
                found.append(_list_turn(stats, record, row))
        if len(found) >= query.limit:
            break
    return found[: query.limit]


def _read_request(record: TurnRecord | None, row: bytes | None) -> bytes:
    if record is not None:
        return record.read_request()
    try:
        return b"" if row is None else read_stored_request(row)
    except UnreadableRecordError:
        return b""
