"""Turns an engine's chunks into events: reader, stop strings, limits and state machine, in one synchronous pipeline.

The processor decides when a turn is over (the engine finished, a stop string matched, the last permitted call is
complete, a call can no longer be completed) and stops the machine. It knows no tasks, logs or clients.
"""

import contextlib
from collections.abc import Callable, Sequence

from msgspec import UnsetType

from antiphon.app.base.encryption import Purpose
from antiphon.app.base.event_log import TokenDetail
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turns.cache_diagnostics import diagnose_cache
from antiphon.app.turns.compaction import SummaryReader
from antiphon.app.turns.prompt_token_cache import TurnPrompt
from antiphon.app.turns.stop_strings import StopStringFilter
from antiphon.app.turns.token_details import DetailCollector
from antiphon.engine.protocol import Chunk, TokenLogprob
from antiphon.events.base import Event
from antiphon.events.items import Logprob, TopLogprob
from antiphon.events.response import InputTokensDetails, OutputTokensDetails, PromptCacheDiagnostics, Usage
from antiphon.harmony.format import ModelFormat
from antiphon.state.drafts import OutputSettings
from antiphon.state.ids import NewId
from antiphon.state.machine import STOPPED_IN_CALL, Machine
from antiphon.state.segments import Call, Close, Compact, Refuse, Result, Say, Segment, Think
from antiphon.state.table import IllegalInput, State

RESPONSE_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"})
"""Error codes of a failed response that clients know. Any other code is reported as `server_error`."""
_NEXT_ITEM = {State.REASONING: (Say, Refuse, Call), State.MESSAGE: (Think, Call)}
"""Segments that end the open item and begin another one, by the state."""


