"""Base classes of call formats: an opener, a closer, and one or more calls between them."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Parser, Tape
from antiphon.harmony.tools import INPUT, ToolCall, ToolSpec

BRACKET_OPENERS = ("{", "[", "```json")


def list_parameters(tool: ToolSpec) -> list[tuple[str, object, bool]]:
    """Returns the parameters in a tool's schema: name, schema, and whether the parameter is required."""
    if tool.kind == "custom":
        return [(INPUT, {"type": "string"}, True)]
    properties, required = ((tool.parameters or {}).get(keyword) for keyword in ("properties", "required"))
    required_names = required if isinstance(required, list) else []
    return (
        [(name, part, name in required_names) for name, part in properties.items()]
        if isinstance(properties, Mapping)
        else []
    )


class CallFormat(Struct, frozen=True, kw_only=True):
    """Syntax of tool calls: an opener and a closer, which may be missing. `separator` is written between two calls."""

    open: str
    close: str = ""
    separator: str = "\n"

    @property
    def head_only(self) -> bool:
        """True if the opener is so common in text that it counts only at the start of an answer."""
        return self.open in BRACKET_OPENERS

    @property
    def openers(self) -> Sequence[str]:
        """Markers with which a call can begin."""
        return (self.open,)

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included. Brackets are not markers."""
        return tuple(marker for marker in (self.open, self.close) if marker and marker not in BRACKET_OPENERS)

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener.

        Raises `MalformedText`. Before `begin_call`, the text is not a call; after it, the call is malformed.
        """
        raise NotImplementedError

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the first opener; None if the format cannot express calls of the tool."""
        raise NotImplementedError

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call, or its element of a list, as a model would. Returns None if the format cannot express it."""
        raise NotImplementedError

    def write_calls(self, calls: Sequence[ToolCall], num_before: int = 0) -> str | None:
        """Writes calls as a model would. `num_before`: number of calls in the conversation before these.

        Returns None if the format cannot express one of them.
        """
        texts = [text for text in self._write_each(calls, num_before) if text is not None]
        return self.join_calls(texts) if len(texts) == len(calls) else None

    def _write_each(self, calls: Sequence[ToolCall], num_before: int) -> list[str | None]:  # noqa: ARG002 - most formats number no calls
        return [self.write_call(*call) for call in calls]

    def join_calls(self, written: Sequence[str]) -> str:
        """Joins calls that were written one by one."""
        return self.separator.join(written)

    def skip_closer(self, reader: TapeReader) -> Parser[None]:
        """Skips blanks and the closer. Skips nothing if the closer is missing or the call has failed."""
        tape = reader.tape
        if not self.close or reader.call_failed:
            return
        mark = tape.mark()
        yield from tape.skip_whitespace()
        if not (yield from tape.skip_literal(tape.alphabet.tape_text(self.close), cut=True)):
            tape.rewind(mark)
        tape.release()


class NumberedCall(CallFormat, frozen=True, kw_only=True):
    """Base class of formats that number their calls."""

    @property
    def counts_over_conversation(self) -> bool:
        """True if the numbers continue from turn to turn; otherwise they begin anew in each."""
        return False

    def _write_each(self, calls: Sequence[ToolCall], num_before: int) -> list[str | None]:
        start = num_before if self.counts_over_conversation else 0
        return [self.write_call(*call, index) for index, call in enumerate(calls, start)]

    def write_call(self, tool: ToolSpec, arguments: str, index: int = 0) -> str | None:
        """Writes a call as a model would. `index`: number of calls written before it."""
        raise NotImplementedError


class ListCall(CallFormat, frozen=True, kw_only=True):
    """Base class of formats that hold all calls of a turn in one list: `open [call, call] close`.

    If the opener is the bracket itself, the list counts only at the start of an answer. Without `brackets`, each call
    is on a line of its own.
    """

    separator: str = ", "
    brackets: bool = True

    @property
    def brackets_around(self) -> tuple[str, str]:
        """Texts between the markers and the calls."""
        return ("" if self.head_only else "[", "]") if self.brackets else ("\n", "\n")

    def join_calls(self, written: Sequence[str]) -> str:
        """Joins calls that were written one by one."""
        begin, end = self.brackets_around
        return f"{self.open}{begin}{self.separator.join(written)}{end}{self.close}"

    @property
    def allows_bare_calls(self) -> bool:
        """True if several calls may follow each other without brackets."""
        return False

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Parses one call."""
        raise NotImplementedError

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses the calls, beginning at the opener."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        yield from tape.skip_whitespace()
        bracket = self.head_only or (yield from tape.skip_literal("["))
        yield from tape.skip_whitespace()
        yield from self.read_one_call(reader)
        while (bracket or self.allows_bare_calls) and not reader.call_failed:
            yield from tape.skip_whitespace()
            if bracket and (yield from self._skip_bracket(tape)):
                break
            if not (yield from reader.try_parse(self._read_next(reader))):
                break
        yield from self.skip_closer(reader)

    def _skip_bracket(self, tape: Tape) -> Parser[bool]:
        """Skips the closing bracket, and a comma before it. Skips nothing if it is not here."""
        mark = tape.mark()
        if (yield from tape.skip_literal(",")):
            yield from tape.skip_whitespace()
        found = yield from tape.skip_literal("]", cut=True)
        if not found:
            tape.rewind(mark)
        tape.release()
        return found

    def _read_next(self, reader: TapeReader) -> Parser[None]:
        yield from reader.tape.skip_literal(",")
        yield from reader.tape.skip_whitespace()
        yield from self.read_one_call(reader)
