"""From an engine's chunks to events: reader, stop strings, limits and machine in one line, without any waiting.

The scribe knows when a turn is over (the engine says so, a stop string matched, the last permitted call is whole, a
call broke) and says so to the machine. It knows no task, no log and no client.
"""

import contextlib
from collections.abc import Callable, Sequence

from antiphon.app.encryption import Purpose
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turns.compaction import EMPTY_SUMMARY_MESSAGE, CompactionCollector
from antiphon.app.turns.stop_strings import StopStringFilter
from antiphon.engine.protocol import Chunk, TokenLogprob
from antiphon.events.base import Event
from antiphon.events.items import Logprob, TopLogprob
from antiphon.events.response import InputTokensDetails, OutputTokensDetails, Usage
from antiphon.harmony.format import ModelFormat, RenderedPrompt
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.ids import NewId
from antiphon.state.machine import Machine
from antiphon.state.segments import Close, Segment
from antiphon.state.table import IllegalInput, State

RESPONSE_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})
"""Codes that the types of clients know inside a failed response; any other fault is told as `server_error`."""


class OutputProcessor:
    """Writes one turn. What was said stands in `said` until `collect` takes it, even when something raised."""

    def __init__(
        self,
        spec: TurnSpec,
        prompt: RenderedPrompt,
        form: ModelFormat,
        *,
        ids: NewId,
        clock: Callable[[], int],
        reasoning_as: ReasoningOutput = "content",
        seal: Callable[[Purpose, str], str] = lambda _, text: text,
    ) -> None:
        self._format, self._spec, self._prompt = form, spec, prompt
        self._summary = CompactionCollector(lambda text: seal("compaction", text)) if spec.compact else None
        self._reader = form.create_reader(prompt, spec.prompt_input)
        # A stop string would break JSON off in the middle of what was promised to be whole.
        self._stops = StopStringFilter(spec.stop_strings if spec.prompt_input.answer_schema is None else ())
        self._calls = 0
        self._cached = 0
        self.generated_tokens: list[int] = []
        self._said: list[Event] = []
        self.machine = Machine(
            spec.base_response,
            new_id=ids,
            clock=clock,
            usage=self._build_usage,
            seal=(lambda text: seal("reasoning", text)) if spec.encrypt_reasoning else None,
            reasoning_output=reasoning_as,
        )

    @property
    def is_ended(self) -> bool:
        """Whether the terminal event has been said."""
        return self.machine.is_ended

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the turn."""
        return self._stops.matched

    def collect_events(self) -> list[Event]:
        """The events since the last time."""
        said, self._said = self._said, []
        return said

    def on_queued(self) -> None:
        """The job waits for the engine."""
        self._said += self.machine.queue()

    def on_admitted(self, chunk: Chunk) -> None:
        """The engine has admitted the job: its first chunk, which carries no tokens."""
        self._cached = chunk.cached_tokens
        self._said += self.machine.begin()
        if chunk.finish:
            self.process_chunk(chunk)

    def keepalive(self) -> None:
        """Repeat the last stage, where that is legal: before the first item."""
        with contextlib.suppress(IllegalInput):
            self._said += self.machine.keepalive()

    def process_chunk(self, chunk: Chunk) -> None:
        """One engine step. Chunks after the end are ignored: the engine may have been a step ahead."""
        if self.machine.is_ended:
            return
        if self._spec.prefill_only:
            self._finish_prefill(chunk)
            return
        self.generated_tokens += chunk.tokens
        self._process_segments(
            self._reader.feed(chunk.tokens, self._chunk_logprobs(chunk) if self._spec.logprobs else ())
        )
        if self.is_ended:
            return
        if self._reader.call_failed:
            self._said += self.machine.stop()
        elif chunk.finish:
            self._finish_turn(chunk)

    def fail(self, code: str, message: str) -> None:
        """Something broke."""
        self._said += self.machine.fail(code if code in RESPONSE_ERROR_CODES else "server_error", message)

    def cancel(self) -> None:
        """Nobody wants the rest."""
        self._said += self.machine.cancel()

    # One step

    def _process_segments(self, segments: Sequence[Segment]) -> None:
        if self._summary is not None:
            self._summary.add_segments(segments)
            return
        machine, stops = self.machine, self._stops
        for segment in segments:
            for heard in stops.filter_segment(segment):
                self._feed_segment(heard)
            if machine.state is State.ENDED:
                return
            if stops.matched is not None or self._calls == self._spec.max_tool_calls:
                self._said += machine.stop()
                return

    def _feed_segment(self, segment: Segment) -> None:
        machine = self.machine
        if machine.state is State.ENDED:
            return
        if machine.state is State.CALL and isinstance(segment, Close):
            self._calls += 1
        self._said += machine.feed(segment)

    def _finish_turn(self, chunk: Chunk) -> None:
        if chunk.fault:
            self.fail(chunk.fault.code, chunk.fault.message)
        elif chunk.finish == "cancelled":
            self.cancel()
        else:
            self._process_segments(self._reader.finish(natural=chunk.finish == "stop"))
            if self._summary is not None:
                self._finish_compaction(self._summary)
                return
            for held in self._stops.release_held():
                self._feed_segment(held)
            if not self.is_ended:
                self._said += self.machine.stop() if chunk.finish == "stop" else self.machine.cut()

    def _finish_prefill(self, chunk: Chunk) -> None:
        """The prompt was read, which was all: the token that tells of it is nobody's."""
        if chunk.fault:
            self.fail(chunk.fault.code, chunk.fault.message)
        elif chunk.tokens or chunk.finish:
            self._said += self.machine.stop()

    def _finish_compaction(self, summary: CompactionCollector) -> None:
        """A summary that met its limit is one, as far as it goes; none at all is a fault."""
        if summary.text:
            self._said += self.machine.feed(summary.build_item())
            self._said += self.machine.stop()
        else:
            self.fail("server_error", EMPTY_SUMMARY_MESSAGE)

    def _build_usage(self) -> Usage:
        read = len(self._prompt.tokens)
        return Usage(
            input_tokens=read,
            input_tokens_details=InputTokensDetails(cached_tokens=self._cached),
            output_tokens=len(self.generated_tokens),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._reader.reasoning_tokens),
            total_tokens=read + len(self.generated_tokens),
        )

    def _chunk_logprobs(self, chunk: Chunk) -> list[Logprob]:
        return [self._decode_logprob(entry) for entry in chunk.logprobs]

    def _decode_logprob(self, entry: TokenLogprob) -> Logprob:
        token, raw = self._format.decode_token(entry.id)
        top = []
        for other, logprob in entry.top:
            text, data = self._format.decode_token(other)
            top.append(TopLogprob(token=text, bytes=tuple(data), logprob=min(logprob, 0.0)))
        return Logprob(token=token, bytes=tuple(raw), logprob=min(entry.logprob, 0.0), top_logprobs=tuple(top))
