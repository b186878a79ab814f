"""Applies the inputs of a turn to its core, and appends the events to its log: one step for each write."""

import asyncio
import time
from collections.abc import Callable, Sequence

from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.turns.continuation.journal import mark_input
from antiphon.app.turns.core.inputs import CancelInput, FailInput, KeepaliveInput, StepInput, TokensInput
from antiphon.app.turns.core.rounds import list_called_tools
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.events.base import Event
from antiphon.state.table import State

SHUTTING_DOWN_MESSAGE = "The server is shutting down. Retry the request."


class StepWriter:
    """The way from the inputs of one turn to its log. `stats` get the figures of its end."""

    def __init__(self, log: EventLog, core: TurnCore, stats: TurnStats) -> None:
        self.log, self.core, self.stats = log, core, stats
        self.recorded_from: float | None = None
        """Time from which the details count, with the machine's cells; None if they have neither."""
        self.keeps_journal = log.continuation is not None
        """True if the log also gets the inputs, from which another process continues the turn."""
        self._inputs: list[StepInput] = []  # since the last step; those without events wait for the next one
        self.release_answers: Callable[[], None] = lambda: None  # called before the last event is written
        self._unwritten: list[Event] = []
        self._last_write_at = time.monotonic()

    @property
    def continues_elsewhere(self) -> bool:
        """True if another process continues the turn after a shutdown of this one.

        A client that reads a response in the foreground learns of the shutdown, and can send its request again.
        """
        log = self.log
        is_awaited = not log.base_response.background and (log.readers > 0 or not log.was_read)
        return self.log.continuation is not None and not is_awaited

    def apply(self, step: StepInput) -> None:
        """Applies an input. Its events wait for `write_events`, also those of an input that fails."""
        if self.keeps_journal:
            is_marked = type(step) is not TokensInput
            self._inputs.append(mark_input(step, self.core.figures.round) if is_marked else step)
        try:
            self._unwritten += self.core.apply(step)
        except Exception:
            self._unwritten += self.core.take_events()
            raise

    def write_events(self) -> None:
        """Appends the events of the inputs since the last call as one step."""
        if events := self._unwritten:
            self._unwritten = []
            now = self._last_write_at = time.monotonic()
            if self.stats.trace is not None and self.stats.trace.ids.is_sampled:
                self.stats.trace.note_events(events, now, self.core.figures.num_generated_tokens)
            if self.core.is_ended:
                _finish_stats(self.stats, self.core, now)  # before the store writes the last step
                self.release_answers()
            at_us = None if self.recorded_from is None else int((now - self.recorded_from) * 1e6)
            journal: Sequence[StepInput] = ()
            if self.keeps_journal:
                journal, self._inputs = self._inputs, []
            self.log.append_step(events, self.core.take_detail(at_us), journal)

    def finish(self) -> None:
        """Writes the last events, and completes the figures."""
        self.write_events()
        _finish_stats(self.stats, self.core, time.monotonic())

    def fail(self, code: str, message: str, ending: Ending) -> None:
        """Ends the turn as failed, unless it has ended; without an event if it has none: the reply is an HTTP error."""
        if self.core.end.ending is not None:
            return
        if not self.log.entries or self.core.is_ended:
            self._abandon(ending)
        else:
            self.apply(FailInput(code, message, ending.cause, ending.detail))

    def end_interrupted(self, ending: Ending) -> None:
        """Ends a turn that was interrupted, unless it has ended. At a shutdown, it fails or continues elsewhere."""
        if self.core.end.ending is not None:
            return
        if not self.log.entries or (ending.cause == "server_shutdown" and self.continues_elsewhere):
            self._abandon(ending)
        elif ending.cause == "server_shutdown":
            self.apply(FailInput("server_error", SHUTTING_DOWN_MESSAGE, ending.cause))
        else:
            self.apply(CancelInput(ending.cause))

    async def send_keepalive(self, after_s: float) -> None:
        """Repeats the latest stage after each silence of this length, until it is cancelled."""
        while True:
            silent_s = time.monotonic() - self._last_write_at
            if silent_s < after_s:
                await asyncio.sleep(after_s - silent_s)
                continue
            self._last_write_at = time.monotonic()
            self.apply(KeepaliveInput())
            self.write_events()

    def _abandon(self, ending: Ending) -> None:
        """Ends the turn without a further event."""
        self.core.end.conclude(ending)
        if not self.log.entries:  # a log with events ends with a terminal one
            self._unwritten.clear()


def _finish_stats(stats: TurnStats, core: TurnCore, now: float) -> None:
    """Sets what is known once the turn has ended. `now` is that time; further calls change nothing."""
    if stats.times.ended is not None:
        return
    response = core.machine.response
    stats.ending, stats.times.ended = core.end.ending, now
    stats.status = "refused" if core.machine.state is State.NEW else str(response.status)
    if stats.status == "refused":  # the engine never had it
        return
    usage = core.figures.build_usage()
    stats.input_tokens, stats.output_tokens = usage.input_tokens, usage.output_tokens
    stats.cached_tokens = usage.input_tokens_details.cached_tokens
    stats.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
    stats.error_code = "" if response.error is None else response.error.code
    stats.tools = list_called_tools(core.machine.output)
