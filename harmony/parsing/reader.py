"""Reads one answer: what every dialect's reader shares.

A reader is a generator over a `Tape` that says segments. Here are the words it says them with, and the promise that
makes half a call harmless: nothing is said of a call before its tool is known, so until then everything can still be
text; after that it becomes whole or stays open for ever, and the machine freezes it. Which markers mean what is known
to the dialects only.
"""

from collections.abc import Sequence

from antiphon.events.items import Annotation, Logprob, Phase
from antiphon.harmony.format import Conversation
from antiphon.harmony.parsing.tape import Malformed, Tape, TooLong, Wait
from antiphon.harmony.tokens.detokenizer import Alphabet, Detokenizer
from antiphon.harmony.tools import Offered
from antiphon.state.segments import Arguments, Call, Cite, Close, Say, Segment, Think

PATIENCE = 1 << 17
"""Characters that may be held back for a call that has not begun: nonsense must not be read again without end."""
IMPATIENT = 1 << 10
"""So many where as much as that was held back for nothing."""


class TapeReader:
    """The base of all readers. `made` counts characters that were said without being written (converted, unescaped)."""

    def __init__(self, alphabet: Alphabet, conversation: Conversation) -> None:
        self.tape = Tape(alphabet)
        self.made = 0
        self.reasoning_tokens = 0
        self.broken = False
        self.call: Offered | None = None
        self.calls = 0
        self._tools = conversation.tools
        self._callable = conversation.tool_choice != "none"
        self._wasted = 0
        self._text = Detokenizer(alphabet)
        self._said: list[Segment] = []
        self._turn = self.turn()

    def turn(self) -> Wait[None]:
        """Read the whole answer."""
        raise NotImplementedError

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Read more tokens. `logprobs` is empty or has one entry per token."""
        text, starts = self._text.feed(tokens)
        self.tape.feed(text, starts, logprobs)
        return self._read()

    def finish(self, *, natural: bool) -> list[Segment]:
        """The answer is over: say what was held back. `natural`: the model ended it; else it was cut off."""
        self.tape.feed(self._text.finish())
        self.tape.ended = True
        self.tape.natural = natural
        return self._read()

    def _read(self) -> list[Segment]:
        next(self._turn, None)
        said, self._said = self._said, []
        return said

    # What a dialect may say.

    def say(self, count: int, phase: Phase | None = None) -> None:
        """The next characters are text for the user."""
        text, logprobs = self.tape.scored(count)
        if text:
            self._said.append(Say(text, phase, logprobs))

    def think(self, count: int) -> None:
        """The next characters are reasoning."""
        self.reasoning_tokens += self.tape.tokens_in(count)
        if text := self.tape.take(count):
            self._said.append(Think(text))

    def cite(self, annotation: Annotation, length: int) -> None:
        """The last `length` characters of the text have this source."""
        self._said.append(Cite(annotation, length))

    def offered(self, flat: str) -> Offered:
        """The tool of that name. Raises `Malformed` if it may not be called: then this is no call but text."""
        offer = self._tools.find(flat) if self._callable else None
        if offer is None:
            raise Malformed(flat)
        return offer

    @property
    def may_call(self) -> bool:
        """Whether any call can come of what is read."""
        return self._callable and len(self._tools) > 0

    def begin(self, offer: Offered, call_id: str | None = None) -> None:
        """A call begins; from now on it is one. `call_id`: the model's own, where it has one."""
        self.tape.release()
        self.call = offer
        self.calls += 1
        self._said.append(Call(offer.name, offer.kind, call_id, offer.namespace))

    def arguments(self, count: int) -> None:
        """The next characters are arguments, as they are."""
        self._append(self.tape.take(count))

    def make(self, text: str, count: int = 0) -> None:
        """Say arguments in other words than those in which the next characters say them."""
        self.tape.skip(count)
        self.made += len(text)
        self._append(text)

    def _append(self, text: str) -> None:
        if self._said and isinstance(last := self._said[-1], Arguments):
            self._said[-1] = Arguments(last.text + text)
        elif text:
            self._said.append(Arguments(text))

    def close(self) -> None:
        """What is open is whole."""
        self.call = None
        self._said.append(Close())

    def ruin(self) -> Wait[None]:
        """The call went wrong: it stays open, and nothing more is said, whether or not anybody reads on."""
        self.broken = True
        self.tape.release()
        while (yield from self.tape.more()):
            self.tape.skip(len(self.tape.text) - self.tape.pos)

    def attempt(self, call: Wait[None]) -> Wait[bool]:
        """Read something as a call. False if it was none: then nothing was read."""
        patience = max(PATIENCE - self._wasted, IMPATIENT)
        mark, before = self.tape.mark(patience), self.calls
        try:
            yield from call
        except Malformed as failure:
            if self.calls == before:
                self._wasted += patience if isinstance(failure, TooLong) else self.tape.pos - mark[0]
                self.tape.rewind(mark)
                self.tape.release()
                return False
            if self.call is not None:
                yield from self.ruin()
        self.tape.release()
        return True
