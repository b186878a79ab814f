"""Frames with the tool's name in a header, and its arguments as one JSON value behind it."""

import re
from collections.abc import Sequence

from antiphon.harmony.calls.base import CountedFrame
from antiphon.harmony.calls.json_object import arguments
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Tape, Wait, stops_at
from antiphon.harmony.tools import Offered

_NATIVE = re.compile(r"(?P<name>.+):(?P<number>\d{1,6})")


class HeadedFrame(CountedFrame, frozen=True, kw_only=True):
    """`open before NAME end fence JSON fence_end close`.

    `before` may be missing in front of the name, as may the fences and the closer, and `end` where a brace follows.
    `numbered`: the header is `NAME:NUMBER`, and all of it, `before` included, is the call's own id, which the model
    wants to see again. `id_mark`: an id of no use to us may stand behind the name.
    """

    end: str
    before: str = ""
    fence: str = ""
    fence_end: str = ""
    numbered: bool = False
    id_mark: str = ""

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        texts = (self.open, self.end, self.close, self.before, self.id_mark)
        return tuple(text for text in texts if text.strip())

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.expect(spell(self.open))
        yield from tape.blanks()
        prefixed = self.before != "" and (yield from tape.literal(spell(self.before)))
        header = (yield from self._header(tape)).strip()
        native = _NATIVE.fullmatch(header) if self.numbered else None
        offer = reader.offered(native["name"] if native else header)
        reader.begin(offer, f"{self.before if prefixed else ''}{header}" if native else None)
        yield from tape.blanks()
        if self.fence:
            yield from tape.literal(self.fence)
        yield from tape.blanks()
        if not self.close or not (yield from tape.sees(spell(self.close))):
            yield from arguments(reader)
        reader.close()
        yield from self._tail(reader)

    def _header(self, tape: Tape) -> Wait[str]:
        """Skip the header and its end; what stands behind an id's mark is passed over."""
        spell = tape.alphabet.spell
        marks = [spell(mark) for mark in (self.id_mark, self.end) if mark]
        name = yield from tape.until(stops_at(*marks, "{", controls=True))
        if self.id_mark and (yield from tape.literal(spell(self.id_mark))):
            yield from tape.word(spell(self.end))
        elif not (yield from tape.literal(spell(self.end))) and tape.peek() != "{":
            raise Malformed("no end of the name")
        return name

    def _tail(self, reader: TapeReader) -> Wait[None]:
        tape = reader.tape
        mark = tape.mark()
        for literal in filter(None, (self.fence_end.strip(), tape.alphabet.spell(self.close) if self.close else "")):
            yield from tape.blanks()
            if (yield from tape.literal(literal, cut=True)):
                mark = tape.place()
            else:  # a fence may be missing before the closer
                tape.rewind(mark)
        tape.release()

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        name = grammar.text(offer.flat + (":" if self.numbered else ""))
        parts = [grammar.marker(self.before) if self.before else "", name, "/[0-9]{1,4}/" if self.numbered else ""]
        parts += [grammar.marker(self.end), grammar.text(self.fence) if self.fence else "BLANKS"]
        parts += [grammar.json(offer.parameters), grammar.text(self.fence_end) if self.fence_end else ""]
        return " ".join(filter(None, [*parts, grammar.marker(self.close) if self.close else ""]))

    def one(self, offer: Offered, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        if offer.kind == "custom":
            return None
        number = f":{place}" if self.numbered else ""
        inside = f"{self.fence}{arguments}{self.fence_end}"
        return f"{self.open}{self.before}{offer.flat}{number}{self.end}{inside}{self.close}"
