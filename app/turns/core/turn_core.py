"""Turns the inputs of a turn into its events: a reducer that knows no task, clock, log or client.

`apply` takes one input and returns its events. The same inputs give the same events, so that whatever has happened to a
turn can be repeated. The core decides when a turn is over (the engine finished, a stop string matched, the last
permitted call is complete, a call can no longer be completed) and stops the machine. A turn with calls that the server
runs has several rounds. While such a call runs, the segments that the model generated after it wait.

Four parts answer its questions: `TurnReading` (tokens to segments), `TurnCalls`, `TurnEnd` and `TurnFigures`. They do
not call each other; `TurnOutput` feeds the machine.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antiphon.app.tools.call_rules import CallRules
from antiphon.app.turn_types.endings import Ending, ending_of_fault
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import Purpose, TurnRules
from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.calls import TurnCalls
from antiphon.app.turns.core.dice import TurnDice
from antiphon.app.turns.core.figures import TurnFigures
from antiphon.app.turns.core.inputs import FinishedInput, StepInput, TokenInput, TokensInput
from antiphon.app.turns.core.reading import TurnReading
from antiphon.app.turns.core.summary_reader import SummaryReader
from antiphon.app.turns.core.turn_end import TurnEnd
from antiphon.app.turns.core.turn_output import TurnOutput
from antiphon.engine.protocol import Fault
from antiphon.events.base import Event
from antiphon.events.response import Response
from antiphon.state.drafts import OutputSettings
from antiphon.state.machine import Machine
from antiphon.state.segments import Arguments, Close, Compact, CompleteItem, Result
from antiphon.state.table import IllegalInput, State


class TurnCore:
    """Produces the events of one turn.

    `base_response` is the response before its first event. `dice`: source of its ids. `seal` encrypts what only this
    server may read: it takes the purpose, the text, and a label that no other text has. `calls`: the tools that the
    server runs; None if it runs none.

    Example: `core.apply(TokensInput((7, 8)))` returns the events that two tokens give.
    """

    def __init__(
        self,
        rules: TurnRules,
        turn_prompt: TurnPrompt,
        base_response: Response,
        *,
        dice: TurnDice,
        clock: Callable[[], int],
        settings: OutputSettings = OutputSettings(),  # noqa: B008  # it is frozen
        seal: Callable[[Purpose, str, str], str] = lambda _purpose, text, _label: text,
        calls: CallRules | None = None,
    ) -> None:
        self.rules = rules
        self._seal: Callable[[Purpose, str], str] = lambda purpose, text: seal(purpose, text, dice.new_id("seal"))
        form = turn_prompt.format
        self.reading, self.calls, self.end = TurnReading(form, rules, turn_prompt), TurnCalls(calls), TurnEnd(rules)
        first = self.reading.open_round(turn_prompt, 0)
        self.figures = TurnFigures(form, rules, turn_prompt, first, self.reading.summary)
        self.machine = Machine(
            base_response,
            new_id=dice.new_id,
            clock=clock,
            usage=self.figures.build_usage,
            diagnose=self.figures.diagnose_cache,
            seal=partial(self._seal, "reasoning") if rules.encrypt_reasoning else None,
            create_approval_id=None if calls is None else partial(_sign_request, calls, dice),
            settings=settings,
        )
        self._output = TurnOutput(self.machine, self.reading, self.calls, self.end, self.figures)

    @property
    def is_ended(self) -> bool:
        """True once the terminal event has been produced."""
        return self.machine.is_ended

    @property
    def needs_no_more(self) -> bool:
        """True once no further token of the engine's job is needed."""
        return self._output.needs_no_more

    def apply(self, step: StepInput) -> list[Event]:
        """Applies an input and returns its events. An input that means nothing any more has none."""
        if self.machine.is_ended:
            return []
        if type(step) is TokensInput:
            self._read(step)
        else:
            _ACTIONS[type(step)](self, step)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Returns the events of an input that `apply` could not finish, because of an exception."""
        events, self._output.events = self._output.events, []
        return events

    def take_detail(self, at_us: int | None = None) -> TokenDetail:
        """Returns what the events since the last call do not carry. `at_us`: see `TurnFigures.take_detail`."""
        machine = self.machine
        return self.figures.take_detail(self.reading.stops.matched, machine.dropped_text, machine.steps, at_us)

    def _admit(self, step: step_inputs.AdmittedInput) -> None:
        self._begin()
        summary, current = self.reading.summary, self.figures.round
        if summary is not None and summary.is_open:
            summary.is_admitted = True
            summary.count_prompt(step.cached_tokens, step.prompt_tokens)
            self._output.events += self.machine.feed(Compact())
            return
        current.is_admitted = True
        current.count_prompt(step.cached_tokens, step.prompt_tokens)
        if not self.figures.done_rounds:
            self.figures.details.add_admission(step)
        self._output.steer()

    def _begin(self) -> None:
        """Emits the start of the response and the lists of tools, unless it has started."""
        if self.machine.state in (State.NEW, State.QUEUED):
            self._output.events += self.machine.begin()
            for item in self.calls.rules.lists if self.calls.rules is not None else ():
                self._output.events += self.machine.feed(CompleteItem(item))

    def _read(self, step: TokenInput) -> None:
        """Reads one engine step."""
        summary, current, end = self.reading.summary, self.figures.round, self.end
        if summary is not None and summary.is_open:
            self._read_summary(summary, step)
            return
        finished = step if isinstance(step, FinishedInput) else None
        logprobs: Sequence[Any] = ()
        if not isinstance(step, TokensInput):
            if finished is not None and not current.calls:
                end.defer_steer()
            current.count_prompt(step.cached_tokens, step.prompt_tokens)
            self.figures.details.add_prompt_logprobs(step)
            logprobs = step.logprobs
        if self.rules.prefill_only:
            self._finish_prefill(step, None if finished is None else finished.fault)
            return
        if end.round_end is not None:
            return
        current.generated_tokens += step.tokens
        end.stop_id = None if finished is None else finished.stop_id
        segments = self.reading.read_tokens(current, step.tokens, logprobs)
        self.figures.details.add_tokens(step, self.reading.take_offsets())
        if current.unoffered_calls:
            self.figures.note_unoffered()
        self._output.feed_all(segments)
        if self.needs_no_more:
            return
        if current.reader.call_failed:  # also between two files of a patch, where no item is open
            self._output.end_generation("stop" if finished is not None and finished.finish == "stop" else "stopped")
        elif finished is not None:
            self._finish_round(finished)

    def _read_summary(self, summary: SummaryReader, step: TokenInput) -> None:
        summary.read_tokens(step)
        if isinstance(step, FinishedInput):
            if step.finish == "cancelled":
                self._output.conclude(Ending("cancelled"), self.machine.cancel())
            elif step.fault and self.rules.ends_compacted:
                self._output.fail(step.fault.code, step.fault.message, ending_of_fault(step.fault.code))

    def _finish_round(self, step: FinishedInput) -> None:
        """Ends the output of the engine's job, which the model or the engine has ended."""
        if step.fault:
            self._output.fail(step.fault.code, step.fault.message, ending_of_fault(step.fault.code))
        elif step.finish == "cancelled":
            self._output.conclude(Ending("cancelled"), self.machine.cancel())
        else:
            segments = self.figures.round.reader.finish(natural=step.finish == "stop")
            self.figures.note_unoffered()
            self._output.feed_all(segments)
            for held in self.reading.stops.release_held():
                self._output.feed_or_hold(held)
            if not self.needs_no_more:
                self._output.end_generation(step.finish if step.finish in ("stop", "repetition") else "length")

    def _finish_prefill(self, step: TokenInput, fault: Fault | None) -> None:
        """Ends a prefill-only turn. Its one token only shows that the prompt was read, and is not output."""
        if fault:
            self._output.fail(fault.code, fault.message, ending_of_fault(fault.code))
        elif step.tokens or isinstance(step, FinishedInput):
            self._output.conclude(Ending("nothing_generated"), self.machine.stop())

    def _end_call(self, step: step_inputs.ResultInput) -> None:
        """Emits the end of the call that was due, and what the model generated after it."""
        due, current, held = self.calls.due, self.figures.round, self.calls.held
        if due is None:
            return
        current.calls[-1] = self.calls.take_result(due, step)
        current.output_tokens += step.num_tokens
        self._output.events += self.machine.feed(step.result)
        self._output.steer()
        while held and self.machine.state is not State.RUN and not self.is_ended:
            self._output.feed(held.popleft())
            self._output.check_limits()
        if self.end.round_end is not None and not self.end.is_round_over:
            self._output.end_generation(self.end.round_end)

    def _end_summary(self, step: step_inputs.SummaryInput) -> None:
        """Emits the compaction. The turn continues with the output for the prompt, or ends without one."""
        if self.reading.summary is not None:
            self.reading.summary.is_open = False
        self._output.events += self.machine.feed(Result(self._seal("compaction", step.content)))
        if step.prompt is None:
            self._output.conclude(Ending("compacted"), self.machine.stop())
        else:
            self.figures.round = self.reading.open_round(step.prompt, len(self.machine.output))

    def _start_round(self, step: step_inputs.RoundInput) -> None:
        self.figures.start_round(self.reading.open_round(step.prompt, len(self.machine.output)))
        self.calls.num_rounds += 1
        self.end.start_round()

    def _approve(self, step: step_inputs.ApprovedInput) -> None:
        """Begins a call that the client has approved. It is due now."""
        assert self.calls.rules is not None
        approved = self.calls.rules.approved[step.number]
        self.calls.num_approved = step.number + 1
        for segment in (approved.call, Arguments(approved.arguments), Close()):
            self._output.feed(segment)

    def _request_steer(self, _: step_inputs.SteerInput) -> None:
        """Ends the turn as soon as no item is open. One that has called a tool is never ended: it may call more."""
        self.end.steer_requested = True
        self._output.steer()

    def _queue(self, _: step_inputs.QueuedInput) -> None:
        self._output.events += self.machine.queue()

    def _keep_alive(self, _: step_inputs.KeepaliveInput) -> None:
        """Repeats the latest lifecycle event or the stage of an item that the server makes, where that is legal."""
        with contextlib.suppress(IllegalInput):
            self._output.events += self.machine.keepalive()


