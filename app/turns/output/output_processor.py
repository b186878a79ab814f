"""Turns an engine's chunks into events: reader, stop strings, limits and state machine, in one synchronous pipeline.

The processor decides when a turn is over (the engine finished, a stop string matched, the last permitted call is
complete, a call can no longer be completed) and stops the machine. A turn with calls that the server runs has several
rounds. While such a call runs, the segments that the model generated after it wait. The processor knows no tasks, logs
or clients.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import UnsetType

from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.turn_types.encryption import Purpose
from antiphon.app.turn_types.endings import Ending, ending_of_fault
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.turns.compaction import SummaryReader
from antiphon.app.turns.output.call_tracker import CallTracker
from antiphon.app.turns.output.citations import CitationReader
from antiphon.app.turns.output.stop_strings import StopStringFilter
from antiphon.app.turns.output.token_details import DetailCollector, decode_logprob
from antiphon.app.turns.prompts.cache_diagnostics import diagnose_cache
from antiphon.app.turns.prompts.prompt_token_cache import TurnPrompt
from antiphon.app.turns.rounds import Round, ServerCall, list_called_tools, sum_usage
from antiphon.engine.protocol import Chunk, Fault
from antiphon.events.base import Event
from antiphon.events.hosted import ToolSearchCall
from antiphon.events.response import PromptCacheDiagnostics, Usage
from antiphon.harmony.format import ModelFormat
from antiphon.state.drafts import OutputSettings
from antiphon.state.ids import NewId
from antiphon.state.machine import STOPPED_IN_CALL, Machine
from antiphon.state.segments import (
    Arguments,
    Call,
    CallResult,
    Close,
    Compact,
    CompleteItem,
    Refuse,
    Result,
    Say,
    Segment,
    Think,
)
from antiphon.state.table import IllegalInput, State

RESPONSE_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"})
"""Error codes of a failed response that clients know. Any other code is reported as `server_error`."""
_RoundEnd = Literal["stop", "length", "repetition", "stopped", "limit"]
"""`stopped`: a stop string has matched, or a call has failed; `limit`: the round may have no more calls."""
_SINGLE_BYTES = tuple(bytes((number,)) for number in range(256))
_NEXT_ITEM = {State.REASONING: (Say, Refuse, Call), State.MESSAGE: (Think, Call)}
"""Segments that end the open item and begin another one, by the state."""


class OutputProcessor:
    """Produces the events of one turn. They wait for `collect_events`, also those produced before an exception."""

    def __init__(  # noqa: PLR0913  # parts of a turn
        self,
        spec: TurnSpec,
        turn_prompt: TurnPrompt,
        form: ModelFormat,
        *,
        new_id: NewId,
        clock: Callable[[], int],
        settings: OutputSettings = OutputSettings(),  # noqa: B008  # it is frozen
        seal: Callable[[Purpose, str], str] = lambda _, text: text,
        tools: HostedTurn | None = None,
        stats: TurnStats | None = None,
    ) -> None:
        prompt = turn_prompt.prompt
        base = spec.base_response
        self.stats = stats or TurnStats(response_id=base.id, model=base.model)
        """The figures of the turn, among them why it has ended."""
        self.recorded_from: float | None = None
        """Time from which the details count, with the machine's inputs; None if they have neither."""
        self._num_steps = 0
        self._format, self._spec, self.tools = form, spec, tools
        summary_prompt = turn_prompt if spec.compact else turn_prompt.summary
        self._summary = SummaryReader(form, summary_prompt) if summary_prompt else None
        self._is_compacting, self._seal = self._summary is not None, seal
        completion = spec.text_completion
        self._passthrough_reader = completion and form.passthrough.create_reader(
            keep_special_tokens=completion.keep_special_tokens
        )
        reader = self._passthrough_reader or form.create_reader(prompt, turn_prompt.prompt_input)
        self.round = Round(turn_prompt, reader, 0)
        """The round that runs, or ran last."""
        self._done_rounds: list[Round] = []
        self._stops = self._create_filter()
        self._details = DetailCollector(form, prompt, spec.details)
        self._call_tracker = CallTracker(tools)
        self._citations = CitationReader()
        self._held: deque[Segment] = deque()
        """Segments that the model generated after a call that runs."""
        self.due_call: ServerCall | None = None
        """The call that the server must run now."""
        self._round_end: _RoundEnd | None = None
        """How the generation of the round has ended."""
        self._stop_id: int | None = None
        self.is_round_over = False
        """True if the turn continues with another round."""
        self._steer_requested = self._steer_if_called = False
        self._events: list[Event] = []
        self.output_settings = settings
        self.machine = self._create_machine(new_id, clock, settings)

    def _create_machine(self, new_id: NewId, clock: Callable[[], int], settings: OutputSettings) -> Machine:
        spec, tools, seal = self._spec, self.tools, self._seal
        return Machine(
            spec.base_response,
            new_id=new_id,
            clock=clock,
            usage=self.build_usage,
            diagnose=self._diagnose_cache,
            seal=(lambda text: seal("reasoning", text)) if spec.encrypt_reasoning else None,
            create_approval_id=None if tools is None else tools.create_approval_id,
            settings=settings,
        )

    @property
    def is_ended(self) -> bool:
        """True once the terminal event has been produced."""
        return self.machine.is_ended

    @property
    def needs_no_more(self) -> bool:
        """True once no further token of the engine's job is needed."""
        return self.is_ended or self._round_end is not None

    @property
    def _is_waiting(self) -> bool:
        """True while a call runs: nothing that the model generates is output then."""
        return self.machine.state is State.RUN

    @property
    def _can_call(self) -> bool:
        """True if the model may call tools of the server. Not every engine has the grammar that prevents it."""
        return self.tools is None or self.tools.can_call

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far that have a job. Calls that the client approved are a round without one.

        The first round counts before the engine has its job.
        """
        rounds = [*self._done_rounds, self.round]
        return [each for each in rounds if each.is_admitted] if self._done_rounds else rounds

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens that the model has generated in all rounds."""
        return sum(len(each.generated_tokens) for each in self.rounds)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in the prompts of all rounds."""
        return sum(each.num_prompt_tokens for each in self.rounds)

    @property
    def has_dialect(self) -> bool:
        """True if the output consists of items of a conversation; that of a text completion is nothing but text."""
        return self._passthrough_reader is None

    def collect_events(self) -> list[Event]:
        """Returns the events produced since the last call."""
        events, self._events = self._events, []
        return events

    def take_detail(self, now: float = 0.0) -> TokenDetail:
        """Returns what the events collected since the last call do not carry. `now` is the time of this step."""
        machine, inputs, at_us = self.machine, b"", 0
        if self.recorded_from is not None:
            first, steps = self._num_steps, machine.steps
            self._num_steps = len(steps)
            # Most steps have one input. A copy of the slice takes as long as all else here.
            inputs = _SINGLE_BYTES[steps[first]] if self._num_steps == first + 1 else bytes(steps[first:])
            at_us = int((now - self.recorded_from) * 1e6)
        return self._details.take_detail(self._stops.matched, machine.dropped_text, at_us, inputs)

    def on_queued(self) -> None:
        """Handles a job that waits for admission by the engine."""
        self._events += self.machine.queue()

    def on_admitted(self, chunk: Chunk) -> None:
        """Handles the first chunk of a job, which carries no tokens and marks its admission."""
        self.begin()
        if self._is_compacting and self._summary is not None:
            self._summary.read_chunk(chunk)
            self._events += self.machine.feed(Compact())
        else:
            self.round.is_admitted = True
            self.round.count_prompt(chunk)
            if not self._done_rounds:
                self._details.add_admission(chunk)
            self._steer()

    def begin(self) -> None:
        """Emits the start of the response and the lists of tools, unless it has started."""
        if self.machine.state in (State.NEW, State.QUEUED):
            self._events += self.machine.begin()
            for item in self.tools.lists if self.tools is not None else ():
                self._events += self.machine.feed(CompleteItem(item))

    def keepalive(self) -> None:
        """Repeats the latest lifecycle event or the stage of an item that the server makes, where that is legal."""
        with contextlib.suppress(IllegalInput):
            self._events += self.machine.keepalive()

    def process_chunk(self, chunk: Chunk) -> None:
        """Processes one engine step. Chunks after the end are ignored: the engine may be a step ahead."""
        if self.machine.is_ended:
            return
        if self._is_compacting and self._summary is not None:
            self._process_summary(self._summary, chunk)
            return
        # A turn that ends is not steered; a call lets it continue.
        if chunk.finish is not None and not self.round.calls:
            self._steer_requested, self._steer_if_called = False, self._steer_requested
        self.round.count_prompt(chunk)
        self._details.add_prompt_logprobs(chunk)
        if self._spec.prefill_only:
            self._finish_prefill(chunk)
            return
        if self._round_end is not None:
            return
        self.round.generated_tokens += chunk.tokens
        self._stop_id = chunk.stop_id
        logprobs = [decode_logprob(self._format, entry) for entry in chunk.logprobs] if self._spec.logprobs else ()
        segments = self.round.reader.feed(chunk.tokens, logprobs)
        self._details.add_chunk(chunk, self._passthrough_reader.take_offsets() if self._passthrough_reader else ())
        if self.round.unoffered_calls:  # never, in most turns
            self._note_unoffered()
        self._process_segments(segments)
        if self.needs_no_more:
            return
        if self.round.reader.call_failed:  # also between two files of a patch, where no item is open
            self._end_generation("stop" if chunk.finish == "stop" else "stopped")
        elif chunk.finish:
            self._finish_generation(chunk)

    def request_steer(self) -> None:
        """Ends the turn as soon as no item is open. One that has called a tool is never ended: it may call more."""
        self._steer_requested = True
        self._steer()

    def fail(self, code: str, message: str, ending: Ending) -> None:
        """Ends the turn as failed."""
        code = code if code in RESPONSE_ERROR_CODES else "server_error"
        self._conclude(ending, self.machine.fail(code, message))

    def cancel(self, ending: Ending) -> None:
        """Ends the turn as cancelled."""
        self._conclude(ending, self.machine.cancel())

    def abandon(self, ending: Ending) -> None:
        """Ends the turn without an event: it has none so far, or another process continues it."""
        self._conclude(ending, ())

    def finish_stats(self, now: float) -> None:
        """Completes the figures of the turn. `now` is the time of its end."""
        stats, usage, response = self.stats, self.build_usage(), self.machine.response
        if stats.times.ended is not None:
            return
        stats.times.ended = now
        stats.status = "refused" if self.machine.state is State.NEW else str(response.status)
        if stats.status == "refused":  # the engine never had it
            return
        stats.input_tokens, stats.output_tokens = usage.input_tokens, usage.output_tokens
        stats.cached_tokens = usage.input_tokens_details.cached_tokens
        stats.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
        stats.error_code = "" if response.error is None else response.error.code
        stats.tools = list_called_tools(self.machine.output)

    def _conclude(self, ending: Ending, events: Sequence[Event]) -> None:
        """Adds the last events of the turn, and records why it has ended. It is called once."""
        if self.stats.ending is not None:
            raise RuntimeError(f"the turn has ended before: {self.stats.ending.cause}, now {ending.cause}")
        self.stats.ending = ending
        self._events += events

    @property
    def summary(self) -> str:
        """The summary of the conversation; empty if it has failed."""
        return self._summary.text if self._summary else ""

    def count_summary(self) -> tuple[int, int, int, int]:
        """Returns the numbers of input, cached, output and reasoning tokens of the summary."""
        each = self._summary
        if each is None:
            return (0, 0, 0, 0)
        return each.num_prompt_tokens, each.num_cached_tokens, each.num_generated_tokens, each.reasoning_tokens

    def restore_summary(self, counts: tuple[int, int, int, int]) -> None:
        """Sets what `count_summary` has returned, in a turn that is replayed."""
        if self._summary is not None:
            self._summary.restore_counts(*counts)

    def end_compaction(self, content: str, turn_prompt: TurnPrompt | None) -> None:
        """Emits the compaction. The turn continues with the output for this prompt, or ends without one."""
        self._is_compacting = False
        self._events += self.machine.feed(Result(self._seal("compaction", content)))
        if turn_prompt is None:
            self._conclude(Ending("compacted"), self.machine.stop())
            return
        reader = self._format.create_reader(turn_prompt.prompt, turn_prompt.prompt_input)
        self.round = Round(turn_prompt, reader, len(self.machine.output))

    # Rounds

    def add_approved(self, call: Call, arguments: str) -> None:
        """Begins a call that the client has approved. It is due now."""
        for segment in (call, Arguments(arguments), Close()):
            self._feed_now(segment)

    def end_call(self, result: CallResult, output: str) -> None:
        """Emits the end of the call that was due, and what the model generated after it. `output` is for the model."""
        if self.due_call is None or self.is_ended:
            return
        self.round.calls[-1] = ServerCall(self.due_call.call, self.due_call.arguments, output)
        self.due_call = None
        self._events += self.machine.feed(result)
        self._steer()
        while self._held and not self._is_waiting and not self.is_ended:
            self._feed_now(self._held.popleft())
            self._check_limits()
        if self._round_end is not None and not self.is_round_over:
            self._end_generation(self._round_end)

    def start_round(self, turn_prompt: TurnPrompt) -> None:
        """Continues with the output for this prompt."""
        self._done_rounds.append(self.round)
        reader = self._format.create_reader(turn_prompt.prompt, turn_prompt.prompt_input)
        self.round = Round(turn_prompt, reader, len(self.machine.output))
        self._stops, self._round_end, self.is_round_over = self._create_filter(), None, False

    def cut(self) -> None:
        """Ends the turn because nothing is left for another round, or for more output."""
        limit = self._spec.sampling.max_tokens
        if limit is not None and self.num_generated_tokens >= limit:
            ending = Ending("max_output_tokens", str(limit))
        elif self._round_end == "repetition":
            ending = Ending("repetition", str(len(self.round.generated_tokens)))
        else:
            ending = Ending("context_full", str(self.round.num_prompt_tokens + len(self.round.generated_tokens)))
        self._conclude(ending, self.machine.cut())

    def _create_filter(self) -> StopStringFilter:
        spec = self._spec
        # A stop string could cut JSON that must match a schema.
        stop_strings = spec.stop_strings if not spec.prompt_input.promises_json else ()
        return StopStringFilter(stop_strings, verbatim=spec.text_completion is not None)

    def _end_generation(self, round_end: _RoundEnd) -> None:
        """Ends the round, or the turn, unless a call runs: then the end of the call does."""
        self._round_end = round_end
        if self._is_waiting or self.is_ended:
            return
        if round_end in ("length", "repetition"):
            self.cut()
        elif self.round.reader.call_failed and round_end != "limit":  # the reader is ahead of a limit
            ending = Ending("stopped_in_call" if round_end == "stop" else "call_cannot_complete")
            self.fail("server_error", STOPPED_IN_CALL, ending)
        elif self._continues(round_end):
            self._events += self.machine.feed(Close())
            self.is_round_over = True
            self._steer()
        else:
            self._conclude(self._find_ending(round_end), self.machine.stop())

    def _find_ending(self, round_end: _RoundEnd) -> Ending:
        """Returns why a turn ends whose output is whole, unless the model is inside a call."""
        if self.machine.state in (State.CALL, State.TOOL):
            return Ending("stopped_in_call")
        if round_end == "limit":
            if self._spec.single_call:
                return Ending("single_call", "1")
            limit = self._spec.max_tool_calls
            return Ending("max_tool_calls", "" if limit is None else str(limit))
        if self._stops.matched is not None:
            return Ending("stop_string", self._stops.matched)
        return Ending("stop_token", "" if self._stop_id is None else str(self._stop_id))

    def _continues(self, round_end: _RoundEnd) -> bool:
        is_complete = self.machine.state not in (State.CALL, State.TOOL) and round_end != "stopped"
        return is_complete and bool(self.round.calls) and not self.round.num_client_calls

    def _steer(self) -> None:
        if self._steer_requested and self.machine.state is State.IDLE and not self.round.num_client_calls:
            self._conclude(Ending("steered"), self.machine.steer())

    # Processing of one step

    def _process_summary(self, summary: SummaryReader, chunk: Chunk) -> None:
        summary.read_chunk(chunk)
        if chunk.finish == "cancelled":
            self.cancel(Ending("cancelled"))
        elif chunk.fault and self._spec.compact:
            self._report_fault(chunk.fault)

    def _report_fault(self, fault: Fault) -> None:
        self.fail(fault.code, fault.message, ending_of_fault(fault.code))

    def _note_unoffered(self) -> None:
        calls = self.round.unoffered_calls
        self._details.add_unoffered(calls, sum(len(each.generated_tokens) for each in self._done_rounds))
        calls.clear()

    def _process_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            for released in self._stops.filter_segment(segment):
                self._feed_segment(released)
            self._check_limits()
            if self.needs_no_more:
                return

    def _check_limits(self) -> None:
        """Ends the generation if a stop string has matched, or if the model may make no more calls in this round.

        While a call runs, the generation is ahead of the output: what comes before a stop string waits, and what comes
        after the last call is dropped, however it has ended.
        """
        if self.is_ended:
            return
        has_one = self._spec.single_call and self.round.num_calls > 0
        if has_one or (self.round.calls and not self._can_call):
            self._held.clear()
            self._end_generation("limit")
        elif self._round_end is None and self._stops.matched is not None:
            self._end_generation("stopped")

    def _feed_segment(self, segment: Segment) -> None:
        if self._is_waiting or self._held:
            self._held.append(segment)
        elif self.machine.state is not State.ENDED:
            self._feed_now(segment)

    def _feed_now(self, segment: Segment) -> None:
        if self.tools is None or type(segment) is not Say:
            self._feed_plain(segment)
            return
        if self.machine.state is not State.MESSAGE:
            self._citations.start_message(self.tools.sources)
        for piece in self._citations.read_text(segment):
            self._feed_plain(piece)

    def _feed_plain(self, segment: Segment) -> None:
        machine = self.machine
        if not self._call_tracker.add_segment(segment):
            return
        ends_call = isinstance(segment, Close) and machine.state in (State.CALL, State.TOOL)
        if self._steer_requested and isinstance(segment, _NEXT_ITEM.get(machine.state, ())):
            self._events += machine.feed(Close())
            self._steer()
            if self.is_ended:
                return
        events = machine.feed(segment)
        if machine.is_ended:  # only a call ends at a segment
            self._conclude(Ending("stopped_in_call"), events)
            return
        self._events += events
        if ends_call:
            self._count_call()
        if self._steer_requested:
            self._steer()

    def _count_call(self) -> None:
        call = self._call_tracker.finish_call()
        if call is None:
            self.round.num_client_calls += 1
            return
        self.round.calls.append(call)
        self._steer_requested = self._steer_requested or self._steer_if_called
        if call.call.kind == "tool_search":
            self._answer_search(call)
        else:
            self.due_call = call

    def _answer_search(self, call: ServerCall) -> None:
        """Emits what a search among deferred tools has found. It takes no time, so that it is never interrupted."""
        item = self.machine.output[-1]
        assert self.tools is not None and isinstance(item, ToolSearchCall)
        found = self.tools.load_tools(item)
        self.round.calls[-1] = ServerCall(call.call, call.arguments, found.output)
        self._events += self.machine.feed(CompleteItem(found.item))

    def _finish_generation(self, chunk: Chunk) -> None:
        if chunk.fault:
            self._report_fault(chunk.fault)
        elif chunk.finish == "cancelled":
            self.cancel(Ending("cancelled"))
        else:
            segments = self.round.reader.finish(natural=chunk.finish == "stop")
            self._note_unoffered()
            self._process_segments(segments)
            for held in self._stops.release_held():
                self._feed_segment(held)
            if not self.needs_no_more:
                self._end_generation(chunk.finish if chunk.finish in ("stop", "repetition") else "length")

    def _finish_prefill(self, chunk: Chunk) -> None:
        """Ends a prefill-only turn. Its one token only shows that the prompt was read, and is not output."""
        if chunk.fault:
            self._report_fault(chunk.fault)
        elif chunk.tokens or chunk.finish:
            self._conclude(Ending("nothing_generated"), self.machine.stop())

    def build_usage(self) -> Usage:
        """Returns the sum of all jobs so far."""
        # A turn that ends with its summary has no other job.
        has_answer = self._summary is None or not (self._is_compacting or self._spec.compact)
        return sum_usage(self.rounds if has_answer else (), self._summary)

    def _diagnose_cache(self) -> PromptCacheDiagnostics | UnsetType:
        first = next(iter(self.rounds), self.round)
        summary = self._summary if self._spec.compact else None
        cached = first.cached_tokens if summary is None else summary.num_cached_tokens
        return diagnose_cache(first.prompt, cached)
