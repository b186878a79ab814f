"""Frames whose arguments are key and value in tags, put into JSON as they come.

What was said of the arguments is never revised: strings are said as they are read, everything else once its end is
seen. A value may hold any of the tags: one counts only where what follows it goes on as a call does.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.harmony.calls.base import NumberedCall, list_parameters
from antiphon.harmony.grammar import GrammarBuilder, one_then
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, literals
from antiphon.harmony.tools import INPUT, ToolSpec

_LINE = "\n"
_MARKS = """[ \\t]*["']?"""


WRAPPER_PARAMETER = "arguments"
_NON_STRING_TYPES = frozenset({"number", "integer", "boolean", "null", "object", "array"})
_TYPES_BY_ATTRIBUTE = {
    "true": schema_values.STRING_ONLY,
    "string": schema_values.STRING_ONLY,
    "false": _NON_STRING_TYPES,
}
_NAMED = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"']\S*))(?P<rest>.*)""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*["']?([^"'\s]*)["']?""")


def parse_named_tag(text: str) -> tuple[str, dict[str, str]]:
    """The name in a tag, with quotation marks or without, and the attributes behind it."""
    found = _NAMED.fullmatch(text)
    if found is None:
        return text, {}
    name = next(group for group in (found["double"], found["single"], found["bare"]) if group is not None)
    return name, dict(_ATTRIBUTE.findall(found["rest"]))


def read_whole_value(reader: TapeReader, each: Callable[[Callable[[int], None]], Parser[None]]) -> Parser[str]:
    """Read a value that is said when it has ended; of one that does not end, say what there is. Raises `Malformed`.

    `each` reads to its end and gives the lengths of its pieces. JSON is read as JSON: a string in it may hold any tag.
    """
    tape, held = reader.tape, list[str]()

    def hold(count: int) -> None:
        held.append(tape.peek_original(count))
        tape.skip(count)

    if tape.peek() in ("[", "{"):
        mark = tape.mark()
        try:
            yield from json_stream.read_value(tape, hold)
        except MalformedText:
            tape.rewind(mark)
            held.clear()
        tape.release()
    try:
        yield from each(hold)
    except MalformedText:
        reader.emit_arguments("".join(held))
        raise
    return "".join(held)


