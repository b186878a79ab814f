"""Summaries of stored turns, over SQLite and PostgreSQL: what is kept, listed, deleted, and found after a restart."""

from typing import Any

import pytest
from msgspec import structs

from antiphon.app.inspection.summaries import TurnFilter
from antiphon.app.store.history.summary_tables import SUMMARY_COLUMNS, encode_summary
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.turn_stats import TurnStats, TurnTimes
from tests.app.store.continued_turns import read_end, run_context, start_turn, wait_for_entries
from tests.app.store.store_helpers import StorePlace

pytestmark = pytest.mark.processes


@pytest.fixture
async def tables(place: StorePlace) -> StorePlace:
    """A place whose tables exist."""
    async with place.open():
        return place


def make_stats(number: int, **changes: Any) -> TurnStats:
    stats = TurnStats(
        response_id=f"resp_{number:03}",
        model="coder",
        api="chat",
        started_at=1_700_000_000.0 + number,
        status="completed",
        ending=Ending("stop_token", "7"),
        tools=("shell", 'a "quoted" name_%'),
        input_tokens=8,
        cached_tokens=4,
        output_tokens=2,
        times=TurnTimes(arrived=5.0, parsed=5.25, ended=7.0),
    )
    return structs.replace(stats, **changes)


def insert(place: StorePlace, owner: str, *summaries: TurnStats) -> None:
    """Inserts the summaries of turns whose responses do not exist."""
    database = place.open_database()
    database.begin(sync=False)
    for stats in summaries:
        database._insert_rows("turn_summaries", SUMMARY_COLUMNS, [encode_summary(owner, stats)])
    database.commit()
    database.close()


def list_ids(place: StorePlace, owner: str = "a", limit: int = 50, before: Any = None, **fields: Any) -> list[str]:
    database = place.open_database()
    try:
        places = {} if before is None else {"before": before}
        found = database.summaries.list_summaries(owner, TurnFilter(**fields), limit, **places)
    finally:
        database.close()
    return [stats.response_id for stats in found]


def test_summary_is_what_was_stored(tables: StorePlace) -> None:
    insert(tables, "a", make_stats(1))
    database = tables.open_database()
    found = database.summaries.find("a", "resp_001")
    assert database.summaries.find("b", "resp_001") is None
    database.close()
    times = TurnTimes(arrived=0.0, parsed=0.25, ended=2.0)
    assert found == make_stats(1, times=times)


def test_list_has_the_latest_first_in_pages(tables: StorePlace) -> None:
    insert(tables, "a", *(make_stats(number) for number in range(5)))
    insert(tables, "b", make_stats(9))
    assert list_ids(tables) == [f"resp_00{number}" for number in (4, 3, 2, 1, 0)]
    assert list_ids(tables, limit=2) == ["resp_004", "resp_003"]
    assert list_ids(tables, limit=2, before=(1_700_000_003.0, "resp_003")) == ["resp_002", "resp_001"]


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"status": "failed"}, {"status": "failed"}),
        ({"model": "it's"}, {"model": "it's"}),
        ({"api": "messages"}, {"api": "messages"}),
        ({"ending": "deadline"}, {"ending": Ending("deadline")}),
        ({"previous": "resp_0"}, {"previous_id": "resp_0"}),
        ({"tool": "find_it"}, {"tools": ("other", "find_it")}),
        ({"since": 1_800_000_000.0}, {"started_at": 1_900_000_000.0}),
        ({"until": 1_600_000_000.0}, {"started_at": 1_500_000_000.0}),
    ],
)
def test_filters_agree_with_those_in_memory(
    tables: StorePlace, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    others, wanted = [make_stats(1), make_stats(2, tools=("findXit", "find_it2"))], make_stats(3, **changes)
    insert(tables, "a", *others, wanted)
    assert list_ids(tables, **fields) == ["resp_003"]
    assert TurnFilter(**fields).fits(wanted) and not any(TurnFilter(**fields).fits(each) for each in others)


def test_name_of_a_tool_is_no_pattern(tables: StorePlace) -> None:
    insert(tables, "a", make_stats(1))
    assert list_ids(tables, tool='a "quoted" name_%') == ["resp_001"]
    assert [list_ids(tables, tool=name) for name in ("%", "_", "shel_", "!", "hel")] == [[]] * 5


async def test_stored_turn_has_a_summary_until_it_is_deleted(place: StorePlace) -> None:
    async with run_context(place) as context:
        log = await start_turn(context, background=False)
        await log.wait_finished()
    async with place.open() as store:
        found = await store.read(lambda database: database.summaries.find("", log.id))
        assert found is not None and log.stats is not None
        assert (found.ending, found.output_tokens) == (log.stats.ending, log.stats.output_tokens)
        assert found.started_at == log.stats.started_at and found.times.ended is not None
        await store.delete_response("", log.id)
        assert await store.read(lambda database: database.summaries.find("", log.id)) is None


async def test_turn_that_a_crash_ended_has_a_summary(place: StorePlace) -> None:
    async with run_context(place) as context:
        log = await start_turn(context)
        await wait_for_entries(log, 8)
    async with run_context(place, continue_within=0.0) as context:
        await read_end(context, log.id)
        found = await context.store.read(lambda database: database.summaries.find("", log.id))
    assert found is not None and found.status == "failed"
    assert found.ending == Ending("server_restarted", "server_restarted")
