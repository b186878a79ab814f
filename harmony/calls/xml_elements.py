"""Call format whose arguments are a tree of elements, named after the parameters, as MiniMax M3 writes them.

The schema decides what an element contains; where the schema leaves it open, the content does: other elements, or
text. Emitted text is never revised: strings are emitted as they arrive, other values when their element closes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.harmony.calls.base import CallFormat, list_parameters
from antiphon.harmony.calls.xml_tags import parse_named_tag, read_whole_value
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tools import INPUT, ToolSpec

MAX_ELEMENT_DEPTH = 32
_NAME = re.compile(r"[^\s<>/=\ud800-\udfff]{1,128}")
_ITEM = "item"


class XmlElementCall(CallFormat, frozen=True, kw_only=True):
    """`P<invoke name="NAME"> P<key>VALUE P</key> … P</invoke>`, with `tag_prefix` (P) before each tag.

    A value is text, or elements of its own: `item` for those of a list. Lists and objects may also be JSON.
    """

    open: str = ""
    tag_prefix: str

    @property
    def openers(self) -> Sequence[str]:
        """Markers with which a call can begin."""
        return (f"{self.tag_prefix}<invoke",)

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included."""
        return (*self.openers, f"{self.tag_prefix}</invoke>", self.tag_prefix)

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(tape_text(self.openers[0]))
        yield from tape.expect(" name=")
        tool = reader.require_tool(parse_named_tag((yield from tape.skip_word(">")))[0])
        reader.begin_call(tool)
        if tool.kind == "custom":
            yield from self._read_custom(reader)
        else:
            root = tool.parameters or {}
            yield from _ElementTree(reader, tape_text(self.tag_prefix), root).read_members("invoke", root)
        reader.close_item()

    def _read_custom(self, reader: TapeReader) -> Parser[None]:
        """Parses the text of the only parameter."""
        tape, prefix = reader.tape, reader.tape.alphabet.tape_text(self.tag_prefix)
        yield from tape.skip_whitespace()
        yield from tape.expect(f"{prefix}<{INPUT}>")
        yield from _read_text(reader, f"{prefix}</{INPUT}>", reader.take_arguments)
        yield from tape.skip_whitespace()
        yield from tape.expect(f"{prefix}</invoke>")

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener: the parameters in schema order, optional ones included."""
        parameters = []
        for name, part, required in list_parameters(tool):
            if not _NAME.fullmatch(name):
                return None
            tag = f"{grammar.marker_symbol(self.tag_prefix)} {grammar.literal_text(f'<{name}>')}"
            rule = f"{tag} {self._value_rule(name, part, tool, grammar)}"
            parameters.append(rule if required else f"({rule})?")
        prefix = grammar.literal_text(f' name="{tool.model_name}">')
        return " ".join(
            [prefix, *parameters, grammar.marker_symbol(self.tag_prefix), grammar.literal_text("</invoke>")]
        )

    def _value_rule(self, name: str, part: object, tool: ToolSpec, grammar: GrammarBuilder) -> str:
        """Returns the rule of a value of this schema, with its closing tag."""
        close = f"{grammar.marker_symbol(self.tag_prefix)} {grammar.literal_text(f'</{name}>')}"
        stop = f"{self.tag_prefix}</{name}>"
        if tool.kind == "custom":
            return grammar.custom_input(tool, stop)
        root = tool.parameters or {}
        resolved, allowed = schema_values.resolve_schema(part, root), schema_values.allowed_types(part, root)
        if allowed == schema_values.STRING_ONLY and isinstance(choices := resolved.get("enum"), list) and choices:
            return f"({' | '.join(grammar.literal_text(str(choice)) for choice in choices)}) {close}"
        if not allowed or "string" in allowed:
            return (
                grammar.constrained_text(resolved, stop)
                if allowed == schema_values.STRING_ONLY
                else grammar.text_until(stop, head=[f"{self.tag_prefix}<"])
            )
        return f"{grammar.json_value(schema_values.self_contained(resolved, root))} {close}"

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call as a model would, but with lists and objects as JSON."""
        members = {INPUT: arguments} if tool.kind == "custom" else json.loads(arguments or "{}")
        tags = "".join(
            f"{self.tag_prefix}<{name}>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            f"{self.tag_prefix}</{name}>"
            for name, value in members.items()
        )
        return f'{self.openers[0]} name="{tool.model_name}">{tags}{self.tag_prefix}</invoke>'


