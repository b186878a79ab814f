"""Calls inside a wrapper: a section with an opener and a closer of its own, and one call after the other in it."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import ToolCall, ToolSpec


class CallSection(Struct, frozen=True, kw_only=True):
    """`open call* close`. `also`: other openers and closers that models write for it. The closer may be missing."""

    open: str
    close: str
    calls: tuple[CallFormat, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    padding: str = ""
    """What stands around the calls when they are written."""

    @property
    def head_only(self) -> bool:
        """It counts wherever it stands."""
        return False

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin; a call without its wrapper is one all the same."""
        return (
            self.open,
            *(pair[0] for pair in self.aliases),
            *(opener for frame in self.calls for opener in frame.openers),
        )

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return *(marker for pair in self._marker_pairs for marker in pair), *(
            m for frame in self.calls for m in frame.markers
        )

    @property
    def _marker_pairs(self) -> tuple[tuple[str, str], ...]:
        return (self.open, self.close), *self.aliases

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read the calls from the opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        for opener, _ in self._marker_pairs:
            if (yield from tape.skip_literal(spell(opener))):
                break
        yield from tape.skip_whitespace()
        yield from self._read_first(reader)
        while not reader.call_failed:
            yield from tape.skip_whitespace()
            if (yield from self._skip_closer(reader)) or not (yield from self._read_next(reader)):
                return

    def _skip_closer(self, reader: TapeReader) -> Parser[bool]:
        for _, closer in self._marker_pairs:
            if (yield from reader.tape.skip_literal(reader.tape.alphabet.tape_text(closer), cut=True)):
                return True
        return False

    def _read_first(self, reader: TapeReader) -> Parser[None]:
        """Read the first call, under the mark of whoever reads the section. Raises `Malformed` where there is none."""
        for frame in self.calls:
            place = reader.tape.position()
            try:
                yield from frame.read_calls(reader)
            except MalformedText:
                if reader.open_call is not None:
                    raise
                reader.tape.rewind(place)
            else:
                return
        raise MalformedText("no call in the section")

    def _read_next(self, reader: TapeReader) -> Parser[bool]:
        """Read another call, if one stands here."""
        for frame in self.calls:
            if (yield from reader.try_parse(frame.read_calls(reader))):
                return True
        return False

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener: one call, and the closer."""
        for frame in self.calls:
            if (side := frame.grammar_rule(offer, grammar)) is not None:
                begin = grammar.marker_symbol(frame.openers[0])
                return f"BLANKS {begin} {side} BLANKS {grammar.marker_symbol(self.close)}"
        return None

    def write_calls(self, calls: Sequence[ToolCall]) -> str | None:
        """A section with these calls in it."""
        for frame in self.calls:
            if (written := frame.write_calls(calls)) is not None:
                return f"{self.open}{self.padding}{written}{self.padding}{self.close}"
        return None