class OutputProcessor:
    """Produces the events of one turn. They wait for `collect_events`, also those produced before an exception."""

    def __init__(
        self,
        spec: TurnSpec,
        turn_prompt: TurnPrompt,
        form: ModelFormat,
        *,
        new_id: NewId,
        clock: Callable[[], int],
        settings: OutputSettings = OutputSettings(),  # noqa: B008  # it is frozen
        seal: Callable[[Purpose, str], str] = lambda _, text: text,
    ) -> None:
        prompt = turn_prompt.prompt
        self._format, self._spec, self._prompt, self._turn_prompt = form, spec, prompt, turn_prompt
        summary_prompt = turn_prompt if spec.compact else turn_prompt.summary
        self._summary = SummaryReader(form, summary_prompt) if summary_prompt else None
        self._is_compacting = self._summary is not None
        self._seal = seal
        self._passthrough_reader = (
            None
            if spec.text_completion is None
            else form.passthrough.create_reader(keep_special_tokens=spec.text_completion.keep_special_tokens)
        )
        self._reader = self._passthrough_reader or form.create_reader(prompt, turn_prompt.prompt_input)
        # A stop string could cut JSON that must match a schema.
        stop_strings = spec.stop_strings if not spec.prompt_input.promises_json else ()
        self._stops = StopStringFilter(stop_strings, verbatim=spec.text_completion is not None)
        self._details = DetailCollector(form, prompt, spec.details)
        self._calls = 0
        self._steer_requested = False
        self._cached = 0
        self.generated_tokens: list[int] = []
        self._events: list[Event] = []
        self.machine = Machine(
            spec.base_response,
            new_id=new_id,
            clock=clock,
            usage=self._build_usage,
            diagnose=self._diagnose_cache,
            seal=(lambda text: seal("reasoning", text)) if spec.encrypt_reasoning else None,
            settings=settings,
        )

    @property
    def is_ended(self) -> bool:
        """True once the terminal event has been produced."""
        return self.machine.is_ended

    @property
    def has_dialect(self) -> bool:
        """True if the output consists of items of a conversation; that of a text completion is nothing but text."""
        return self._passthrough_reader is None

    def collect_events(self) -> list[Event]:
        """Returns the events produced since the last call."""
        events, self._events = self._events, []
        return events

    def take_detail(self) -> TokenDetail:
        """Returns what the events collected since the last call do not carry."""
        return self._details.take_detail(self._stops.matched, self.machine.dropped_text)

    def on_queued(self) -> None:
        """Handles a job that waits for admission by the engine."""
        self._events += self.machine.queue()

    def on_admitted(self, chunk: Chunk) -> None:
        """Handles the first chunk of a job, which carries no tokens and marks its admission."""
        if self.machine.state in (State.NEW, State.QUEUED):
            self._events += self.machine.begin()
        if self._is_compacting and self._summary is not None:
            self._summary.read_chunk(chunk)
            self._events += self.machine.feed(Compact())
        else:
            self._cached = chunk.cached_tokens
            self._details.add_admission(chunk)
            self._steer()

    def keepalive(self) -> None:
        """Repeats the latest lifecycle event or the stage of a compaction where that is legal."""
        with contextlib.suppress(IllegalInput):
            self._events += self.machine.keepalive()

    def process_chunk(self, chunk: Chunk) -> None:
        """Processes one engine step. Chunks after the end are ignored: the engine may be a step ahead."""
        if self.machine.is_ended:
            return
        if self._is_compacting and self._summary is not None:
            self._process_summary(self._summary, chunk)
            return
        self._steer_requested = self._steer_requested and chunk.finish is None  # a turn that ends is not steered
        self._cached = max(self._cached, chunk.cached_tokens)
        self._details.add_prompt_logprobs(chunk)
        if self._spec.prefill_only:
            self._finish_prefill(chunk)
            return
        self.generated_tokens += chunk.tokens
        logprobs = [self._decode_logprob(entry) for entry in chunk.logprobs] if self._spec.logprobs else ()
        segments = self._reader.feed(chunk.tokens, logprobs)
        self._details.add_chunk(chunk, self._passthrough_reader.take_offsets() if self._passthrough_reader else ())
        self._process_segments(segments)
        if self.is_ended:
            return
        if self._reader.call_failed:  # between two files of a patch, no item is open, and the call has failed still
            self.fail("server_error", STOPPED_IN_CALL)
        elif chunk.finish:
            self._finish_turn(chunk)

    def request_steer(self) -> None:
        """Ends the turn as soon as no item is open. One that has called a tool is never ended: it may call more."""
        self._steer_requested = True
        self._steer()

    def fail(self, code: str, message: str) -> None:
        """Ends the turn as failed."""
        self._events += self.machine.fail(code if code in RESPONSE_ERROR_CODES else "server_error", message)

    def cancel(self) -> None:
        """Ends the turn as cancelled."""
        self._events += self.machine.cancel()

    @property
    def summary(self) -> str:
        """The summary of the conversation; empty if it has failed."""
        return self._summary.text if self._summary else ""

    def end_compaction(self, content: str, turn_prompt: TurnPrompt | None) -> None:
        """Emits the compaction. The turn goes on with the output for this prompt, or ends without one."""
        self._is_compacting = False
        self._events += self.machine.feed(Result(self._seal("compaction", content)))
        if turn_prompt is None:
            self._events += self.machine.stop()
            return
        self._prompt, self._turn_prompt = turn_prompt.prompt, turn_prompt
        self._reader = self._format.create_reader(turn_prompt.prompt, turn_prompt.prompt_input)

    def _steer(self) -> None:
        if self._steer_requested and self.machine.state is State.IDLE and not self._calls:
            self._events += self.machine.steer()

    # Processing of one step

    def _process_summary(self, summary: SummaryReader, chunk: Chunk) -> None:
        summary.read_chunk(chunk)
        if chunk.finish == "cancelled":
            self.cancel()
        elif chunk.fault and self._spec.compact:
            self.fail(chunk.fault.code, chunk.fault.message)

    def _process_segments(self, segments: Sequence[Segment]) -> None:
        machine, stops = self.machine, self._stops
        for segment in segments:
            for released in stops.filter_segment(segment):
                self._feed_segment(released)
            if machine.state is State.ENDED:
                return
            if stops.matched is not None or self._calls == self._spec.max_tool_calls:
                self._events += machine.stop()
                return

    def _feed_segment(self, segment: Segment) -> None:
        machine = self.machine
        if machine.state is State.ENDED:
            return
        if machine.state is State.CALL and isinstance(segment, Close):
            self._calls += 1
        if self._steer_requested and isinstance(segment, _NEXT_ITEM.get(machine.state, ())):
            self._events += machine.feed(Close())
            self._steer()
            if self.is_ended:
                return
        self._events += machine.feed(segment)
        if self._steer_requested:
            self._steer()

    def _finish_turn(self, chunk: Chunk) -> None:
        if chunk.fault:
            self.fail(chunk.fault.code, chunk.fault.message)
        elif chunk.finish == "cancelled":
            self.cancel()
        else:
            self._process_segments(self._reader.finish(natural=chunk.finish == "stop"))
            for held in self._stops.release_held():
                self._feed_segment(held)
            if self.is_ended:
                return
            if chunk.finish != "stop":
                self._events += self.machine.cut()
            elif self._reader.call_failed:
                self.fail("server_error", STOPPED_IN_CALL)
            else:
                self._events += self.machine.stop()

    def _finish_prefill(self, chunk: Chunk) -> None:
        """Ends a prefill-only turn. Its one token only shows that the prompt was read, and is not output."""
        if chunk.fault:
            self.fail(chunk.fault.code, chunk.fault.message)
        elif chunk.tokens or chunk.finish:
            self._events += self.machine.stop()

    def _build_usage(self) -> Usage:
        """Returns the sum of both jobs of a turn that was compacted."""
        # A turn that ends with its summary has no other job.
        has_answer = self._summary is None or not (self._is_compacting or self._spec.compact)
        num_prompt, cached = (len(self._prompt.tokens), self._cached) if has_answer else (0, 0)
        num_generated, reasoning = len(self.generated_tokens), self._reader.reasoning_tokens
        if self._summary is not None:
            num_prompt += self._summary.num_prompt_tokens
            cached += self._summary.num_cached_tokens
            num_generated += self._summary.num_generated_tokens
            reasoning += self._summary.reasoning_tokens
        return Usage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens=num_generated,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=num_prompt + num_generated,
        )

    def _diagnose_cache(self) -> PromptCacheDiagnostics | UnsetType:
        summary = self._summary if self._spec.compact else None
        cached = self._cached if summary is None else summary.num_cached_tokens
        return diagnose_cache(self._turn_prompt, cached)

    def _decode_logprob(self, entry: TokenLogprob) -> Logprob:
        text, data = self._format.decode_token(entry.id)
        top = []
        for top_id, logprob in entry.top:
            top_text, top_data = self._format.decode_token(top_id)
            top.append(TopLogprob(token=top_text, bytes=tuple(top_data), logprob=min(logprob, 0.0)))
        return Logprob(token=text, bytes=tuple(data), logprob=min(entry.logprob, 0.0), top_logprobs=tuple(top))
