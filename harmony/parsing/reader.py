"""Base class of all output readers.

A reader is a generator over a `Tape` that emits segments. This module holds the methods that emit them, and makes
incomplete calls harmless: nothing of a call is emitted before its tool is known, so until then everything can still
be text; after that the call is either completed or stays open for good, and the machine freezes it. Only the dialects
know what a marker means.
"""

from collections.abc import Sequence
from typing import Literal

from antiphon.events.items import Annotation, Logprob, Phase
from antiphon.harmony.builtin_tools import BuiltinKind
from antiphon.harmony.format import PromptInput
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.invented_tools import find_invented_tool, has_client_tools
from antiphon.harmony.parsing.tape import HoldBackExceeded, MalformedText, Parser, Tape
from antiphon.harmony.parsing.unoffered_calls import UnofferedCalls
from antiphon.harmony.tokens.detokenizer import Detokenizer, MarkerAlphabet
from antiphon.harmony.tools import VALID_NAME, ToolSpec, ToolTable, UnofferedCall
from antiphon.state.segments import Arguments, Cite, Close, Say, Segment, Think

MAX_HOLD_BACK_CHARS = 1 << 17
"""Limit on the characters held back for calls that have not begun, so that malformed text is not parsed again without
bound."""
MIN_HOLD_BACK_CHARS = 1 << 10
"""Limit for each further attempt once `MAX_HOLD_BACK_CHARS` were held back in vain."""