class XmlTagCall(NumberedCall, frozen=True, kw_only=True):
    """`open head NAME end (key NAME key_end value VALUE value_end)* foot close`; open, close, value_end may be missing.

    Names may stand in quotation marks; `quote` is the one they are written with. `typed` names an attribute that says
    whether a value is a string (`true`) or JSON (`false`); `type` says which type of JSON. `counted` names an attribute
    of the call that counts from 1. `gap` belongs to the tags at either end of a value. Without
    `end`, the tool's name goes to the end of its line or to the first tag; without `value_end`'s tag, a new line ends a
    value.
    """

    head: str
    foot: str
    key: str
    value_end: str
    end: str = ">"
    key_end: str = ">"
    value: str = ""
    quote: str = ""
    type_attribute: str = ""
    count_attribute: str = ""
    gap: str = "\n"
    outer_closers: tuple[str, ...] = ()
    """What closes the section around it: a call whose own end is missing ends there."""

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return tuple(filter(None, (self.open, self.head)))

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        tags = (self.open, self.close, self.head, self.foot, self.key, self.value_end, self.value)
        return tuple(tag for tag in (*tags, self.end, self.key_end) if len(tag) > 1)

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.skip_literal(spell(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(spell(self.head))
        offer = reader.require_tool(self.parse_tag((yield from self._read_name(tape)))[0])
        reader.begin_call(offer)
        values = TagValueReader(reader, self, offer)
        while not (yield from self._skip_foot(tape)):
            yield from tape.expect(spell(self.key))
            yield from values.read_value(*self.parse_tag((yield from tape.skip_word(spell(self.key_end)))))
        values.close_object()
        reader.close_item()
        if self.close:
            yield from tape.skip_whitespace()
            yield from tape.skip_literal(spell(self.close), cut=True)

    def _read_name(self, tape: Tape) -> Parser[str]:
        """Skip the tool's name, and what ends it unless that is a tag that follows."""
        spell = tape.alphabet.tape_text
        if self.end:
            return (yield from tape.skip_word(spell(self.end)))
        yield from tape.skip_whitespace()
        name = yield from tape.skip_until(literals("\n", spell(self.key), spell(self.foot), controls=True))
        return name.strip()

    def _skip_foot(self, tape: Tape) -> Parser[bool]:
        """Skip the foot, or see what may stand in its place: a closer, the next call, the natural end of the answer."""
        yield from tape.skip_whitespace()
        spell = tape.alphabet.tape_text
        if not (yield from tape.wait_more()):
            return tape.natural
        if (yield from tape.skip_literal(spell(self.foot))):
            return True
        for text in filter(None, (self.close, self.open, self.head, *self.outer_closers)):
            if (yield from tape.stands_here(spell(text))):
                return True
        return False

    @property
    def trims_newlines(self) -> bool:
        """Whether a newline at either end of a value belongs to its tags."""
        return self.gap != "" and not self.value

    def parse_tag(self, text: str) -> tuple[str, dict[str, str]]:
        """The name in a tag, and the attributes behind it where such tags have any."""
        return parse_named_tag(text) if self.quote or self.type_attribute else (text.strip().strip("\"'"), {})

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener: the parameters in the schema's order, the required ones always."""
        sides = []
        for name, part, needed in list_parameters(offer):
            side = self._parameter_rule(name, part, offer, grammar)
            sides.append(side if needed else f"({side})?")
        head = [grammar.marker_symbol(self.head)] if self.open else []
        head += [
            grammar.literal_text(self._quote_name(offer.model_name)),
            *self._count_rule(grammar),
            grammar.marker_symbol(self.end),
        ]
        head += [grammar.literal_text(self.gap if self.end else _LINE)] if self.gap or not self.end else []
        parts = [*(["BLANKS"] if self.open else []), *filter(None, head), *sides, grammar.marker_symbol(self.foot)]
        return " ".join([*parts, *(["BLANKS", grammar.marker_symbol(self.close)] if self.close else [])])

    def _count_rule(self, grammar: GrammarBuilder) -> list[str]:
        return (
            [grammar.literal_text(f' {self.count_attribute}="'), "/[0-9]{1,3}/", grammar.literal_text('"')]
            if self.count_attribute
            else []
        )

    def _quote_name(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def _parameter_rule(self, name: str, part: object, offer: ToolSpec, grammar: GrammarBuilder) -> str:
        """A parameter: its tags, and what may stand between them."""
        root = offer.parameters or {}
        allowed = schema_values.allowed_types(part, root)
        if not self.type_attribute or offer.kind == "custom" or allowed == schema_values.STRING_ONLY:
            return f"{self._opening_rule(name, schema_values.STRING_ONLY, grammar)} {self._value_rule(part, offer, grammar)}"
        value = grammar.json_value(schema_values.self_contained(schema_values.resolve_schema(part, root), root))
        return f"{self._opening_rule(name, allowed - schema_values.STRING_ONLY, grammar)} {value} {self._closing_rule(grammar)}"

    def _write_type(self, kinds: frozenset[str]) -> str:
        """What is said of a value's type."""
        if self.type_attribute != "type":
            return (
                f' {self.type_attribute}="{str(kinds == schema_values.STRING_ONLY).lower()}"'
                if self.type_attribute
                else ""
            )
        named = next(iter(sorted(kinds)), "object")
        return f' type="{"number" if named == "integer" else named}"'

    def _opening_rule(self, name: str, kinds: frozenset[str], grammar: GrammarBuilder) -> str:
        """What opens a parameter."""
        key = f"{self._quote_name(name)}{self._write_type(kinds)}"
        if self.value:
            parts = [
                grammar.marker_symbol(self.key),
                grammar.literal_text(key),
                grammar.marker_symbol(self.key_end),
                grammar.literal_text(self.gap) if self.gap else "",
                grammar.marker_symbol(self.value),
            ]
            return " ".join(filter(None, parts)) + " "
        gap = grammar.literal_text(self.gap) if self.gap else ""
        return f"{grammar.marker_symbol(self.key)} {grammar.literal_text(key)} {grammar.marker_symbol(self.key_end)} {gap} "

    @property
    def _closing_text(self) -> str:
        gap = "" if self.value else self.gap
        return f"{gap}{self.value_end}{self.gap}"

    def _closing_rule(self, grammar: GrammarBuilder) -> str:
        """What closes a parameter."""
        before = "" if self.value else self.gap
        parts = [
            grammar.literal_text(before) if before else "",
            grammar.marker_symbol(self.value_end),
            grammar.literal_text(self.gap) if self.gap else "",
        ]
        return " ".join(filter(None, parts))

    def _value_rule(self, schema: object, offer: ToolSpec, grammar: GrammarBuilder) -> str:
        """A value of this schema, and its closing tag."""
        if offer.kind == "custom":
            return f"{grammar.custom_input(offer, self._text_end, self._false_end_pattern(offer))} {self._gap_rule(grammar)}"
        root = offer.parameters or {}
        own, allowed = schema_values.resolve_schema(schema, root), schema_values.allowed_types(schema, root)
        if isinstance(values := own.get("enum"), list) and values:
            said = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
            return f"({' | '.join(map(grammar.literal_text, said))}) {self._closing_rule(grammar)}"
        if not allowed or "string" in allowed:
            text = grammar.constrained_text(
                own if allowed == schema_values.STRING_ONLY else {}, self._text_end, self._false_end_pattern(offer)
            )
            return f"{text} {self._gap_rule(grammar)}"
        return f"{grammar.json_value(schema_values.self_contained(own, root))} {self._closing_rule(grammar)}"

    def _false_end_pattern(self, offer: ToolSpec) -> str:
        """What would be read as the end of a value whose closing tag is missing."""
        ends = one_then(self.foot, filter(None, (self.close, self.open, self.head, *self.outer_closers)))
        names = [name for name, _, _ in list_parameters(offer)] if offer.kind == "function" else []
        return f"{ends}|{one_then(self.key, names, _MARKS)}" if names else ends

    @property
    def _text_end(self) -> str:
        """Where free text ends: at its tag, which one token may be, or at the newline before it."""
        return self.value_end if self.value or not self.gap else f"{self.gap}{self.value_end}"

    def _gap_rule(self, grammar: GrammarBuilder) -> str:
        return grammar.literal_text(self.gap) if self.gap else ""

    def write_call(self, offer: ToolSpec, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        members = {INPUT: arguments} if offer.kind == "custom" else json.loads(arguments or "{}")
        said = [self._write_parameter(name, value) for name, value in members.items()]
        number = f' {self.count_attribute}="{place + 1}"' if self.count_attribute else ""
        end = f"{self.end}{self.gap}" if self.end else _LINE
        head = f"{self.head}{self._quote_name(offer.model_name)}{number}{end}"
        around = ("\n", "\n") if self.open and self.gap else ("", "")
        return f"{self.open}{around[0]}{head}{''.join(said)}{self.foot}{around[1] if self.close else ''}{self.close}"

    def _write_parameter(self, name: str, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        attribute = self._write_type(frozenset({schema_values.type_of(value)}))
        before = f"{self.gap}{self.value}" if self.value else self.gap
        return f"{self.key}{self._quote_name(name)}{attribute}{self.key_end}{before}{text}{self._closing_text}"


class TagValueReader:
    """Says the values of one call: as members of an object, or for a custom tool as the one text there is."""

    def __init__(self, reader: TapeReader, frame: XmlTagCall, offer: ToolSpec) -> None:
        self._reader, self._frame, self._offer = reader, frame, offer
        self._root: Mapping[str, Any] = offer.parameters or {}
        properties = self._root.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._said: set[str] = set()
        self._name = ""
        spell = reader.tape.alphabet.tape_text
        self._tags = [spell(tag) for tag in (frame.value_end, frame.key, frame.foot)]
        self._open, self._close, self._head = spell(frame.open), spell(frame.close), spell(frame.head)
        trimmed = self._tags if frame.trims_newlines else self._tags[1:]
        self._stops = literals(self._tags[0], *("\n" + tag for tag in trimmed), controls=True)
        self._outer = [spell(text) for text in frame.outer_closers]

    def read_value(self, name: str, attributes: Mapping[str, str]) -> Parser[None]:
        """Read a value, from behind its opening tag to behind its closing one."""
        tape, custom = self._reader.tape, self._offer.kind == "custom"
        self._name = name
        if self._frame.value:
            yield from tape.skip_whitespace()
            yield from tape.expect(tape.alphabet.tape_text(self._frame.value))
        if self._frame.trims_newlines:
            yield from tape.skip_literal("\n")
        yield from tape.wait_more()
        if name in self._said or (custom and self._said):
            yield from self._read_pieces(tape.skip)
        elif custom:
            yield from self._read_pieces(self._reader.take_arguments)
            self._said.add(name)
        elif name == WRAPPER_PARAMETER and self._properties and name not in self._properties:
            yield from self._read_wrapper()
        else:
            yield from self._read_member(name, attributes.get(self._frame.type_attribute, ""))
            self._said.add(name)

    def close_object(self) -> None:
        """Close the object. One without members is left to the machine."""
        if self._said and self._offer.kind == "function":
            self._reader.emit_arguments("}")

    def _read_member(self, name: str, typed: str) -> Parser[None]:
        reader = self._reader
        reader.emit_arguments(("{" if not self._said else ", ") + schema_values.encode_string(name) + ": ")
        allowed = schema_values.allowed_types(self._properties.get(name), self._root)
        if typed in _TYPES_BY_ATTRIBUTE or typed in _NON_STRING_TYPES:  # the model says itself what it means
            allowed = _TYPES_BY_ATTRIBUTE.get(typed, _NON_STRING_TYPES)
        if schema_values.can_stream_as_string(allowed, reader.tape.peek()):
            reader.emit_arguments('"')
            yield from self._read_pieces(
                lambda count: reader.emit_arguments(
                    schema_values.encode_string(reader.tape.peek_original(count))[1:-1], count
                )
            )
            reader.emit_arguments('"')
        else:
            text = yield from read_whole_value(reader, self._read_pieces)
            reader.emit_arguments(
                schema_values.as_json(text) if allowed is _NON_STRING_TYPES else schema_values.cast_value(text, allowed)
            )

    def _read_wrapper(self) -> Parser[None]:
        """Read a parameter that no tool has and that holds them all, as some models write it."""
        members = schema_values.parse_members((yield from read_whole_value(self._reader, self._read_pieces)))
        for name, value in members.items():
            if name not in self._said:
                self._reader.emit_arguments(
                    f"{'{' if not self._said else ', '}{schema_values.encode_string(name)}: {value}"
                )
                self._said.add(name)

    def _read_pieces(self, take: Callable[[int], None]) -> Parser[None]:
        """Give `take` the lengths of the value's pieces, up to its end. Raises `Malformed` where there is none."""
        tape = self._reader.tape
        while (yield from tape.wait_more()):
            if count := tape.count_clear(self._stops):
                take(count)
            elif tag := (yield from tape.match_literal(self._stops)):
                bare = tag.removeprefix("\n")
                if bare not in self._tags:
                    break
                if (yield from self._skip_end(bare, len(tag))):
                    return
                take(len(tag))
        raise MalformedText("no end")

    def _skip_end(self, tag: str, count: int) -> Parser[bool]:
        """Whether this tag ends the value; then skip it, or only the newline before it if it says more than that."""
        tape = self._reader.tape
        mark = tape.mark()
        tape.skip(count)
        try:
            ends = yield from self._call_continues(tag)
        except MalformedText:
            ends = False
        if not ends or tag != self._tags[0]:
            tape.rewind(mark)
            tape.skip(count - len(tag) if ends else 0)
        tape.release()
        return ends

    def _call_continues(self, tag: str) -> Parser[bool]:
        """Whether what follows the tag is what follows the end of a value. Raises `Malformed`."""
        tape, (value_end, key, foot) = self._reader.tape, self._tags
        if tag == key:
            word = yield from tape.skip_word(tape.alphabet.tape_text(self._frame.key_end))
            return self._frame.parse_tag(word)[0] in self._properties.keys() - self._said - {self._name}
        yield from tape.skip_whitespace()
        if not (yield from tape.wait_more()):
            return tag == value_end or tape.natural
        after = (self._close, self._open, self._head, *self._outer)
        follow = (key, foot, *after) if tag == value_end else after
        for literal in filter(None, follow):
            if (yield from tape.stands_here(literal, cut=tag == value_end)):
                return True
        return tape.at_control_token()
