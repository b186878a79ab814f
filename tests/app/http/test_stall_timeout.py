"""The stall timeout: a client that reads nothing is dropped, one that reads on is not."""

from collections.abc import Callable
from typing import Any

from antiphon.app.http.stall_timeout import StallTimeoutMixin
from antiphon.app.options.settings import Settings


class Timer:
    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds, self._callback, self.is_cancelled = seconds, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True

    def expire(self) -> None:
        """Does what the event loop does when the time has come."""
        if not self.is_cancelled:
            self._callback()


class Timers:
    """The part of an event loop that the mixin uses."""

    def __init__(self) -> None:
        self.started: list[Timer] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.started.append(Timer(seconds, callback))
        return self.started[-1]


class Transport:
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class FlowControl:
    """The protocol below the mixin."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, _: Exception | None) -> None:
        self.calls.append("lost")


class Connection(StallTimeoutMixin, FlowControl):
    settings = Settings(stall_timeout=7.0)

    def __init__(self) -> None:
        super().__init__()
        self.loop: Any = Timers()
        self.transport: Any = Transport()

    @property
    def timers(self) -> list[Timer]:
        started: list[Timer] = self.loop.started
        return started


def test_client_that_reads_nothing_is_dropped() -> None:
    connection = Connection()
    connection.pause_writing()
    assert [timer.seconds for timer in connection.timers] == [7.0] and not connection.transport.is_aborted
    connection.timers[0].expire()
    assert connection.transport.is_aborted and connection.calls == ["pause"]


def test_client_that_reads_on_is_kept() -> None:
    connection = Connection()
    connection.pause_writing()
    connection.resume_writing()
    connection.timers[0].expire()
    assert not connection.transport.is_aborted and connection.calls == ["pause", "resume"]


def test_each_stall_has_the_whole_time() -> None:
    connection = Connection()
    for _ in range(3):
        connection.pause_writing()
        connection.resume_writing()
    connection.pause_writing()
    for timer in connection.timers[:-1]:
        timer.expire()
    assert not connection.transport.is_aborted
    connection.timers[-1].expire()
    assert connection.transport.is_aborted and len(connection.timers) == 4


def test_connection_that_is_lost_is_not_aborted_later() -> None:
    connection = Connection()
    connection.pause_writing()
    connection.connection_lost(None)
    connection.timers[0].expire()
    assert not connection.transport.is_aborted and connection.calls == ["pause", "lost"]


def test_connection_that_was_never_paused_ends_without_a_timer() -> None:
    connection = Connection()
    connection.resume_writing()
    connection.connection_lost(TimeoutError())
    assert connection.timers == [] and connection.calls == ["resume", "lost"]
