"""Repeats the steps of a recorded turn: the tokens of each round, and what the server did between them.

The tokens come from the details of the steps, and are split into rounds by the sizes in the record. What the tools
returned, what the client approved, and the content of a compaction are taken from the stored events.
"""

from collections.abc import Iterator, Sequence

from antiphon.app.inspection.record import RoundRecord
from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.continuation.recorded_tools import RecordedTools
from antiphon.app.turns.continuation.replay import split_steps
from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.engine.protocol import FinishReason
from antiphon.events import hosted_events as hev
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.hosted import ServerCallItem
from antiphon.events.items import Compaction
from antiphon.events.response import Response
from antiphon.state.table import State

REPEATED_EVENTS = (
    ev.Queued,
    ev.InProgress,
    hev.CompactionCompactingEvent,
    hev.McpCallInProgressEvent,
    hev.WebSearchCallSearchingEvent,
    hev.CodeInterpreterCallInterpretingEvent,
    hev.FileSearchCallSearchingEvent,
)
"""Events that silence repeats, each as a step of its own."""


class TurnReplay:
    """Brings a new core through the steps of a log. `prompts` are those of the rounds in the record."""

    def __init__(
        self,
        core: TurnCore,
        rounds: Sequence[RoundRecord],
        prompts: Sequence[TurnPrompt],
        tools: RecordedTools | None,
        *,
        ends_compacted: bool,
    ) -> None:
        self._core, self._rounds, self._prompts, self._tools = core, rounds, prompts, tools
        self._ends_compacted = ends_compacted
        self._num_approved = len(tools.rules.approved) if tools is not None else 0
        self._next_approved = 0
        self._number = -1 if self._num_approved else 0
        """Number of the round; -1 while the calls run that the client has approved."""
        self._num_left = 0 if self._num_approved else rounds[0].output_tokens
        """Tokens of the round that are still to come."""
        self._events: list[Event] = []
        """Events that the tokens of the step have given."""

    def replay(self, entries: Sequence[LogEntry]) -> Iterator[Event]:
        """Yields the events that the steps of a log give."""
        for step in split_steps(entries):
            self._events = []
            self._repeat_step(step)
            yield from self._events

    @property
    def _is_last_round(self) -> bool:
        return self._number + 1 >= len(self._rounds)

    def _repeat_step(self, step: Sequence[LogEntry]) -> None:
        last, state = step[-1], self._core.machine.state
        tokens = () if last.detail is None else last.detail.tokens
        terminal = last.event if isinstance(last.event, ev.Terminal) else None
        if state in (State.NEW, State.QUEUED) and any(isinstance(entry.event, ev.InProgress) for entry in step):
            self._begin()
            if not tokens and terminal is None:
                return
        elif state is State.NEW:
            self._apply(step_inputs.QueuedInput())
            if terminal is None:
                return
        done = [entry.event.item for entry in step if isinstance(entry.event, ev.ItemDone)]
        if self._next_approved < self._num_approved and _adds_approved(step):
            self._apply(step_inputs.ApprovedInput(self._next_approved))
            self._next_approved += 1
        else:
            self._feed(tokens)
            if len(step) == 1 and not self._events and isinstance(last.event, REPEATED_EVENTS):
                self._apply(step_inputs.KeepaliveInput())
        if terminal is not None:
            self._finish_round(terminal.response, None if last.detail is None else last.detail.stop_id)
        for item in done:
            self._end_wait(item)
        self._start_next()
        if terminal is not None and not self._core.is_ended:
            self._end_turn(terminal.response)

    def _apply(self, step: step_inputs.StepInput) -> None:
        self._events += self._core.apply(step)

    def _begin(self) -> None:
        if self._num_approved:
            self._apply(step_inputs.StartedInput())
        else:
            self._apply(step_inputs.AdmittedInput(self._rounds[0].cached_tokens))

    def _feed(self, tokens: Sequence[int]) -> None:
        """Repeats chunks of tokens, and the ends of the rounds that other rounds follow."""
        rest = tuple(tokens)
        while rest:
            if not self._num_left and not self._is_last_round:
                self._start_next()
            count = len(rest) if self._is_last_round else min(self._num_left, len(rest))
            if count == 0:
                raise LookupError(f"the output of round {self._number + 1} does not end with a call")
            self._apply(step_inputs.TokensInput(rest[:count]))
            rest, self._num_left = rest[count:], self._num_left - count
            if self._num_left == 0 and not self._is_last_round:
                self._apply(step_inputs.FinishedInput())

    def _start_next(self) -> None:
        """Begins the next round if the one before is over."""
        if not self._core.end.is_round_over and not self._is_ready_after_approved:
            return
        if self._tools is not None and not self._core.is_ended and not self._is_last_round:
            self._number += 1
            each = self._rounds[self._number]
            self._num_left = each.output_tokens
            self._apply(step_inputs.RoundInput(self._prompts[self._number]))
            self._apply(step_inputs.AdmittedInput(each.cached_tokens))
            if not self._num_left and not self._is_last_round:
                self._apply(step_inputs.FinishedInput())

    @property
    def _is_ready_after_approved(self) -> bool:
        began = self._core.machine.state is State.IDLE and self._core.calls.due is None
        return self._number < 0 and self._next_approved == self._num_approved and began

    def _end_wait(self, item: object) -> None:
        """Repeats the end of what the server did: a compaction, or the call that is due."""
        if isinstance(item, Compaction):
            prompt = None if self._ends_compacted else self._prompts[0]
            self._apply(step_inputs.SummaryInput(item.encrypted_content, prompt))
            if prompt is not None:
                self._apply(step_inputs.AdmittedInput(self._rounds[0].cached_tokens))
        elif isinstance(item, ServerCallItem) and self._tools is not None and self._core.calls.due is not None:
            self._apply(self._tools.take_result(item))

    def _finish_round(self, response: Response, stop_id: int | None) -> None:
        """Repeats the engine's last chunk, if it was the model that ended the round."""
        core, current = self._core, self._core.figures.round
        if core.is_ended:
            return
        finish: FinishReason | None = "stop"
        if _is_cut(response) and not (current.calls and stop_id is not None):
            finish = "length"
        elif response.status == "cancelled" or (response.error is not None and not current.reader.call_failed):
            finish = "stop" if self._has_ended_item(response) else None
        if finish is None:
            self._apply(step_inputs.TokensInput(()))
        else:
            self._apply(step_inputs.FinishedInput(finish=finish, stop_id=stop_id))

    def _has_ended_item(self, response: Response) -> bool:
        """Tells whether the open item was closed before the turn was interrupted: between two rounds."""
        is_open = self._core.machine.state in (State.REASONING, State.MESSAGE)
        last = response.output[-1] if response.output else None
        return bool(self._core.figures.round.calls) and is_open and getattr(last, "status", None) == "completed"

    def _end_turn(self, response: Response) -> None:
        """Repeats what ended the turn besides the model."""
        if response.status == "cancelled":
            self._apply(step_inputs.CancelInput())
        elif response.error is not None:
            self._apply(step_inputs.FailInput(response.error.code, response.error.message, "engine_fault"))
        elif _is_cut(response) and self._core.end.is_round_over:
            self._apply(step_inputs.CutInput())
        else:
            self._apply(step_inputs.SteerInput())


def _adds_approved(step: Sequence[LogEntry]) -> bool:
    added = (entry.event.item for entry in step if isinstance(entry.event, ev.ItemAdded))
    return any(bool(getattr(item, "approval_request_id", None)) for item in added)


def _is_cut(response: Response) -> bool:
    return response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
