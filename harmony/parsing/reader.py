"""Reads one answer: what every dialect's reader shares.

A reader is a generator over a `Tape` that says segments. Here are the words it says them with, and the promise that
makes half a call harmless: nothing is said of a call before its tool is known, so until then everything can still be
text; after that it becomes whole or stays open for ever, and the machine freezes it. Which markers mean what is known
to the dialects only.
"""

from collections.abc import Sequence

from antiphon.events.items import Annotation, Logprob, Phase
from antiphon.harmony.format import PromptInput
from antiphon.harmony.parsing.tape import HoldBackExceeded, MalformedText, Parser, Tape
from antiphon.harmony.tokens.detokenizer import Detokenizer, MarkerAlphabet
from antiphon.harmony.tools import ToolSpec
from antiphon.state.segments import Arguments, Call, Cite, Close, Say, Segment, Think

MAX_HOLD_BACK_CHARS = 1 << 17
"""Characters that may be held back for a call that has not begun: nonsense must not be read again without end."""
MIN_HOLD_BACK_CHARS = 1 << 10
"""So many where as much as that was held back for nothing."""


class TapeReader:
    """The base of all readers. `made` counts characters that were said without being written (converted, unescaped)."""

    def __init__(self, alphabet: MarkerAlphabet, prompt_input: PromptInput) -> None:
        self.tape = Tape(alphabet)
        self.generated_chars = 0
        self.reasoning_tokens = 0
        self.call_failed = False
        self.open_call: ToolSpec | None = None
        self.num_calls = 0
        self._tools = prompt_input.tools
        self._callable = prompt_input.tool_choice != "none"
        self._wasted = 0
        self._detokenizer = Detokenizer(alphabet)
        self._segments: list[Segment] = []
        self._parser = self.parse_turn()

    def parse_turn(self) -> Parser[None]:
        """Read the whole answer."""
        raise NotImplementedError

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Read more tokens. `logprobs` is empty or has one entry per token."""
        text, starts = self._detokenizer.feed(tokens)
        self.tape.feed(text, starts, logprobs)
        return self._take_segments()

    def finish(self, *, natural: bool) -> list[Segment]:
        """The answer is over: say what was held back. `natural`: the model ended it; else it was cut off."""
        self.tape.feed(self._detokenizer.finish())
        self.tape.ended = True
        self.tape.natural = natural
        return self._take_segments()

    def _take_segments(self) -> list[Segment]:
        next(self._parser, None)
        said, self._segments = self._segments, []
        return said

    # What a dialect may say.

    def emit_text(self, count: int, phase: Phase | None = None) -> None:
        """The next characters are text for the user."""
        text, logprobs = self.tape.take_with_logprobs(count)
        if text:
            self._segments.append(Say(text, phase, logprobs))

    def emit_reasoning(self, count: int) -> None:
        """The next characters are reasoning."""
        self.reasoning_tokens += self.tape.count_tokens(count)
        if text := self.tape.take(count):
            self._segments.append(Think(text))

    def emit_citation(self, annotation: Annotation, length: int) -> None:
        """The last `length` characters of the text have this source."""
        self._segments.append(Cite(annotation, length))

    def require_tool(self, flat: str) -> ToolSpec:
        """The tool of that name. Raises `Malformed` if it may not be called: then this is no call but text."""
        offer = self._tools.find_tool(flat) if self._callable else None
        if offer is None:
            raise MalformedText(flat)
        return offer

    @property
    def may_call(self) -> bool:
        """Whether any call can come of what is read."""
        return self._callable and len(self._tools) > 0

    def begin_call(self, offer: ToolSpec, call_id: str | None = None) -> None:
        """A call begins; from now on it is one. `call_id`: the model's own, where it has one."""
        self.tape.release()
        self.open_call = offer
        self.num_calls += 1
        self._segments.append(Call(offer.name, offer.kind, call_id, offer.namespace))

    def take_arguments(self, count: int) -> None:
        """The next characters are arguments, as they are."""
        self._append_arguments(self.tape.take(count))

    def emit_arguments(self, text: str, count: int = 0) -> None:
        """Say arguments in other words than those in which the next characters say them."""
        self.tape.skip(count)
        self.generated_chars += len(text)
        self._append_arguments(text)

    def _append_arguments(self, text: str) -> None:
        if self._segments and isinstance(last := self._segments[-1], Arguments):
            self._segments[-1] = Arguments(last.text + text)
        elif text:
            self._segments.append(Arguments(text))

    def close_item(self) -> None:
        """What is open is whole."""
        self.open_call = None
        self._segments.append(Close())

    def abandon_call(self) -> Parser[None]:
        """The call went wrong: it stays open, and nothing more is said, whether or not anybody reads on."""
        self.call_failed = True
        self.tape.release()
        while (yield from self.tape.wait_more()):
            self.tape.skip(len(self.tape.text) - self.tape.index)

    def try_parse(self, call: Parser[None]) -> Parser[bool]:
        """Read something as a call. False if it was none: then nothing was read."""
        patience = max(MAX_HOLD_BACK_CHARS - self._wasted, MIN_HOLD_BACK_CHARS)
        mark, before = self.tape.mark(patience), self.num_calls
        try:
            yield from call
        except MalformedText as failure:
            if self.num_calls == before:
                self._wasted += patience if isinstance(failure, HoldBackExceeded) else self.tape.index - mark[0]
                self.tape.rewind(mark)
                self.tape.release()
                return False
            if self.open_call is not None:
                yield from self.abandon_call()
        self.tape.release()
        return True
