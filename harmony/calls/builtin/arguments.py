"""Base class of the readers of one call's arguments, and the tape on which they read JSON."""

from antiphon.harmony.parsing.tape import Parser, Tape
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet
from antiphon.state.segments import Arguments, Call, Close, Segment

MAX_SETTING = (1 << 64) - 1
"""Largest value of a setting: MessagePack, in which stores keep items, has no larger integer."""


class ArgumentsReader:
    """Reads the arguments of one call, piece by piece. Its methods append segments to a list.

    They raise `MalformedText` for text that is not a call of the tool. Subclasses define `parse_arguments`, a generator
    that waits for more text where it needs it, and emit text with `emit_text`.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tape = Tape(_PLAIN_ALPHABET)
        self.segments: list[Segment] = []
        self._parser = self.parse_arguments()

    def parse_arguments(self) -> Parser[None]:
        """Parses all arguments."""
        raise NotImplementedError

    def begin(self, segments: list[Segment]) -> None:
        """Emits the start of the call."""
        segments.append(self.call)

    def feed(self, text: str, segments: list[Segment]) -> None:
        """Reads more arguments."""
        self.segments = segments
        self.tape.feed(text)
        next(self._parser, None)

    def finish(self, segments: list[Segment]) -> None:
        """Reads the end of the call, which the model has closed."""
        self.segments = segments
        self.tape.ended = True
        next(self._parser, None)

    def emit_text(self, text: str, index: int | None = None) -> None:
        """Emits text of the call, joined with the text before it in this step."""
        last = self.segments[-1] if self.segments else None
        if type(last) is Arguments and last.index == index:
            self.segments[-1] = Arguments(last.text + text, index)
        elif text or index is not None:
            self.segments.append(Arguments(text, index))

    def emit_close(self) -> None:
        """Emits the end of the item."""
        self.segments.append(Close())


class _PlainAlphabet(MarkerAlphabet):
    """Alphabet of text that no longer holds markers."""

    def __init__(self) -> None:
        pass

    def original_text(self, text: str) -> str:
        """Returns the text."""
        return text


_PLAIN_ALPHABET = _PlainAlphabet()
