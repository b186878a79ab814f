"""Which servers of a store are alive, whatever the clocks say, and which of them share the limits of owners."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.app.inspection.server_figures import FiguresReporter, encode_figures, takes_requests
from antiphon.app.options.settings import Settings
from antiphon.app.store.maintenance.backup import list_live_writers
from antiphon.app.store.writing import writer_lease
from antiphon.app.store.writing.upkeep import WRITER_LIFETIME_S
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.store.writing.writer_lease import HeartbeatWatch, create_name
from tests.app.store.store_helpers import SqlitePlace, StorePlace, add_log
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import serve

HOUR_S, LEASE_S = 3600.0, 7.0
ELSEWHERE = "elsewhere:1:2:ab"
TIMINGS = StoreTimings(heartbeat_s=0.05, lease_s=0.5, sweep_interval_s=0.05)


class Watched:
    """A watch with a clock of its own, and the heartbeats that it sees."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.heartbeat = 50.0
        self.watch = HeartbeatWatch("me", LEASE_S, lambda: self.now)
        self.observe(0.0)

    def observe(self, seconds: float) -> bool:
        """Lets time pass, and returns whether the other server is alive then."""
        self.now += seconds
        self.watch.observe([("me", 1.0, ""), (ELSEWHERE, self.heartbeat, "")])
        return self.watch.is_alive(ELSEWHERE, self.heartbeat)


def test_server_is_alive_while_its_heartbeat_changes_whatever_it_is() -> None:
    watched = Watched()
    for heartbeat in (51.0, 51.0 + HOUR_S, 2.0, 1e12, 1e12 + 1):
        for _ in range(6):
            assert watched.observe(1.0)
        watched.heartbeat = heartbeat
        assert watched.observe(1.0)


@pytest.mark.parametrize("heartbeat", [51.0, 50.0 + HOUR_S, 50.0 - HOUR_S, 1e12])
def test_server_is_dead_once_its_heartbeat_has_not_changed_for_a_lease(heartbeat: float) -> None:
    watched = Watched()
    watched.heartbeat = heartbeat
    assert all(watched.observe(1.0) for _ in range(7))
    assert not watched.observe(1.0) and ELSEWHERE not in watched.watch.list_alive()
    watched.heartbeat += 1
    assert watched.watch.is_alive(ELSEWHERE, watched.heartbeat), "it came back"


def test_pause_of_the_watching_server_is_no_death_of_others() -> None:
    watched = Watched()
    assert watched.observe(1000.0) and watched.observe(3.0)
    assert not watched.observe(0.5)


def test_silence_before_an_outage_does_not_count() -> None:
    watched = Watched()
    assert all(watched.observe(1.0) for _ in range(6))
    watched.now += HOUR_S
    watched.watch.restart()
    assert all(watched.observe(1.0) for _ in range(6)), "it has a whole lease to come back"
    assert not watched.observe(1.0)


def test_server_without_a_heartbeat_and_ended_process_are_dead_at_once() -> None:
    watched = Watched()
    machine, pid, start_time, _ = create_name().split(":")
    assert start_time, "Linux"
    ended = f"{machine}:{pid}:{int(start_time) + 1}:ab"
    assert not watched.watch.is_alive(ELSEWHERE, 0.0) and not watched.watch.is_alive(ended, time.time())
    assert watched.watch.is_alive("me", 0.0)
    for name in ("of another version", ""):
        assert watched.watch.is_alive(name, 1.0), "it is seen for the first time"


async def test_response_whose_server_had_a_clock_of_the_future_is_ended(place: StorePlace) -> None:
    async with place.open(timings=TIMINGS) as store:
        log = add_log(store, "a", count=2, background=True)
        await log.wait_kept()
        ahead = time.time() + HOUR_S
        for statement in (
            f"INSERT INTO writers (name, heartbeat, stats) VALUES ('{ELSEWHERE}', {ahead}, '')",
            f"UPDATE responses SET writer = '{ELSEWHERE}'",
        ):
            place.read_rows(statement)
        response = await asyncio.wait_for(log.wait_finished(), HANG_TIMEOUT_S)
        assert response.status == "failed" and response.error is not None
        assert response.error.code == "server_restarted"


async def test_two_servers_spare_each_other_when_the_clock_steps(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lease, "_machine_id", lambda: "elsewhere")  # no process tells that it is alive
    timings = StoreTimings(heartbeat_s=0.05, lease_s=10.0, sweep_interval_s=3600.0)
    async with place.open(timings=timings) as first, place.open(timings=timings) as second:
        logs = [add_log(store, name, count=2) for store, name in ((first, "a"), (second, "b"))]
        for log in logs:
            await log.wait_kept()
        for step in (HOUR_S, -HOUR_S):
            place.read_rows(f"UPDATE writers SET heartbeat = heartbeat - {step}")
            await asyncio.sleep(0.3)
        assert not any(log.is_lost for log in logs)


async def test_rows_of_servers_that_died_a_day_ago_are_deleted(place: StorePlace) -> None:
    async with place.open(timings=TIMINGS) as store:
        ages = {"old": WRITER_LIFETIME_S + 60, "ahead": -WRITER_LIFETIME_S - 60, "young": WRITER_LIFETIME_S - 60}
        for name, age in ages.items():
            values = f"'{name}', {time.time() - age}, ''"
            place.read_rows(f"INSERT INTO writers (name, heartbeat, stats) VALUES ({values})")
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while len(rows := place.read_rows("SELECT name FROM writers")) > 2:
                await asyncio.sleep(0.02)
        assert {row[0] for row in rows} == {"young", store.name}


def test_command_takes_no_heartbeat_of_the_future_for_a_server(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path / "a.db")

    async def fill() -> None:
        async with place.open():
            for name, ahead in (("ahead", HOUR_S), ("now", 0.0)):
                values = f"'{name}', {time.time() + ahead}, ''"
                place.read_rows(f"INSERT INTO writers (name, heartbeat, stats) VALUES ({values})")

    asyncio.run(fill())
    assert list_live_writers(place.path) == ["now"]


def test_servers_that_start_or_drain_take_no_requests() -> None:
    settings = Settings(port=0)
    assert not takes_requests("") and takes_requests("no JSON of this version")
    for serving in (True, False):
        assert takes_requests(encode_figures(settings, (), 0, 0.0, serving=serving)) is serving
    serving = True
    reporter = FiguresReporter(settings, (), lambda: 0, lambda: serving)
    assert takes_requests(reporter.report())
    serving = False
    assert not takes_requests(reporter.report()), "at once"


def test_draining_server_gives_its_share_up(place: StorePlace) -> None:
    script = [{"name": "stall", "output": ["Hello ", {"stall": True}]}]
    options = place.settings() | {"shutdown_timeout": 60.0}
    with serve(script, **options) as first, serve(script, **options) as second:
        count: Callable[[], int] = lambda: second.context.store.servers.num_serving  # noqa: E731
        wait_with_progress(lambda: count() == 2, "both take requests")
        second.loop.call_soon_threadsafe(first.context.begin_drain)
        wait_with_progress(lambda: count() == 1, "the first one drains")
