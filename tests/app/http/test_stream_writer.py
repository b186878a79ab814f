"""The pump: a step is one write, a reader that is slow gets everything, and silence is told."""

import asyncio

import pytest

from antiphon.app.event_log import EventLog, LogEntry
from antiphon.app.http import stream_writer as pumping
from antiphon.app.http.stream_writer import pump
from antiphon.events import sse
from antiphon.events.base import Event
from antiphon.state.segments import Say
from tests.snapshots.run_case import Kept
from tests.state.machine_helpers import HEAD, machine


class Numbers:
    """Tells the numbers of the frames of its logs; over when a number past `last` has come."""

    start = 0

    def __init__(self, *logs: EventLog, last: int = 1 << 30) -> None:
        self.logs, self._last, self.finished = logs, last, False

    def initial(self) -> bytes:
        return b"head"

    def encode(self, number: int, frames: list[LogEntry]) -> bytes:
        self.finished = frames[-1].event.sequence_number > self._last
        said = ",".join(str(frame.event.sequence_number) for frame in frames)
        return f" {number}:{said}".encode()

    def final(self) -> bytes:
        return b" end"


def steps() -> list[list[Event]]:
    m = machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.feed(Say("c")), m.stop()]


class Story:
    """A short turn that is told step by step, and a pump that reads it."""

    def __init__(self, logs: int = 1, last: int = 1 << 30) -> None:
        self.logs = [EventLog(HEAD, "") for _ in range(logs)]
        self.steps = [steps() for _ in self.logs]
        self.pipe = Kept()
        self.telling = Numbers(*self.logs, last=last)
        self.task = asyncio.create_task(pump(self.telling, self.pipe))

    async def say(self, log: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self.logs[log].append_step(self.steps[log].pop(0))
        await self.rest()

    async def rest(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    @property
    def said(self) -> str:
        return b"".join(self.pipe.pieces).decode()


async def test_a_step_is_one_write_and_what_is_there_at_once_is_one_too() -> None:
    story = Story()
    await story.rest()
    await story.say()
    await story.say(count=2)
    await story.say(count=2)
    story.logs[0].end_log()
    await story.task
    assert story.pipe.pieces[0] == b"head" and story.pipe.pieces[-1] == b" end"
    assert [piece.count(b":") for piece in story.pipe.pieces[1:-1]] == [1, 1, 1]
    numbers = [int(number) for number in story.said[7:-4].replace(" 0:", ",").split(",")]
    assert numbers == list(range(len(story.logs[0].entries)))


async def test_nothing_is_written_to_a_pipe_that_is_stuck_and_nothing_is_lost() -> None:
    story = Story()
    await story.say()
    before = story.said
    story.pipe.free.clear()
    await story.say(count=1)
    await story.say(count=3)
    story.logs[0].end_log()
    await story.rest()
    assert story.said.startswith(before) and not story.task.done()
    story.pipe.free.set()
    await story.task
    assert story.said.endswith(f"{len(story.logs[0].entries) - 1} end")


async def test_several_logs_are_told_as_they_come() -> None:
    story = Story(logs=2)
    await story.rest()
    for log in (1, 0, 1, 1, 0):
        await story.say(log)
    for log in story.logs:
        log.end_log()
    await story.task
    assert [piece[1:2] for piece in story.pipe.pieces[1:-1]] == [b"1", b"0", b"1", b"1", b"0"]


async def test_a_telling_may_be_over_before_its_logs() -> None:
    story = Story(logs=2, last=2)
    await story.rest()
    await story.say(0)
    await story.say(1, count=2)
    await asyncio.wait_for(story.task, 5)
    assert story.said.endswith(" end") and not any(log._readings for log in story.logs)


async def test_silence_is_told_again_and_only_when_it_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumping, "PING_INTERVAL_S", 0.4)
    story = Story()
    for _ in range(3):
        await asyncio.sleep(0.25)  # shorter than the silence, together longer
        await story.say()
    assert sse.PING_COMMENT not in story.pipe.pieces
    await asyncio.sleep(1.0)
    assert story.pipe.pieces.count(sse.PING_COMMENT) == 2
    await story.say(count=2)
    story.logs[0].end_log()
    await story.task


async def test_no_ping_is_written_to_a_pipe_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumping, "PING_INTERVAL_S", 0.01)
    story = Story()
    await story.rest()
    story.pipe.free.clear()
    await story.say()
    await asyncio.sleep(0.1)
    assert sse.PING_COMMENT not in story.pipe.pieces
    story.task.cancel()


async def test_whoever_leaves_is_in_nobodys_way() -> None:
    story = Story()
    await story.say()
    story.task.cancel()
    await asyncio.wait({story.task})
    assert not story.logs[0]._readings
    await story.say(count=4)
    story.logs[0].end_log()


async def test_a_reader_that_breaks_does_not_break_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> bytes:
        raise ZeroDivisionError

    story = Story()
    await story.say()
    monkeypatch.setattr(story.telling, "encode", breaks)
    await story.say(count=2)
    with pytest.raises(ZeroDivisionError):
        await story.task
    await story.say()
