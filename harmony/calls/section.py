"""Calls inside a wrapper: a section with an opener and a closer of its own, and one call after the other in it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait
from antiphon.harmony.tools import Offered, Sent


class Inner(Protocol):
    """A frame, as `harmony.dialect` knows it."""

    @property
    def openers(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def markers(self) -> Sequence[str]: ...  # noqa: D102

    def read(self, reader: TapeReader) -> Wait[None]: ...  # noqa: D102

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None: ...  # noqa: D102

    def write(self, calls: Sequence[Sent]) -> str | None: ...  # noqa: D102


class Section(Struct, frozen=True, kw_only=True):
    """`open call* close`. `also`: other openers and closers that models write for it. The closer may be missing."""

    open: str
    close: str
    inside: tuple[Inner, ...]
    also: tuple[tuple[str, str], ...] = ()
    between: str = ""
    """What stands around the calls when they are written."""

    @property
    def bare(self) -> bool:
        """It counts wherever it stands."""
        return False

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin; a call without its wrapper is one all the same."""
        return (
            self.open,
            *(pair[0] for pair in self.also),
            *(opener for frame in self.inside for opener in frame.openers),
        )

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return *(marker for pair in self._pairs for marker in pair), *(
            m for frame in self.inside for m in frame.markers
        )

    @property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return (self.open, self.close), *self.also

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read the calls from the opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        for opener, _ in self._pairs:
            if (yield from tape.literal(spell(opener))):
                break
        yield from tape.blanks()
        yield from self._first(reader)
        while not reader.broken:
            yield from tape.blanks()
            if (yield from self._closed(reader)) or not (yield from self._next(reader)):
                return

    def _closed(self, reader: TapeReader) -> Wait[bool]:
        for _, closer in self._pairs:
            if (yield from reader.tape.literal(reader.tape.alphabet.spell(closer), cut=True)):
                return True
        return False

    def _first(self, reader: TapeReader) -> Wait[None]:
        """Read the first call, under the mark of whoever reads the section. Raises `Malformed` where there is none."""
        for frame in self.inside:
            place = reader.tape.place()
            try:
                yield from frame.read(reader)
            except Malformed:
                if reader.call is not None:
                    raise
                reader.tape.rewind(place)
            else:
                return
        raise Malformed("no call in the section")

    def _next(self, reader: TapeReader) -> Wait[bool]:
        """Read another call, if one stands here."""
        for frame in self.inside:
            if (yield from reader.attempt(frame.read(reader))):
                return True
        return False

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: one call, and the closer."""
        for frame in self.inside:
            if (side := frame.grammar(offer, grammar)) is not None:
                begin = grammar.marker(frame.openers[0])
                return f"BLANKS {begin} {side} BLANKS {grammar.marker(self.close)}"
        return None

    def write(self, calls: Sequence[Sent]) -> str | None:
        """A section with these calls in it."""
        for frame in self.inside:
            if (written := frame.write(calls)) is not None:
                return f"{self.open}{self.between}{written}{self.between}{self.close}"
        return None
