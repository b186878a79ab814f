"""A dialect as a declaration, and the one reader that serves all of them.

A dialect says how reasoning is marked and in which frames calls are written; what a frame is made of stands in
`frames`, `tagged` and the like. The reader goes through the answer from marker to marker. A marker counts only as a
part of something that reads well; otherwise it is text as written.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.harmony.calls.citations import Citations
from antiphon.harmony.format import Conversation
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Wait, stops_at
from antiphon.harmony.tokens.detokenizer import Alphabet
from antiphon.harmony.tools import Offered, Sent


class Frame(Protocol):
    """A way of writing a call."""

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of, openers among them."""

    @property
    def bare(self) -> bool:
        """Whether its openers are too common to count anywhere but at the head of an answer."""
        ...

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on. Raises `Malformed`: before `begin`, for text; after, for a ruined call."""

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the first opener in a call of this tool; None for a tool that this frame is not for."""

    def write(self, calls: Sequence[Sent]) -> str | None:
        """Calls as a model would write them; None if this frame is not for one of these tools."""


class Dialect(Struct, frozen=True, kw_only=True):
    """How a family of models marks what it means. Frames that share an opener are tried in order.

    `think` are the opener and the closer of reasoning. `raw` is how a call of a custom tool is written back into a
    prompt, with `{name}` and `{input}` in it; empty: as a function with one parameter `input`. `lesson` tells a model
    how to write `raw`, with `{tools}` in it.
    """

    name: str
    models: str = ""
    """Who writes so, for people."""
    signs: tuple[str, ...] = ()
    """What a chat template of such a model holds, all of it."""
    think: tuple[str, str] | None = None
    also: tuple[tuple[str, str], ...] = ()
    """Other marks of reasoning that such models write."""
    answer: tuple[str, str] | None = None
    """What some put around the text for the user: it is no part of it."""
    cites: Citations | None = None
    """How sources are told of inside the text."""
    dropped: tuple[str, ...] = ()
    """Marks of the model's own that stand between all that and say nothing."""
    frames: tuple[Frame, ...] = ()
    raw: str = ""
    lesson: str = ""
    stop: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")

    @property
    def thinks(self) -> tuple[tuple[str, str], ...]:
        """Every pair of marks of reasoning, the usual one first."""
        return (self.think, *self.also) if self.think else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Everything that is more than text."""
        ours = (*(mark for pair in self.thinks for mark in pair), *(self.answer or ()), *self.dropped)
        ours += (self.cites.open, self.cites.close) if self.cites else ()
        return tuple(dict.fromkeys((*ours, *(marker for frame in self.frames for marker in frame.markers))))


class DialectReader(TapeReader):
    """Reads an answer from marker to marker."""

    def __init__(self, dialect: Dialect, alphabet: Alphabet, conversation: Conversation, *, thinking: bool) -> None:
        super().__init__(alphabet, conversation)
        self._thinking = thinking
        self._blank = True  # nothing but blanks was said since the answer, or a part of it, began
        spell = alphabet.spell
        self._openers = {spell(opener) for opener, _ in dialect.thinks}
        self._closers = {spell(closer) for _, closer in dialect.thinks}
        self._wrapped = False
        self._wrapper = [spell(marker) for marker in dialect.answer or ()]
        self._unwrapping = [f"\n{marker}" for marker in self._wrapper[1:]]
        frames = dialect.frames if self.may_call else ()
        self._frames = [(frame, {spell(opener) for opener in frame.openers}) for frame in frames]
        openers = {opener for _, openers in self._frames for opener in openers}
        self._cites, self._items = dialect.cites, conversation.items
        self._cite = spell(dialect.cites.open) if dialect.cites else None
        self._dropped = {spell(marker) for marker in dialect.dropped}
        around = [
            *filter(None, [self._cite]),
            *sorted(self._dropped),
            *sorted(self._openers | self._closers),
            *self._wrapper,
            *self._unwrapping,
        ]
        self._stops = stops_at(*around, *sorted(openers))

    def turn(self) -> Wait[None]:
        """Read the whole answer."""
        while (yield from self.tape.more()):
            if count := self.tape.clear(self._stops):
                self._speak(count)
            elif marker := (yield from self.tape.at(self._stops)):
                yield from self._meet(marker)

    def _speak(self, count: int) -> None:
        self._blank = self._blank and self.tape.peek(count).isspace()
        if self._thinking:
            self.think(count)
        else:
            self.say(count)

    def _meet(self, marker: str) -> Wait[None]:
        if marker in self._closers and (self._thinking or self._blank):
            self._switch(len(marker), thinking=False)
        elif marker in self._openers and self._blank:
            # In the midst of a text it is quoted rather than meant; at the head of reasoning it is said twice.
            self._switch(len(marker), thinking=True)
        elif marker == self._cite:
            yield from self._source(marker)
        elif marker in self._dropped:
            self.tape.skip(len(marker))
        elif marker in self._wrapper or marker in self._unwrapping:
            yield from self._wrap(marker)
        elif not (yield from self._calls(marker)):
            self._speak(len(marker))

    def _source(self, marker: str) -> Wait[None]:
        """What is cited, or a marker that stands for itself."""
        others = self._stops.literals
        if self._cites and (
            yield from self.attempt(self._cites.read(self, self._items, others, thinking=self._thinking))
        ):
            self._blank = False
        else:
            self._speak(len(marker))

    def _wrap(self, marker: str) -> Wait[None]:
        """The opener counts at the head of an answer, the closer where one was opened."""
        opens = marker == self._wrapper[0]
        if self._thinking or (not self._blank if opens else not self._wrapped):
            self._speak(len(marker))
            return
        self.tape.skip(len(marker))
        self._wrapped = opens
        if opens:
            yield from self.tape.literal("\n")

    def _switch(self, count: int, *, thinking: bool) -> None:
        self.tape.skip(count)
        self._thinking = thinking
        self._blank = True

    def _calls(self, marker: str) -> Wait[bool]:
        for frame, openers in self._frames:
            if frame.bare and (self._thinking or not self._blank):
                continue
            if marker in openers and (yield from self.attempt(frame.read(self))):
                # A call ends reasoning even where its closer is missing.
                self._thinking, self._blank = False, True
                return True
        return False
