"""What frames have in common: an opener, a closer, and calls one after the other."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Wait
from antiphon.harmony.tools import Offered, Sent

BRACKETS = ("{", "[", "```json")
INPUT = "input"
"""The member that holds a custom tool's text where a model writes JSON for it."""


def parameters(offer: Offered) -> list[tuple[str, object, bool]]:
    """The parameters of a tool as its schema has them: name, schema, and whether it is required."""
    if offer.kind == "custom":
        return [(INPUT, {"type": "string"}, True)]
    properties, required = ((offer.parameters or {}).get(word) for word in ("properties", "required"))
    needed = required if isinstance(required, list) else []
    return (
        [(name, part, name in needed) for name, part in properties.items()] if isinstance(properties, Mapping) else []
    )


class Between(Struct, frozen=True, kw_only=True):
    """What all frames share that stand between an opener and a closer, which may be missing.

    `apart` is what stands between two calls.
    """

    open: str
    close: str = ""
    apart: str = "\n"

    @property
    def bare(self) -> bool:
        """Whether the opener is too common to count anywhere but at the head of an answer."""
        return self.open in BRACKETS

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return (self.open,)

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return tuple(marker for marker in (self.open, self.close) if marker and marker not in BRACKETS)

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as a model would write it, or what of it is its own in a list; None for a tool it is not for."""
        raise NotImplementedError

    def write(self, calls: Sequence[Sent]) -> str | None:
        """Calls as a model would write them; None if they cannot be written so."""
        written = [call for call in self._each(calls) if call is not None]
        return self.together(written) if len(written) == len(calls) else None

    def _each(self, calls: Sequence[Sent]) -> list[str | None]:
        return [self.one(*sent) for sent in calls]

    def together(self, written: Sequence[str]) -> str:
        """Calls that were written one by one."""
        return self.apart.join(written)

    def finish(self, reader: TapeReader) -> Wait[None]:
        """Skip the closer, if it stands here; nothing else is skipped then, and nothing where a call was ruined."""
        tape = reader.tape
        if not self.close or reader.broken:
            return
        mark = tape.mark()
        yield from tape.blanks()
        if not (yield from tape.literal(tape.alphabet.spell(self.close), cut=True)):
            tape.rewind(mark)
        tape.release()


class CountedFrame(Between, frozen=True, kw_only=True):
    """What those share that count their calls."""

    def _each(self, calls: Sequence[Sent]) -> list[str | None]:
        return [self.one(*sent, place) for place, sent in enumerate(calls)]

    def one(self, offer: Offered, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        raise NotImplementedError


class ListFrame(Between, frozen=True, kw_only=True):
    """What those share that hold all calls of a turn in one list: `open [call, call] close`.

    `bare`: there is no opener but the bracket, so it counts at the head of an answer only.
    """

    apart: str = ", "

    @property
    def around(self) -> tuple[str, str]:
        """What stands around the calls within the markers."""
        return ("" if self.bare else "[", "]")

    def together(self, written: Sequence[str]) -> str:
        """Calls that were written one by one."""
        begin, end = self.around
        return f"{self.open}{begin}{self.apart.join(written)}{end}{self.close}"

    @property
    def loose(self) -> bool:
        """Whether several calls may stand there without brackets."""
        return False

    def call(self, reader: TapeReader) -> Wait[None]:
        """Read one call."""
        raise NotImplementedError

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read the calls from the opener on."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.spell(self.open))
        yield from tape.blanks()
        bracket = self.bare or (yield from tape.literal("["))
        yield from tape.blanks()
        yield from self.call(reader)
        while (bracket or self.loose) and not reader.broken:
            yield from tape.blanks()
            if bracket and (yield from tape.literal("]", cut=True)):
                break
            if not (yield from reader.attempt(self._another(reader))):
                break
        yield from self.finish(reader)

    def _another(self, reader: TapeReader) -> Wait[None]:
        yield from reader.tape.literal(",")
        yield from reader.tape.blanks()
        yield from self.call(reader)
