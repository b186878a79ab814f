"""`pump`: one write for each step, back-pressure from a slow reader, and pings during silence."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.http import stream_writer
from antiphon.app.http.stream_writer import PING_INTERVAL_S, StreamEncoder, pump
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.events import sse
from antiphon.events.base import Event
from antiphon.state.segments import Say
from tests.progress import HANG_TIMEOUT_S
from tests.snapshots.run_case import RecordingStreamWriter
from tests.state.machine_helpers import INITIAL_RESPONSE, create_machine


class NumberEncoder(StreamEncoder):
    """Encodes the sequence numbers of the entries of its logs. It fails at the first number above `last`."""

    def __init__(self, *logs: EventLog, last: int = 1 << 30) -> None:
        self.logs, self._last = logs, last

    def initial(self) -> bytes:
        return b"head"

    def encode(self, number: int, entries: list[LogEntry]) -> bytes:
        if entries[-1].event.sequence_number > self._last:
            self.failure = ApiError(500, None, "")
        numbers = ",".join(str(entry.event.sequence_number) for entry in entries)
        return f" {number}:{numbers}".encode()

    def final(self) -> bytes:
        return b" end"


def make_steps() -> list[list[Event]]:
    m = create_machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.feed(Say("c")), m.stop()]


class PumpedLogs:
    """Logs to which a test appends the steps of a short turn, and a `pump` that writes them to a pipe."""

    def __init__(self, logs: int = 1, last: int = 1 << 30) -> None:
        self.logs = [EventLog(INITIAL_RESPONSE, "") for _ in range(logs)]
        self.steps = [make_steps() for _ in self.logs]
        self.writer = RecordingStreamWriter()
        self.encoder = NumberEncoder(*self.logs, last=last)
        self.task = asyncio.create_task(pump(self.encoder, self.writer))

    async def append_steps(self, log: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self.logs[log].append_step(self.steps[log].pop(0))
        await self.run_pump()

    async def run_pump(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    @property
    def output(self) -> str:
        return b"".join(self.writer.writes).decode()


async def test_each_step_and_each_backlog_is_one_write() -> None:
    pumped = PumpedLogs()
    await pumped.run_pump()
    await pumped.append_steps()
    await pumped.append_steps(count=2)
    await pumped.append_steps(count=2)
    pumped.logs[0].end_log()
    await pumped.task
    assert pumped.writer.writes[0] == b"head" and pumped.writer.writes[-1] == b" end"
    assert [piece.count(b":") for piece in pumped.writer.writes[1:-1]] == [1, 1, 1]
    numbers = [int(number) for number in pumped.output[7:-4].replace(" 0:", ",").split(",")]
    assert numbers == list(range(len(pumped.logs[0].entries)))


async def test_paused_writer_gets_every_entry_after_it_resumes() -> None:
    pumped = PumpedLogs()
    await pumped.append_steps()
    before = pumped.output
    pumped.writer.free.clear()
    await pumped.append_steps(count=1)
    await pumped.append_steps(count=3)
    pumped.logs[0].end_log()
    await pumped.run_pump()
    assert pumped.output.startswith(before) and not pumped.task.done()
    pumped.writer.free.set()
    await pumped.task
    assert pumped.output.endswith(f"{len(pumped.logs[0].entries) - 1} end")


async def test_entries_of_several_logs_are_written_in_order_of_arrival() -> None:
    pumped = PumpedLogs(logs=2)
    await pumped.run_pump()
    for log in (1, 0, 1, 1, 0):
        await pumped.append_steps(log)
    for log in pumped.logs:
        log.end_log()
    await pumped.task
    assert [piece[1:2] for piece in pumped.writer.writes[1:-1]] == [b"1", b"0", b"1", b"1", b"0"]


async def test_encoder_may_finish_before_its_logs_end() -> None:
    pumped = PumpedLogs(logs=2, last=2)
    await pumped.run_pump()
    await pumped.append_steps(0)
    await pumped.append_steps(1, count=2)
    await asyncio.wait_for(pumped.task, HANG_TIMEOUT_S)
    assert pumped.output.endswith(" end") and not any(log.open_readers for log in pumped.logs)


class ManualClock:
    """The timers of the event loop, which expire when a test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "ManualClock":
        self._timers.append((self._now + seconds, callback))
        return self

    def cancel(self) -> None:
        """Ends the only timer that a pump has."""
        self._timers.clear()

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, callback = self._timers.pop(0)
            callback()
        self._now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    manual = ManualClock()
    names = {"get_running_loop": lambda: manual, "create_task": asyncio.create_task}
    monkeypatch.setattr(stream_writer, "asyncio", SimpleNamespace(**names))
    return manual


async def test_pings_are_repeated_only_after_each_full_interval_of_silence(clock: ManualClock) -> None:
    pumped = PumpedLogs()
    await pumped.run_pump()
    for _ in range(3):
        clock.advance(0.9 * PING_INTERVAL_S)  # each is shorter than the interval, their sum is longer
        await pumped.append_steps()
    assert sse.PING_COMMENT not in pumped.writer.writes
    for count in (1, 2, 3):
        clock.advance(0.99 * PING_INTERVAL_S)
        assert pumped.writer.writes.count(sse.PING_COMMENT) == count - 1
        clock.advance(0.01 * PING_INTERVAL_S)
        assert pumped.writer.writes.count(sse.PING_COMMENT) == count
    await pumped.append_steps(count=2)
    pumped.logs[0].end_log()
    await pumped.task


async def test_no_ping_is_written_while_the_writer_is_paused(clock: ManualClock) -> None:
    pumped = PumpedLogs()
    await pumped.run_pump()
    pumped.writer.free.clear()
    await pumped.append_steps()
    clock.advance(10 * PING_INTERVAL_S)
    assert sse.PING_COMMENT not in pumped.writer.writes
    pumped.writer.free.set()
    await pumped.run_pump()
    clock.advance(PING_INTERVAL_S)
    assert sse.PING_COMMENT in pumped.writer.writes
    pumped.task.cancel()


async def test_cancelled_pump_leaves_the_log_without_a_reader() -> None:
    pumped = PumpedLogs()
    await pumped.append_steps()
    pumped.task.cancel()
    await asyncio.wait({pumped.task})
    assert not pumped.logs[0].open_readers
    await pumped.append_steps(count=4)
    pumped.logs[0].end_log()


async def test_encoder_error_ends_the_pump_but_not_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object) -> bytes:
        raise ZeroDivisionError

    pumped = PumpedLogs()
    await pumped.append_steps()
    monkeypatch.setattr(pumped.encoder, "encode", raise_error)
    await pumped.append_steps(count=2)
    with pytest.raises(ZeroDivisionError):
        await pumped.task
    await pumped.append_steps()
