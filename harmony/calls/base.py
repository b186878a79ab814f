"""What frames have in common: an opener, a closer, and calls one after the other."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Parser
from antiphon.harmony.tools import INPUT, ToolCall, ToolSpec

BRACKET_OPENERS = ("{", "[", "```json")


def list_parameters(offer: ToolSpec) -> list[tuple[str, object, bool]]:
    """The parameters of a tool as its schema has them: name, schema, and whether it is required."""
    if offer.kind == "custom":
        return [(INPUT, {"type": "string"}, True)]
    properties, required = ((offer.parameters or {}).get(word) for word in ("properties", "required"))
    needed = required if isinstance(required, list) else []
    return (
        [(name, part, name in needed) for name, part in properties.items()] if isinstance(properties, Mapping) else []
    )


class CallFormat(Protocol):
    """A way of writing a call."""

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of, openers among them."""

    @property
    def head_only(self) -> bool:
        """Whether its openers are too common to count anywhere but at the head of an answer."""
        ...

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on. Raises `Malformed`: before `begin`, for text; after, for a ruined call."""

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the first opener in a call of this tool; None for a tool that this frame is not for."""

    def write_calls(self, calls: Sequence[ToolCall]) -> str | None:
        """Calls as a model would write them; None if this frame is not for one of these tools."""


class DelimitedCall(Struct, frozen=True, kw_only=True):
    """What all frames share that stand between an opener and a closer, which may be missing.

    `apart` is what stands between two calls.
    """

    open: str
    close: str = ""
    separator: str = "\n"

    @property
    def head_only(self) -> bool:
        """Whether the opener is too common to count anywhere but at the head of an answer."""
        return self.open in BRACKET_OPENERS

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return (self.open,)

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return tuple(marker for marker in (self.open, self.close) if marker and marker not in BRACKET_OPENERS)

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as a model would write it, or what of it is its own in a list; None for a tool it is not for."""
        raise NotImplementedError

    def write_calls(self, calls: Sequence[ToolCall]) -> str | None:
        """Calls as a model would write them; None if they cannot be written so."""
        written = [call for call in self._write_each(calls) if call is not None]
        return self.join_calls(written) if len(written) == len(calls) else None

    def _write_each(self, calls: Sequence[ToolCall]) -> list[str | None]:
        return [self.write_call(*sent) for sent in calls]

    def join_calls(self, written: Sequence[str]) -> str:
        """Calls that were written one by one."""
        return self.separator.join(written)

    def skip_closer(self, reader: TapeReader) -> Parser[None]:
        """Skip the closer, if it stands here; nothing else is skipped then, and nothing where a call was ruined."""
        tape = reader.tape
        if not self.close or reader.call_failed:
            return
        mark = tape.mark()
        yield from tape.skip_whitespace()
        if not (yield from tape.skip_literal(tape.alphabet.tape_text(self.close), cut=True)):
            tape.rewind(mark)
        tape.release()


class NumberedCall(DelimitedCall, frozen=True, kw_only=True):
    """What those share that count their calls."""

    def _write_each(self, calls: Sequence[ToolCall]) -> list[str | None]:
        return [self.write_call(*sent, place) for place, sent in enumerate(calls)]

    def write_call(self, offer: ToolSpec, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        raise NotImplementedError


class ListCall(DelimitedCall, frozen=True, kw_only=True):
    """What those share that hold all calls of a turn in one list: `open [call, call] close`.

    `bare`: there is no opener but the bracket, so it counts at the head of an answer only.
    """

    separator: str = ", "

    @property
    def brackets_around(self) -> tuple[str, str]:
        """What stands around the calls within the markers."""
        return ("" if self.head_only else "[", "]")

    def join_calls(self, written: Sequence[str]) -> str:
        """Calls that were written one by one."""
        begin, end = self.brackets_around
        return f"{self.open}{begin}{self.separator.join(written)}{end}{self.close}"

    @property
    def allows_bare_calls(self) -> bool:
        """Whether several calls may stand there without brackets."""
        return False

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Read one call."""
        raise NotImplementedError

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read the calls from the opener on."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        yield from tape.skip_whitespace()
        bracket = self.head_only or (yield from tape.skip_literal("["))
        yield from tape.skip_whitespace()
        yield from self.read_one_call(reader)
        while (bracket or self.allows_bare_calls) and not reader.call_failed:
            yield from tape.skip_whitespace()
            if bracket and (yield from tape.skip_literal("]", cut=True)):
                break
            if not (yield from reader.try_parse(self._read_next(reader))):
                break
        yield from self.skip_closer(reader)

    def _read_next(self, reader: TapeReader) -> Parser[None]:
        yield from reader.tape.skip_literal(",")
        yield from reader.tape.skip_whitespace()
        yield from self.read_one_call(reader)
