"""Sums of usage in the store: written once each, by several processes, over kills and outages of the database."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.errors import storage_unavailable
from antiphon.app.store.history.usage_tables import COLUMNS, UsageCounts, UsageQuery, UsageRow
from antiphon.app.store.writing.upkeep import USAGE_RETENTION_S, StoreUpkeep
from antiphon.app.usage.recorder import HOUR_S, KEPT_HOURS, KEPT_MINUTES, UsageRecorder
from tests.app.store.store_helpers import StorePlace, open_test_store

NOW = 1_800_000_000 - 1_800_000_000 % HOUR_S
DAY = UsageQuery(start=NOW - NOW % 86_400, end=NOW + 86_400, period_s=86_400)


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def counts(number: int) -> UsageCounts:
    return UsageCounts(requests=1, input_tokens=number, output_tokens=1)


async def test_sums_of_several_processes_are_added(place: StorePlace) -> None:
    async with place.open() as first_store, place.open() as second_store:
        first, second = UsageRecorder(first_store, Clock()), UsageRecorder(second_store, Clock())
        for _ in range(3):
            first.add("a", "key_1", "m", counts(10))
            second.add("a", "key_2", "m", counts(100))
            assert await first.flush() and await second.flush()
        assert await first.flush()
        [row] = await first.read_periods(DAY)
        assert (row.counts.requests, row.counts.input_tokens, row.counts.output_tokens) == (6, 330, 6)
        rows = await first.read_periods(UsageQuery(start=NOW, end=NOW + HOUR_S, period_s=HOUR_S, by=COLUMNS))
        assert [(each.key_id, each.counts.input_tokens) for each in rows] == [("key_1", 30), ("key_2", 300)]
        assert first.used_tokens("a", None, "day") == 336 and first.used_tokens("a", "key_2", "month") == 303
        while first_store.servers.num_serving < 2:
            await asyncio.sleep(0.01)


async def test_killed_process_loses_what_it_has_not_written_and_doubles_nothing(place: StorePlace) -> None:
    async with place.open() as store:
        for _ in range(5):  # each recorder stands for a process, of which the last one is not closed
            recorder = UsageRecorder(store, Clock())
            store.name = f"writer-{_}"
            recorder.add("a", "", "m", counts(1))
            await recorder.flush()
            await recorder.flush()
            recorder.add("a", "", "m", counts(1000))
        last = UsageRecorder(store, Clock())
        await last.flush()
        assert last.used_tokens("a", None, "day") == 10
        [row] = await last.read_periods(DAY)
        assert (row.counts.requests, row.counts.input_tokens) == (5, 5)


async def test_write_of_unknown_fate_is_repeated_and_counts_once(tmp_path: Path) -> None:
    """The database has committed the write, but the answer is lost."""
    async with open_test_store(tmp_path / "store.db") as store:
        recorder, change = UsageRecorder(store, Clock()), store.change
        recorder.add("a", "", "m", counts(7))

        async def lose_answer(apply: Callable[[Any], Any]) -> Any:
            await change(apply)
            raise storage_unavailable("lost")

        store.change = lose_answer  # type: ignore[method-assign]
        assert not await recorder.flush()
        assert recorder.used_tokens("a", None, "day") == 8
        recorder.add("a", "", "m", counts(7))
        store.change = change  # type: ignore[method-assign]
        assert await recorder.flush()
        [row] = await recorder.read_periods(DAY)
        assert row.counts.input_tokens == 14
        assert recorder.used_tokens("a", None, "day") == 16


async def test_new_day_and_month_begin_at_zero(tmp_path: Path) -> None:
    async with open_test_store(tmp_path / "store.db") as store:
        clock = Clock()
        recorder = UsageRecorder(store, clock)
        recorder.add("a", "", "m", counts(9))
        await recorder.flush()
        assert recorder.used_tokens("a", None, "day") == recorder.used_tokens("a", None, "month") == 10
        clock.now += 86_400
        assert (recorder.used_tokens("a", None, "day"), recorder.used_tokens("a", None, "month")) == (0, 10)
        clock.now += 31 * 86_400
        assert recorder.used_tokens("a", None, "month") == 0
        await recorder.flush()
        assert recorder.used_tokens("a", None, "month") == 0


async def test_memory_holds_the_current_hour_and_the_last_minutes(tmp_path: Path) -> None:
    async with open_test_store(tmp_path / "store.db") as store:
        clock = Clock()
        recorder = UsageRecorder(store, clock)
        for _ in range(500):
            clock.now += 600
            recorder.add("a", "", "m", counts(1))
            await recorder.flush()
        assert len(recorder._hours) <= KEPT_HOURS + 2 and len(recorder._minutes) == KEPT_MINUTES + 1
        assert sum(row.counts.requests for row in recorder.list_minutes()) == KEPT_MINUTES + 1
        rows = await recorder.read_periods(UsageQuery(start=NOW, end=NOW + 100 * HOUR_S, period_s=HOUR_S))
        assert sum(row.counts.requests for row in rows) == 500


async def test_sums_are_deleted_after_400_days(place: StorePlace) -> None:
    async with place.open() as store:
        ages_s = {"new": 0, "kept": USAGE_RETENTION_S, "old": USAGE_RETENTION_S + HOUR_S}
        rows = [UsageRow(NOW - age_s, owner, "k", "m", counts(1)) for owner, age_s in ages_s.items()]
        await store.change(lambda database: database.usage.save_rows("w", rows))
        database = place.open_database()
        StoreUpkeep(database, "w", lambda *_: True).delete_expired(NOW, retention_s=NOW, max_bytes=1 << 30)
        database.close()
        query = UsageQuery(start=0, end=NOW + HOUR_S, period_s=HOUR_S, by=("owner",))
        found = await store.read(lambda database: database.usage.sum_periods(query))
        assert [row.owner for row in found] == ["kept", "new"]


async def test_hour_has_one_row_for_each_key_and_model(place: StorePlace) -> None:
    """Repeated requests add to a row. Rows of one owner take none from another."""
    async with place.open() as store:
        recorder = UsageRecorder(store, Clock())
        for number in range(12):
            recorder.add("many", f"k{number % 2}", f"m{number % 3}", counts(1))
            await recorder.flush()
        recorder.add("one", "k", "m0", counts(1))
        await recorder.flush()
        rows = place.read_rows("SELECT owner, count(*), CAST(sum(requests) AS BIGINT) FROM usage_hours GROUP BY owner")
        assert sorted(map(tuple, rows)) == [("many", 6, 12), ("one", 1, 1)]


async def test_random_turns_by_every_group(place: StorePlace) -> None:
    """Sums by any columns equal those that are added up here."""
    rng = random.Random(5)
    async with place.open() as store:
        clock = Clock()
        recorder, made = UsageRecorder(store, clock), list[UsageRow]()
        for _ in range(400):
            clock.now = NOW + rng.randrange(4 * HOUR_S)
            owner, key_id, model = rng.choice("ab"), rng.choice(("", "k1", "k2")), rng.choice("mn")
            added = UsageCounts(**{name: rng.randrange(50) for name in UsageCounts.__struct_fields__})
            recorder.add(owner, key_id, model, added)
            made.append(UsageRow(int(clock.now), owner, key_id, model, added))
            if rng.random() < 0.1:
                await recorder.flush()
        for by in ((), ("owner",), ("key_id", "model"), COLUMNS):
            for only in ({}, {"owner": ("a",)}, {"model": ("m", "n"), "key_id": ("k1",)}, {"model": ()}):
                query = UsageQuery(start=NOW, end=NOW + 4 * HOUR_S, period_s=HOUR_S, by=by, only=only)
                expected: dict[tuple[Any, ...], UsageCounts] = {}
                for row in made:
                    if all(getattr(row, name) in values for name, values in only.items()):
                        group = (row.start - row.start % HOUR_S, *(getattr(row, name) for name in by))
                        expected.setdefault(group, UsageCounts()).add(row.counts)
                found = {
                    (row.start, *(getattr(row, name) for name in by)): row.counts
                    for row in await recorder.read_periods(query)
                }
                assert found == expected


async def test_sums_are_written_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.usage.recorder.USAGE_WRITE_INTERVAL_S", 0.01)
    async with open_test_store(tmp_path / "store.db") as store:
        recorder = UsageRecorder(store, Clock())
        recorder.start()
        recorder.add("a", "", "m", counts(3))
        async with asyncio.timeout(60):
            while not (rows := await store.read(lambda database: database.usage.sum_periods(DAY))):
                await asyncio.sleep(0.01)
        assert rows[0].counts.input_tokens == 3
        recorder.add("a", "", "m", counts(3))
        await recorder.close()
        rows = await store.read(lambda database: database.usage.sum_periods(DAY))
        assert rows[0].counts.input_tokens == 6
