"""Repeats the steps of a recorded turn: the tokens of each round, and what the server did between them.

The tokens come from the details of the steps, and are split into rounds by the sizes in the record. What the tools
returned, what the client approved, and the content of a compaction are taken from the stored events.
"""

from collections.abc import Iterator, Sequence

from antiphon.app.inspection.record import RoundRecord
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turns.continuation.recorded_tools import RecordedTools
from antiphon.app.turns.continuation.replay import split_steps
from antiphon.app.turns.output.output_processor import OutputProcessor
from antiphon.app.turns.prompts.prompt_token_cache import TurnPrompt
from antiphon.engine.protocol import Chunk, FinishReason
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
    """Brings a new processor through the steps of a log. `prompts` are those of the rounds in the record."""

    def __init__(
        self,
        processor: OutputProcessor,
        rounds: Sequence[RoundRecord],
        prompts: Sequence[TurnPrompt],
        tools: RecordedTools | None,
        *,
        ends_compacted: bool,
    ) -> None:
        self._processor, self._rounds, self._prompts, self._tools = processor, rounds, prompts, tools
        self._ends_compacted = ends_compacted
        self._approved = list(tools.approved if tools is not None else ())
        self._number = -1 if self._approved else 0
        """Number of the round; -1 while the calls run that the client has approved."""
        self._num_left = 0 if self._approved else rounds[0].output_tokens
        """Tokens of the round that are still to come."""
        self._events: list[Event] = []
        """Events that the tokens of the step have given."""

    def replay(self, entries: Sequence[LogEntry]) -> Iterator[Event]:
        """Yields the events that the steps of a log give."""
        for step in split_steps(entries):
            self._events = []
            self._repeat_step(step)
            yield from (*self._events, *self._processor.collect_events())

    @property
    def _is_last_round(self) -> bool:
        return self._number + 1 >= len(self._rounds)

    def _repeat_step(self, step: Sequence[LogEntry]) -> None:
        processor, last, state = self._processor, step[-1], self._processor.machine.state
        tokens = () if last.detail is None else last.detail.tokens
        terminal = last.event if isinstance(last.event, ev.Terminal) else None
        if state in (State.NEW, State.QUEUED) and any(isinstance(entry.event, ev.InProgress) for entry in step):
            self._begin()
            if not tokens and terminal is None:
                return
        elif state is State.NEW:
            processor.on_queued()
            if terminal is None:
                return
        done = [entry.event.item for entry in step if isinstance(entry.event, ev.ItemDone)]
        if self._approved and _adds_approved(step):
            approved = self._approved.pop(0)
            processor.add_approved(approved.call, approved.arguments)
        else:
            self._feed(tokens)
            self._events += processor.collect_events()
            if len(step) == 1 and not self._events and isinstance(last.event, REPEATED_EVENTS):
                processor.keepalive()
        if terminal is not None:
            self._finish_round(terminal.response, None if last.detail is None else last.detail.stop_id)
        for item in done:
            self._end_wait(item)
        self._start_next()
        if terminal is not None and not processor.is_ended:
            self._end_turn(terminal.response)

    def _begin(self) -> None:
        if self._approved:
            self._processor.begin()
        else:
            self._processor.on_admitted(Chunk(cached_tokens=self._rounds[0].cached_tokens))

    def _feed(self, tokens: Sequence[int]) -> None:
        """Repeats chunks of tokens, and the ends of the rounds that other rounds follow."""
        rest = tuple(tokens)
        while rest:
            if not self._num_left and not self._is_last_round:
                self._start_next()
            count = len(rest) if self._is_last_round else min(self._num_left, len(rest))
            if count == 0:
                raise LookupError(f"the output of round {self._number + 1} does not end with a call")
            self._processor.process_chunk(Chunk(tokens=rest[:count]))
            rest, self._num_left = rest[count:], self._num_left - count
            if self._num_left == 0 and not self._is_last_round:
                self._processor.process_chunk(Chunk(finish="stop"))

    def _start_next(self) -> None:
        """Begins the next round if the one before is over."""
        if not self._processor.is_round_over and not self._is_ready_after_approved:
            return
        if self._tools is not None and not self._processor.is_ended and not self._is_last_round:
            self._tools.num_rounds += 1
            self._number += 1
            each = self._rounds[self._number]
            self._num_left = each.output_tokens
            self._processor.start_round(self._prompts[self._number])
            self._processor.on_admitted(Chunk(cached_tokens=each.cached_tokens))
            if not self._num_left and not self._is_last_round:
                self._processor.process_chunk(Chunk(finish="stop"))

    @property
    def _is_ready_after_approved(self) -> bool:
        processor = self._processor
        began = processor.machine.state is State.IDLE and processor.due_call is None
        return self._number < 0 and not self._approved and began

    def _end_wait(self, item: object) -> None:
        """Repeats the end of what the server did: a compaction, or the call that is due."""
        processor = self._processor
        if isinstance(item, Compaction):
            content = item.encrypted_content
            processor.end_compaction(content, None if self._ends_compacted else self._prompts[0])
            if not self._ends_compacted:
                processor.on_admitted(Chunk(cached_tokens=self._rounds[0].cached_tokens))
        elif isinstance(item, ServerCallItem) and self._tools is not None and processor.due_call is not None:
            processor.end_call(self._tools.take_result(item), "")

    def _finish_round(self, response: Response, stop_id: int | None) -> None:
        """Repeats the engine's last chunk, if it was the model that ended the round."""
        processor = self._processor
        if processor.is_ended:
            return
        finish: FinishReason | None = "stop"
        if _is_cut(response) and not (processor.round.calls and stop_id is not None):
            finish = "length"
        elif response.status == "cancelled" or (response.error is not None and not processor.round.reader.call_failed):
            finish = "stop" if self._has_ended_item(response) else None
        processor.process_chunk(Chunk(finish=finish, stop_id=stop_id))

    def _has_ended_item(self, response: Response) -> bool:
        """Tells whether the open item was closed before the turn was interrupted: between two rounds."""
        is_open = self._processor.machine.state in (State.REASONING, State.MESSAGE)
        last = response.output[-1] if response.output else None
        return bool(self._processor.round.calls) and is_open and getattr(last, "status", None) == "completed"

    def _end_turn(self, response: Response) -> None:
        """Repeats what ended the turn besides the model."""
        processor = self._processor
        if response.status == "cancelled":
            processor.cancel(Ending("cancelled"))
        elif response.error is not None:
            processor.fail(response.error.code, response.error.message, Ending("engine_fault"))
        elif _is_cut(response) and processor.is_round_over:
            processor.cut()
        else:
            processor.request_steer()


def _adds_approved(step: Sequence[LogEntry]) -> bool:
    added = (entry.event.item for entry in step if isinstance(entry.event, ev.ItemAdded))
    return any(bool(getattr(item, "approval_request_id", None)) for item in added)


def _is_cut(response: Response) -> bool:
    return response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