def _sign_request(calls: CallRules, dice: TurnDice, label: str, name: str, arguments: str) -> str:
    """Returns the id of a request to approve a call."""
    return calls.sign(label, name, arguments, dice.new_nonce())


_ACTIONS: dict[type[StepInput], Callable[[TurnCore, Any], None]] = {
    step_inputs.QueuedInput: TurnCore._queue,
    step_inputs.AdmittedInput: TurnCore._admit,
    step_inputs.StartedInput: lambda core, _: core._begin(),
    step_inputs.ApprovedInput: TurnCore._approve,
    step_inputs.ScoredTokensInput: TurnCore._read,
    step_inputs.FinishedInput: TurnCore._read,
    step_inputs.ResultInput: TurnCore._end_call,
    step_inputs.SummaryInput: TurnCore._end_summary,
    step_inputs.RoundInput: TurnCore._start_round,
    step_inputs.SteerInput: TurnCore._request_steer,
    step_inputs.CutInput: lambda core, _: core._output.cut(),
    step_inputs.CancelInput: lambda core, step: core._output.conclude(Ending(step.cause), core.machine.cancel()),
    step_inputs.FailInput: lambda core, step: core._output.fail(
        step.code, step.message, Ending(step.cause, step.detail)
    ),
    step_inputs.KeepaliveInput: TurnCore._keep_alive,
}
