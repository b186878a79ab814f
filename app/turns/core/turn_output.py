"""The lower half of a turn's core: feeds segments to the state machine, until the round or the turn ends."""

from collections.abc import Sequence

from antiphon.app.turn_types.endings import Ending
from antiphon.app.turns.core.calls import TurnCalls
from antiphon.app.turns.core.figures import TurnFigures
from antiphon.app.turns.core.reading import TurnReading
from antiphon.app.turns.core.turn_end import RoundEnd, TurnEnd
from antiphon.events.base import Event
from antiphon.events.hosted import ToolSearchCall
from antiphon.state.machine import STOPPED_IN_CALL, Machine
from antiphon.state.segments import Call, Close, Refuse, Say, Segment, Think
from antiphon.state.table import State

RESPONSE_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"})
"""Error codes of a failed response that clients know. Any other code is reported as `server_error`."""
_NEXT_ITEM = {State.REASONING: (Say, Refuse, Call), State.MESSAGE: (Think, Call)}
"""Segments that end the open item and begin another one, by the state."""


class TurnOutput:
    """The output of one turn: the machine, and the four parts that answer what it is to be fed.

    `events` are those of the input that is applied; after an exception, those of the input that has failed.
    """

    def __init__(
        self, machine: Machine, reading: TurnReading, calls: TurnCalls, end: TurnEnd, figures: TurnFigures
    ) -> None:
        self.machine, self.reading, self.calls, self.end, self.figures = machine, reading, calls, end, figures
        self.events: list[Event] = []
        self._changes_text = calls.rules is not None or bool(reading.stops.stops)

    @property
    def is_ended(self) -> bool:
        """True once the terminal event has been produced."""
        return self.machine.is_ended

    @property
    def needs_no_more(self) -> bool:
        """True once no further token of the engine's job is needed."""
        return self.machine.is_ended or self.end.round_end is not None

    def feed_all(self, segments: Sequence[Segment]) -> None:
        """Feeds what was read from the engine, until the round or the turn ends."""
        machine, calls, end = self.machine, self.calls, self.end
        for segment in segments:
            # Nearly all segments continue a text, which ends nothing.
            continues_text = type(segment) is Say and machine.state is State.MESSAGE and not self._changes_text
            if continues_text and not end.steer_requested and not calls.is_ignoring:
                self.events += machine.feed(segment)
                continue
            for released in self.reading.stops.filter_segment(segment):
                self.feed_or_hold(released)
            self.check_limits()
            if self.needs_no_more:
                return

    def feed_or_hold(self, segment: Segment) -> None:
        """Feeds a segment, unless a call runs: then it waits."""
        if self.machine.state is State.RUN or self.calls.held:
            self.calls.held.append(segment)
        elif self.machine.state is not State.ENDED:
            self.feed(segment)

    def feed(self, segment: Segment) -> None:
        """Feeds a segment to the machine, with its citations."""
        if self.calls.rules is None or type(segment) is not Say:
            self._feed_piece(segment)
            return
        if self.machine.state is not State.MESSAGE:
            self.reading.start_message(self.calls.sources)
        for piece in self.reading.cite(segment):
            self._feed_piece(piece)

    def _feed_piece(self, segment: Segment) -> None:
        machine = self.machine
        if not self.calls.add_segment(segment):
            return
        ends_call = isinstance(segment, Close) and machine.state in (State.CALL, State.TOOL)
        if self.end.steer_requested and isinstance(segment, _NEXT_ITEM.get(machine.state, ())):
            self.events += machine.feed(Close())
            self.steer()
            if self.is_ended:
                return
        events = machine.feed(segment)
        if machine.is_ended:  # only a call ends at a segment
            self.conclude(Ending("stopped_in_call"), events)
            return
        self.events += events
        if ends_call:
            self._finish_call()
        if self.end.steer_requested:
            self.steer()

    def _finish_call(self) -> None:
        """Handles a whole call: the client's ends the turn with the round, the server's becomes due."""
        current, call = self.figures.round, self.calls.finish_call()
        if call is None:
            current.num_client_calls += 1
            return
        self.end.note_call()
        if call.call.kind == "tool_search":  # it takes no time, so that it is never interrupted
            item = self.machine.output[-1]
            assert isinstance(item, ToolSearchCall)
            answered, found = self.calls.load_tools(call, item)
            current.calls.append(answered)
            self.events += self.machine.feed(found)
        else:
            current.calls.append(call)
            self.calls.due = call

    def check_limits(self) -> None:
        """Ends the generation if a stop string has matched, or if the model may make no more calls in this round.

        While a call runs, the generation is ahead of the output: what comes before a stop string waits, and what comes
        after the last call is dropped, however it has ended.
        """
        if self.is_ended:
            return
        if self.end.reaches_limit(self.figures.round, can_call=self.calls.can_call):
            self.calls.held.clear()
            self.end_generation("limit")
        elif self.end.round_end is None and self.reading.stops.matched is not None:
            self.end_generation("stopped")

    def end_generation(self, round_end: RoundEnd) -> None:
        """Ends the round, or the turn, unless a call runs: then the end of the call does."""
        end, current, state = self.end, self.figures.round, self.machine.state
        end.round_end = round_end
        if state is State.RUN or self.is_ended:
            return
        if round_end in ("length", "repetition"):
            self.cut()
        elif current.reader.call_failed and round_end != "limit":  # the reader is ahead of a limit
            ending = Ending("stopped_in_call" if round_end == "stop" else "call_cannot_complete")
            self.fail("server_error", STOPPED_IN_CALL, ending)
        elif end.continues(state, current):
            self.events += self.machine.feed(Close())
            end.is_round_over = True
            self.steer()
        else:
            self.conclude(end.find_ending(state, self.reading.stops.matched), self.machine.stop())

    def steer(self) -> None:
        """Ends the turn if the client has sent more input and nothing is open."""
        if self.end.may_steer(self.machine.state, self.figures.round):
            self.conclude(Ending("steered"), self.machine.steer())

    def cut(self) -> None:
        """Ends the turn because nothing is left for more output."""
        ending = self.end.find_cut(self.figures.round, self.figures.num_generated_tokens)
        self.conclude(ending, self.machine.cut())

    def fail(self, code: str, message: str, ending: Ending) -> None:
        """Ends the turn as failed."""
        code = code if code in RESPONSE_ERROR_CODES else "server_error"
        self.conclude(ending, self.machine.fail(code, message))

    def conclude(self, ending: Ending, events: Sequence[Event]) -> None:
        """Adds the last events of the turn, and records why it has ended."""
        self.end.conclude(ending)
        self.events += events