class _ElementTree:
    """Emits the elements of one call as JSON."""

    def __init__(self, reader: TapeReader, mark: str, root: Mapping[str, Any]) -> None:
        self._reader, self._mark, self._root = reader, mark, root

    def read_members(self, name: str, schema: object, depth: int = 0) -> Parser[None]:
        """Parses elements up to the closing tag `name`, and emits them as the members of an object."""
        reader, tape = self._reader, self._reader.tape
        properties = schema_values.resolve_schema(schema, self._root).get("properties")
        keys: set[str] = set()
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal(f"{self._mark}</{name}>")):
            key = yield from self._read_tag()
            if key in keys:
                yield from _read_text(reader, f"{self._mark}</{key}>", tape.skip)
            else:
                reader.emit_arguments(("{" if not keys else ", ") + schema_values.encode_string(key) + ": ")
                yield from self._read_value(
                    key, properties.get(key) if isinstance(properties, Mapping) else None, depth + 1
                )
            keys.add(key)
            yield from tape.skip_whitespace()
        if keys or depth:
            reader.emit_arguments("}" if keys else "{}")

    def _read_items(self, name: str, schema: object, depth: int) -> Parser[None]:
        """Parses elements up to the closing tag `name`, and emits them as the items of a list."""
        reader, tape = self._reader, self._reader.tape
        item_schema = schema_values.resolve_schema(schema, self._root).get("items")
        first = True
        while not (yield from tape.skip_literal(f"{self._mark}</{name}>")):
            key = yield from self._read_tag()
            reader.emit_arguments("[" if first else ", ")
            yield from self._read_value(key, item_schema, depth + 1)
            first = False
            yield from tape.skip_whitespace()
        reader.emit_arguments("[]" if first else "]")

    def _read_tag(self) -> Parser[str]:
        """Skips an opening tag and returns its name. Raises `MalformedText`."""
        tape = self._reader.tape
        yield from tape.expect(f"{self._mark}<")
        name = yield from tape.skip_word(">")
        if not _NAME.fullmatch(name):
            raise MalformedText(name)
        return name

    def _read_value(self, name: str, schema: object, depth: int) -> Parser[None]:
        """Parses the content of an element, and its closing tag."""
        reader, tape = self._reader, self._reader.tape
        if depth > MAX_ELEMENT_DEPTH:
            raise MalformedText("too deep")
        allowed, close = schema_values.allowed_types(schema, self._root), f"{self._mark}</{name}>"
        if allowed != schema_values.STRING_ONLY and (yield from self._has_elements()):
            yield from tape.skip_whitespace()
            is_list = "object" not in allowed and (yield from tape.matches_here(f"{self._mark}<{_ITEM}>"))
            if "array" in allowed or is_list:
                yield from self._read_items(name, schema, depth)
            else:
                yield from self.read_members(name, schema, depth)
            return
        yield from tape.wait_more()
        if schema_values.can_stream_as_string(allowed, tape.peek()):
            reader.emit_arguments('"')
            yield from _read_text(reader, close, reader.emit_escaped)
            reader.emit_arguments('"')
        else:
            text = yield from read_whole_value(reader, lambda take: _read_text(reader, close, take))
            reader.emit_arguments(schema_values.cast_value(text, allowed))

    def _has_elements(self) -> Parser[bool]:
        """Tells whether a child element is next, after any blanks. Skips nothing."""
        tape = self._reader.tape
        mark = tape.mark()
        yield from tape.skip_whitespace()
        found = (yield from tape.matches_here(f"{self._mark}<")) and not (
            yield from tape.matches_here(f"{self._mark}</")
        )
        tape.rewind(mark)
        tape.release()
        return found


def _read_text(reader: TapeReader, close: str, take: Callable[[int], None]) -> Parser[None]:
    """Passes the lengths of a text's pieces to `take`, up to its closing tag, which is skipped.

    Raises `MalformedText` if the tag is missing.
    """
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