class TapeReader:
    """Base class of all readers.

    `generated_chars` counts emitted characters that the model did not write (converted, unescaped).
    """

    def __init__(self, alphabet: MarkerAlphabet, prompt_input: PromptInput) -> None:
        self.tape = Tape(alphabet)
        self.generated_chars = 0
        self.reasoning_tokens = 0
        self.call_failed = False
        self.open_call: ToolSpec | None = None
        self.num_calls = 0
        self._tools = prompt_input.tools
        self._callable = prompt_input.tool_choice != "none" and not prompt_input.forbids_calls
        self.accepts_unknown_tools = prompt_input.unknown_tools == "call" and self.may_call
        self.unoffered = UnofferedCalls(self.tape, self._tools if self._callable else ToolTable())
        self._discards_arguments = False
        self._wasted = 0
        self._detokenizer = Detokenizer(alphabet)
        self._segments: list[Segment] = []
        self._parser = self.parse_turn()

    def parse_turn(self) -> Parser[None]:
        """Parses the whole output."""
        raise NotImplementedError

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Parses more tokens. `logprobs` is empty or has one entry per token."""
        text, starts = self._detokenizer.feed(tokens)
        self.tape.feed(text, starts, logprobs)
        return self._take_segments()

    def finish(self, *, natural: bool) -> list[Segment]:
        """Ends the output and returns what was held back. `natural`: the model ended it; otherwise it was cut off."""
        self.tape.feed(self._detokenizer.finish())
        self.tape.ended = True
        self.tape.ended_naturally = natural
        return self._take_segments()

    def _take_segments(self) -> list[Segment]:
        next(self._parser, None)
        segments, self._segments = self._segments, []
        return segments

    @property
    def unoffered_calls(self) -> list[UnofferedCall]:
        """Notes about calls of tools that were not offered. The caller that takes them empties the list."""
        return self.unoffered.notes

    # Emitting segments.

    def emit_text(self, count: int, phase: Phase | None = None) -> None:
        """Emits the next characters as text for the user."""
        text, logprobs = self.tape.take_with_logprobs(count)
        if text:
            self._segments.append(Say(text, phase, logprobs))

    def emit_reasoning(self, count: int) -> None:
        """Emits the next characters as reasoning."""
        self.reasoning_tokens += self.tape.count_tokens(count)
        if text := self.tape.take(count):
            self._segments.append(Think(text))

    def emit_citation(self, annotation: Annotation, length: int) -> None:
        """Emits a source for the last `length` characters of the text."""
        self._segments.append(Cite(annotation, length))

    def require_tool(self, flat: str, kind: Literal["function", "custom"] = "function") -> ToolSpec:
        """Returns the tool of this name. Raises `MalformedText` if it cannot be called: the text is not a call.

        `kind` is that of an unknown tool, if those can be called. The server answers the call of one that is in the
        namespace of its tools, and the client others: a client without tools gets none.
        """
        tool = self._tools.find_tool(flat) if self._callable else None
        if tool is not None:
            return tool
        if self.accepts_unknown_tools:
            if (invented := find_invented_tool(self._tools, flat)) is not None:
                return invented
            if VALID_NAME.fullmatch(flat) and has_client_tools(self._tools):
                return ToolSpec(model_name=flat, name=flat, kind=kind)
        self.unoffered.refuse(flat)
        raise MalformedText(flat)

    def find_builtin_tool(self, kind: BuiltinKind) -> ToolSpec | None:
        """Returns the built-in tool of this type if it can be called."""
        return self._tools.find_builtin(kind) if self._callable else None

    def is_offered(self, tool: ToolSpec) -> bool:
        """Tells whether a tool was offered. An unknown one was not."""
        return self._tools.find_tool(tool.model_name) is not None

    @property
    def may_call(self) -> bool:
        """True if the output can contain calls."""
        return self._callable and len(self._tools) > 0

    def begin_call(self, tool: ToolSpec, call_id: str | None = None) -> None:
        """Begins a call, which can no longer become text. `call_id`: the id that the model wrote, if any."""
        self.tape.release()
        self.open_call = tool
        self.num_calls += 1
        self.unoffered.clear()
        if not self.is_offered(tool):
            self.unoffered.accept(tool.model_name)
        self._segments.append(tool.start_call(call_id))

    def take_arguments(self, count: int) -> None:
        """Emits the next characters as arguments, unchanged."""
        if self._discards_arguments:
            self.tape.skip(count)
        else:
            self._append_arguments(self.tape.take(count))

    def emit_arguments(self, text: str, count: int = 0) -> None:
        """Skips the next `count` characters and emits `text` as arguments in their place."""
        self.tape.skip(count)
        if not self._discards_arguments:
            self.generated_chars += len(text)
            self._append_arguments(text)

    def discard_arguments(self, value: Parser[None]) -> Parser[None]:
        """Reads a value and emits nothing: the call has an argument of its name. Raises `MalformedText`."""
        discards, self._discards_arguments = self._discards_arguments, True
        try:
            yield from value
        finally:
            self._discards_arguments = discards

    def emit_escaped(self, count: int) -> None:
        """Emits the next characters as arguments, escaped as inside a JSON string."""
        self.emit_arguments(schema_values.encode_string(self.tape.peek_original(count))[1:-1], count)

    def _append_arguments(self, text: str) -> None:
        if self._segments and isinstance(last := self._segments[-1], Arguments):
            self._segments[-1] = Arguments(last.text + text)
        elif text:
            self._segments.append(Arguments(text))

    def close_item(self) -> None:
        """Emits the end of the open item, which is complete."""
        self.open_call = None
        self._segments.append(Close())

    def abandon_call(self) -> Parser[None]:
        """Leaves the malformed call open and skips the remaining output: it emits nothing more."""
        self.call_failed = True
        self.tape.release()
        while (yield from self.tape.wait_more()):
            self.tape.skip(len(self.tape.text) - self.tape.index)

    def try_parse(self, call: Parser[None]) -> Parser[bool]:
        """Parses a call. Returns False, with the tape rewound, if the text is not a call."""
        limit = max(MAX_HOLD_BACK_CHARS - self._wasted, MIN_HOLD_BACK_CHARS)
        mark, calls_before = self.tape.mark(limit), self.num_calls
        self.unoffered.begin(mark)
        try:
            yield from call
        except MalformedText as error:
            if self.num_calls == calls_before:
                self._wasted += limit if isinstance(error, HoldBackExceeded) else self.tape.index - mark[0]
                self.tape.rewind(mark)
                self.tape.release()
                return False
            if self.open_call is not None:
                yield from self.abandon_call()
        self.tape.release()
        return True
