"""The frame whose arguments are a tree of elements, named after the parameters: MiniMax M3's.

What an element holds is told by its schema, and where that is silent by what stands in it: other elements, or text.
What was said is never revised: strings are said as they come, everything else when its element closes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.harmony.calls.base import DelimitedCall, list_parameters
from antiphon.harmony.calls.xml_tags import parse_named_tag, read_whole_value
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tools import INPUT, ToolSpec

MAX_DEPTH = 32
_NAME = re.compile(r"[^\s<>/=\ud800-\udfff]{1,128}")
_ITEM = "item"


class XmlElementCall(DelimitedCall, frozen=True, kw_only=True):
    """`mark<invoke name="NAME"> mark<key>VALUE mark</key> … mark</invoke>`: a mark stands before each tag.

    A value is text, or elements of its own: `item` for those of a list. Lists and objects may also be JSON.
    """

    open: str = ""
    tag_prefix: str

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return (f"{self.tag_prefix}<invoke",)

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return (*self.openers, f"{self.tag_prefix}</invoke>", self.tag_prefix)

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(spell(self.openers[0]))
        yield from tape.expect(" name=")
        offer = reader.require_tool(parse_named_tag((yield from tape.skip_word(">")))[0])
        reader.begin_call(offer)
        if offer.kind == "custom":
            yield from self._read_custom(reader)
        else:
            root = offer.parameters or {}
            yield from _ElementTree(reader, spell(self.tag_prefix), root).read_members("invoke", root)
        reader.close_item()

    def _read_custom(self, reader: TapeReader) -> Parser[None]:
        """The text of the one parameter there is."""
        tape, mark = reader.tape, reader.tape.alphabet.tape_text(self.tag_prefix)
        yield from tape.skip_whitespace()
        yield from tape.expect(f"{mark}<{INPUT}>")
        yield from _read_text(reader, f"{mark}</{INPUT}>", reader.take_arguments)
        yield from tape.skip_whitespace()
        yield from tape.expect(f"{mark}</invoke>")

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener: the parameters in the schema's order, the required ones always."""
        sides = []
        for name, part, needed in list_parameters(offer):
            if not _NAME.fullmatch(name):
                return None
            tag = f"{grammar.marker_symbol(self.tag_prefix)} {grammar.literal_text(f'<{name}>')}"
            side = f"{tag} {self._value_rule(name, part, offer, grammar)}"
            sides.append(side if needed else f"({side})?")
        head = grammar.literal_text(f' name="{offer.model_name}">')
        return " ".join([head, *sides, grammar.marker_symbol(self.tag_prefix), grammar.literal_text("</invoke>")])

    def _value_rule(self, name: str, part: object, offer: ToolSpec, grammar: GrammarBuilder) -> str:
        """A value of this schema, and its closing tag."""
        close = f"{grammar.marker_symbol(self.tag_prefix)} {grammar.literal_text(f'</{name}>')}"
        stop = f"{self.tag_prefix}</{name}>"
        if offer.kind == "custom":
            return grammar.custom_input(offer, stop)
        root = offer.parameters or {}
        own, allowed = schema_values.resolve_schema(part, root), schema_values.allowed_types(part, root)
        if allowed == schema_values.STRING_ONLY and isinstance(choices := own.get("enum"), list) and choices:
            return f"({' | '.join(grammar.literal_text(str(choice)) for choice in choices)}) {close}"
        if not allowed or "string" in allowed:
            return (
                grammar.constrained_text(own, stop)
                if allowed == schema_values.STRING_ONLY
                else grammar.text_until(stop, head=[f"{self.tag_prefix}<"])
            )
        return f"{grammar.json_value(schema_values.self_contained(own, root))} {close}"

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as a model would write it, but for lists and objects, which are told as JSON."""
        members = {INPUT: arguments} if offer.kind == "custom" else json.loads(arguments or "{}")
        tags = "".join(
            f"{self.tag_prefix}<{name}>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            f"{self.tag_prefix}</{name}>"
            for name, value in members.items()
        )
        return f'{self.openers[0]} name="{offer.model_name}">{tags}{self.tag_prefix}</invoke>'


class _ElementTree:
    """Says the elements of one call as JSON."""

    def __init__(self, reader: TapeReader, mark: str, root: Mapping[str, Any]) -> None:
        self._reader, self._mark, self._root = reader, mark, root

    def read_members(self, name: str, schema: object, depth: int = 0) -> Parser[None]:
        """Read elements up to the closing tag of what they stand in, and say them as an object's members."""
        reader, tape = self._reader, self._reader.tape
        parts = schema_values.resolve_schema(schema, self._root).get("properties")
        said: set[str] = set()
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal(f"{self._mark}</{name}>")):
            key = yield from self._read_tag()
            if key in said:
                yield from _read_text(reader, f"{self._mark}</{key}>", tape.skip)
            else:
                reader.emit_arguments(("{" if not said else ", ") + schema_values.encode_string(key) + ": ")
                yield from self._read_value(key, parts.get(key) if isinstance(parts, Mapping) else None, depth + 1)
            said.add(key)
            yield from tape.skip_whitespace()
        if said or depth:
            reader.emit_arguments("}" if said else "{}")

    def _read_items(self, name: str, schema: object, depth: int) -> Parser[None]:
        """Read elements as those of a list."""
        reader, tape = self._reader, self._reader.tape
        part = schema_values.resolve_schema(schema, self._root).get("items")
        first = True
        while not (yield from tape.skip_literal(f"{self._mark}</{name}>")):
            key = yield from self._read_tag()
            reader.emit_arguments("[" if first else ", ")
            yield from self._read_value(key, part, depth + 1)
            first = False
            yield from tape.skip_whitespace()
        reader.emit_arguments("[]" if first else "]")

    def _read_tag(self) -> Parser[str]:
        """Skip an opening tag and return its name. Raises `Malformed`."""
        tape = self._reader.tape
        yield from tape.expect(f"{self._mark}<")
        name = yield from tape.skip_word(">")
        if not _NAME.fullmatch(name):
            raise MalformedText(name)
        return name

    def _read_value(self, name: str, schema: object, depth: int) -> Parser[None]:
        """Read what stands in an element, and its closing tag."""
        reader, tape = self._reader, self._reader.tape
        if depth > MAX_DEPTH:
            raise MalformedText("too deep")
        allowed, close = schema_values.allowed_types(schema, self._root), f"{self._mark}</{name}>"
        if allowed != schema_values.STRING_ONLY and (yield from self._has_elements()):
            yield from tape.skip_whitespace()
            listed = "object" not in allowed and (yield from tape.stands_here(f"{self._mark}<{_ITEM}>"))
            if "array" in allowed or listed:
                yield from self._read_items(name, schema, depth)
            else:
                yield from self.read_members(name, schema, depth)
            return
        yield from tape.wait_more()
        if schema_values.can_stream_as_string(allowed, tape.peek()):
            reader.emit_arguments('"')
            yield from _read_text(
                reader,
                close,
                lambda count: reader.emit_arguments(
                    schema_values.encode_string(tape.peek_original(count))[1:-1], count
                ),
            )
            reader.emit_arguments('"')
        else:
            text = yield from read_whole_value(reader, lambda take: _read_text(reader, close, take))
            reader.emit_arguments(schema_values.cast_value(text, allowed))

    def _has_elements(self) -> Parser[bool]:
        """Whether an element stands here, behind blanks, and not the end of this one; nothing is skipped."""
        tape = self._reader.tape
        mark = tape.mark()
        yield from tape.skip_whitespace()
        found = (yield from tape.stands_here(f"{self._mark}<")) and not (yield from tape.stands_here(f"{self._mark}</"))
        tape.rewind(mark)
        tape.release()
        return found


def _read_text(reader: TapeReader, close: str, take: Callable[[int], None]) -> Parser[None]:
    """Give `take` the lengths of a text's pieces, up to its closing tag, which is skipped. Raises `Malformed`."""
    tape = reader.tape
    stops = literals(close, controls=True)
    while (yield from tape.wait_more()):
        if count := tape.count_clear(stops):
            take(count)
        elif stop := (yield from tape.match_literal(stops)):
            if stop == close:
                tape.skip(len(close))
                return
            if stop != close[0]:
                break
            take(1)
    raise MalformedText("no end")
