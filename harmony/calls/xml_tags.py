"""Call format whose arguments are keys and values in tags, converted to JSON as they arrive.

Emitted text is never revised: strings are emitted as they are read, other values once their end is seen. A value may
contain any of the tags: a tag counts only if the text after it continues as a call does.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.harmony.calls.base import NumberedCall, list_parameters
from antiphon.harmony.calls.json_object import read_arguments
from antiphon.harmony.grammar import GrammarBuilder, literal_then_any
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, literals
from antiphon.harmony.tools import INPUT, ToolSpec

_NEWLINE = "\n"
CDATA_OPEN, CDATA_CLOSE = "<![CDATA[", "]]>"
_QUOTE = """[ \\t]*["']?"""


WRAPPER_PARAMETER = "arguments"
_NON_STRING_TYPES = frozenset({"number", "integer", "boolean", "null", "object", "array"})
_TYPES_BY_ATTRIBUTE = {
    "true": schema_values.STRING_ONLY,
    "string": schema_values.STRING_ONLY,
    "false": _NON_STRING_TYPES,
}
_NAMED = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"']\S*))(?P<rest>.*)""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""(?<![\w-])([\w-]+)\s*=\s*["']?([^"'\s]*)["']?""")


def parse_named_tag(text: str) -> tuple[str, dict[str, str]]:
    """Returns the name in a tag, quoted or not, and the attributes after it."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return text, {}
    name = next(group for group in (match["double"], match["single"], match["bare"]) if group is not None)
    return name, dict(_ATTRIBUTE.findall(match["rest"]))


def read_whole_value(reader: TapeReader, each: Callable[[Callable[[int], None]], Parser[None]]) -> Parser[str]:
    """Reads a value and returns it once it has ended. Raises `MalformedText` if it does not, after emitting it.

    `each` reads the value to its end and passes on the lengths of its pieces. JSON is read as JSON, because a string
    in it may contain any tag.
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
    """`open head NAME end (key NAME key_end value VALUE value_end)* foot close`.

    `open`, `close` and `value_end` may be missing. Names may be quoted; they are written with `quote`.
    `type_attribute` names an attribute that states whether a value is a string (`true`) or JSON (`false`); the
    attribute `type` states the JSON type. `count_attribute` names an attribute of the call that counts from 1. `gap`
    belongs to the tags at either end of a value. Without `end`, the tool's name extends to the end of its line or to
    the first tag. If a value's closing tag is missing, the newline before the next tag ends the value. `cdata`: a value
    may be wrapped in a CDATA section, which is not part of it. `escapes_quotes`: names have `&amp;` and `&quot;` for an
    ampersand and a quote. One JSON object may stand for all parameters, alone or between the two texts `json_body`.
    """

    open: str = ""
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
    cdata: bool = False
    escapes_quotes: bool = False
    json_body: tuple[str, str] | None = None
    outer_closers: tuple[str, ...] = ()
    """Closers of the section around the call. They also end a call whose own end is missing."""

    @property
    def openers(self) -> Sequence[str]:
        """Markers with which a call can begin."""
        return tuple(filter(None, (self.open, self.head)))

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included."""
        tags = (self.open, self.close, self.head, self.foot, self.key, self.value_end, self.value)
        return tuple(tag for tag in (*tags, *(self.json_body or ()), self.end, self.key_end) if len(tag) > 1)

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.skip_literal(tape_text(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(tape_text(self.head))
        tool = reader.require_tool(self.parse_tag((yield from self._read_name(tape)))[0])
        reader.begin_call(tool)
        yield from self._read_body(reader, tool)
        reader.close_item()
        if self.close:
            yield from tape.skip_whitespace()
            yield from tape.skip_literal(tape_text(self.close), cut=True)

    def _read_body(self, reader: TapeReader, tool: ToolSpec) -> Parser[None]:
        """Emits the arguments and skips `foot`. Some models write a JSON object in place of the tags."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        if (yield from self._read_object(reader)):
            if not (yield from self._skip_foot(tape)):
                raise MalformedText("text after the object")
            return
        values = TagValueReader(reader, self, tool)
        while not (yield from self._skip_foot(tape)):
            yield from tape.expect(tape_text(self.key))
            yield from values.read_value(*self.parse_tag((yield from tape.skip_word(tape_text(self.key_end)))))
        values.close_object()

    def _read_object(self, reader: TapeReader) -> Parser[bool]:
        """Emits the object that stands for all parameters, and tells whether there is one here."""
        tape = reader.tape
        opener, closer = map(tape.alphabet.tape_text, self.json_body or ("", ""))
        yield from tape.skip_whitespace()
        is_wrapped = opener != "" and (yield from tape.skip_literal(opener))
        yield from tape.skip_whitespace()
        if not is_wrapped and not (yield from tape.matches_here("{")):
            return False
        yield from read_arguments(reader)
        yield from tape.skip_whitespace()
        yield from tape.skip_literal(closer if is_wrapped else "")
        return True

    def _read_name(self, tape: Tape) -> Parser[str]:
        """Skips the tool's name, and its end unless a tag ends it. Returns the name."""
        tape_text = tape.alphabet.tape_text
        if self.end:
            return (yield from tape.skip_word(tape_text(self.end)))
        yield from tape.skip_whitespace()
        name = yield from tape.skip_until(literals("\n", tape_text(self.key), tape_text(self.foot), controls=True))
        return name.strip()

    def _skip_foot(self, tape: Tape) -> Parser[bool]:
        """Skips `foot`, or accepts a closer, the next call or the natural end of the answer in its place."""
        yield from tape.skip_whitespace()
        tape_text = tape.alphabet.tape_text
        if not (yield from tape.wait_more()):
            return tape.ended_naturally
        if (yield from tape.skip_literal(tape_text(self.foot))):
            return True
        for text in filter(None, (self.close, self.open, self.head, *self.outer_closers)):
            if (yield from tape.matches_here(tape_text(text))):
                return True
        return False

    @property
    def trims_newlines(self) -> bool:
        """True if a newline at either end of a value belongs to its tags."""
        return self.gap != "" and not self.value

    def parse_tag(self, text: str) -> tuple[str, dict[str, str]]:
        """Returns the name in a tag, and its attributes if such tags have any."""
        name, attributes = (
            parse_named_tag(text) if self.quote or self.type_attribute else (text.strip().strip("\"'"), {})
        )
        return (name.replace("&quot;", '"').replace("&amp;", "&") if self.escapes_quotes else name), attributes

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener: the parameters in schema order, optional ones included."""
        parameters = []
        for name, part, required in list_parameters(tool):
            rule = self._parameter_rule(name, part, tool, grammar)
            parameters.append(rule if required else f"({rule})?")
        header = [grammar.marker_symbol(self.head)] if self.open else []
        header.append(grammar.literal_text(self._quote_name(tool.model_name)))
        if self.count_attribute:
            before, after = f' {self.count_attribute}="', '"'
            header += [grammar.literal_text(before), "/[0-9]{1,3}/", grammar.literal_text(after)]
        header.append(grammar.marker_symbol(self.end))
        header += [grammar.literal_text(self.gap if self.end else _NEWLINE)] if self.gap or not self.end else []
        parts = ["BLANKS" if self.open else "", *header, *parameters, grammar.marker_symbol(self.foot)]
        return " ".join(filter(None, [*parts, grammar.after_blanks(self.close)]))

    def _quote_name(self, name: str) -> str:
        escaped = name.replace("&", "&amp;").replace('"', "&quot;") if self.escapes_quotes else name
        return f"{self.quote}{escaped}{self.quote}"

    def _parameter_rule(self, name: str, part: object, tool: ToolSpec, grammar: GrammarBuilder) -> str:
        """Returns the rule of a parameter: its tags and its value."""
        root = tool.parameters or {}
        allowed = schema_values.allowed_types(part, root)
        if not self.type_attribute or tool.kind == "custom" or allowed == schema_values.STRING_ONLY:
            opening = self._opening_rule(name, schema_values.STRING_ONLY, grammar)
            return f"{opening} {self._value_rule(part, tool, grammar)}"
        value = grammar.json_value(schema_values.self_contained(schema_values.resolve_schema(part, root), root))
        opening = self._opening_rule(name, allowed - schema_values.STRING_ONLY, grammar)
        return f"{opening} {value} {self._closing_rule(grammar)}"

    def _write_type(self, kinds: frozenset[str]) -> str:
        """Writes the attribute for a value's type, if there is such an attribute."""
        if self.type_attribute != "type":
            is_string = str(kinds == schema_values.STRING_ONLY).lower()
            return f' {self.type_attribute}="{is_string}"' if self.type_attribute else ""
        type_name = next(iter(sorted(kinds)), "object")
        return f' type="{"number" if type_name == "integer" else type_name}"'

    def _opening_rule(self, name: str, kinds: frozenset[str], grammar: GrammarBuilder) -> str:
        """Returns the rule of a parameter's opening tag."""
        parts = [
            grammar.marker_symbol(self.key),
            grammar.literal_text(f"{self._quote_name(name)}{self._write_type(kinds)}"),
            grammar.marker_symbol(self.key_end),
            grammar.optional_text(self.gap),
            grammar.marker_symbol(self.value) if self.value else "",
        ]
        return " ".join(filter(None, parts))

    @property
    def _closing_text(self) -> str:
        gap = "" if self.value else self.gap
        return f"{gap}{self.value_end}{self.gap}"

    def _closing_rule(self, grammar: GrammarBuilder) -> str:
        """Returns the rule of a parameter's closing tag."""
        gap = grammar.optional_text(self.gap)
        return " ".join(filter(None, ["" if self.value else gap, grammar.marker_symbol(self.value_end), gap]))

    def _value_rule(self, schema: object, tool: ToolSpec, grammar: GrammarBuilder) -> str:
        """Returns the rule of a value of this schema, with its closing tag."""
        if tool.kind == "custom":
            text = grammar.custom_input(tool, self._text_end, self._false_end_pattern(tool))
            return f"{text} {grammar.optional_text(self.gap)}"
        root = tool.parameters or {}
        resolved, allowed = schema_values.resolve_schema(schema, root), schema_values.allowed_types(schema, root)
        if isinstance(values := resolved.get("enum"), list) and values:
            alternatives = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values
            )
            return f"({' | '.join(map(grammar.literal_text, alternatives))}) {self._closing_rule(grammar)}"
        if not allowed or "string" in allowed:
            text = grammar.constrained_text(
                resolved if allowed == schema_values.STRING_ONLY else {}, self._text_end, self._false_end_pattern(tool)
            )
            return f"{text} {grammar.optional_text(self.gap)}"
        return f"{grammar.json_value(schema_values.self_contained(resolved, root))} {self._closing_rule(grammar)}"

    def _false_end_pattern(self, tool: ToolSpec) -> str:
        """Returns a pattern of text that would be parsed as the end of a value without a closing tag."""
        ends = literal_then_any(self.foot, filter(None, (self.close, self.open, self.head, *self.outer_closers)))
        names = [name for name, _, _ in list_parameters(tool)] if tool.kind == "function" else []
        return f"{ends}|{literal_then_any(self.key, names, _QUOTE)}" if names else ends

    @property
    def _text_end(self) -> str:
        """Text that ends a string: its closing tag, which may be one token, after a newline that belongs to the tag."""
        return self.value_end if self.value or not self.gap else f"{self.gap}{self.value_end}"

    def write_call(self, tool: ToolSpec, arguments: str, index: int = 0) -> str | None:
        """Writes a call as a model would. `index`: number of calls written before it."""
        members = {INPUT: arguments} if tool.kind == "custom" else json.loads(arguments or "{}")
        parameters = [self._write_parameter(name, value) for name, value in members.items()]
        number = f' {self.count_attribute}="{index + 1}"' if self.count_attribute else ""
        end = f"{self.end}{self.gap}" if self.end else _NEWLINE
        header = f"{self.head}{self._quote_name(tool.model_name)}{number}{end}"
        padding = "\n" if self.open and self.gap else ""
        call = f"{header}{''.join(parameters)}{self.foot}"
        return f"{self.open}{padding}{call}{padding if self.close else ''}{self.close}"

    def _write_parameter(self, name: str, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        attribute = self._write_type(frozenset({schema_values.type_of(value)}))
        before = f"{self.gap}{self.value}" if self.value else self.gap
        return f"{self.key}{self._quote_name(name)}{attribute}{self.key_end}{before}{text}{self._closing_text}"


class TagValueReader:
    """Emits the values of one call: as members of an object or, for a custom tool, as its text."""

    def __init__(self, reader: TapeReader, call_format: XmlTagCall, tool: ToolSpec) -> None:
        self._reader, self._format, self._tool = reader, call_format, tool
        self._root: Mapping[str, Any] = tool.parameters or {}
        properties = self._root.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._emitted_names: set[str] = set()
        self._name = ""
        tape_text = reader.tape.alphabet.tape_text
        self._tags = [tape_text(tag) for tag in (call_format.value_end, call_format.key, call_format.foot)]
        self._open, self._close, self._head = (
            tape_text(call_format.open),
            tape_text(call_format.close),
            tape_text(call_format.head),
        )
        trimmed = self._tags if call_format.trims_newlines else self._tags[1:]
        self._stops = literals(self._tags[0], *("\n" + tag for tag in trimmed), controls=True)
        self._outer = [tape_text(text) for text in call_format.outer_closers]
        self._cdata_stops = literals(CDATA_CLOSE, controls=True)
        self._in_cdata = False

    def read_value(self, name: str, attributes: Mapping[str, str]) -> Parser[None]:
        """Reads a value, from after its opening tag to after its closing tag."""
        tape, custom = self._reader.tape, self._tool.kind == "custom"
        self._name = name
        if self._format.value:
            yield from tape.skip_whitespace()
            yield from tape.expect(tape.alphabet.tape_text(self._format.value))
        if self._format.trims_newlines:
            yield from tape.skip_literal("\n")
        self._in_cdata = self._format.cdata and (yield from tape.skip_literal(CDATA_OPEN))
        yield from tape.wait_more()
        if name in self._emitted_names or (custom and self._emitted_names):
            yield from self._read_pieces(tape.skip)
        elif custom:
            yield from self._read_pieces(self._reader.take_arguments)
            self._emitted_names.add(name)
        elif name == WRAPPER_PARAMETER and self._properties and name not in self._properties:
            yield from self._read_wrapper()
        else:
            yield from self._read_member(name, attributes.get(self._format.type_attribute, ""))
            self._emitted_names.add(name)

    def close_object(self) -> None:
        """Closes the object. The machine supplies an object without members."""
        if self._emitted_names and self._tool.kind == "function":
            self._reader.emit_arguments("}")

    def _read_member(self, name: str, typed: str) -> Parser[None]:
        reader = self._reader
        reader.emit_arguments(("{" if not self._emitted_names else ", ") + schema_values.encode_string(name) + ": ")
        allowed = schema_values.allowed_types(self._properties.get(name), self._root)
        if typed in _TYPES_BY_ATTRIBUTE or typed in _NON_STRING_TYPES:  # the model states the type
            allowed = _TYPES_BY_ATTRIBUTE.get(typed, _NON_STRING_TYPES)
        if schema_values.can_stream_as_string(allowed, reader.tape.peek()):
            reader.emit_arguments('"')
            yield from self._read_pieces(reader.emit_escaped)
            reader.emit_arguments('"')
        else:
            text = yield from read_whole_value(reader, self._read_pieces)
            reader.emit_arguments(
                schema_values.as_json(text) if allowed is _NON_STRING_TYPES else schema_values.cast_value(text, allowed)
            )

    def _read_wrapper(self) -> Parser[None]:
        """Reads a parameter `arguments` that the tool does not have and that holds all others: some models write it."""
        members = schema_values.parse_members((yield from read_whole_value(self._reader, self._read_pieces)))
        for name, value in members.items():
            if name not in self._emitted_names:
                self._reader.emit_arguments(
                    f"{'{' if not self._emitted_names else ', '}{schema_values.encode_string(name)}: {value}"
                )
                self._emitted_names.add(name)

    def _read_pieces(self, take: Callable[[int], None]) -> Parser[None]:
        """Passes the lengths of the value's pieces to `take`, up to its end. Raises `MalformedText` without one."""
        tape = self._reader.tape
        if self._in_cdata:
            yield from self._read_cdata(take)
            return
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

    def _read_cdata(self, take: Callable[[int], None]) -> Parser[None]:
        """Passes the lengths of the pieces inside a CDATA section to `take`, up to the value's closing tag."""
        tape = self._reader.tape
        while (yield from tape.wait_more()):
            if count := tape.count_clear(self._cdata_stops):
                take(count)
            elif (stop := (yield from tape.match_literal(self._cdata_stops))) is None:
                continue  # a possible end turned out to be text
            elif stop != CDATA_CLOSE:
                break
            else:
                mark = tape.mark()
                tape.skip(len(CDATA_CLOSE))
                yield from tape.skip_whitespace()
                if (yield from tape.skip_literal(self._tags[0])):
                    tape.release()
                    return
                tape.rewind(mark)
                tape.release()
                take(len(CDATA_CLOSE))
        raise MalformedText("no end")

    def _skip_end(self, tag: str, count: int) -> Parser[bool]:
        """Tells whether this tag ends the value, and if so skips it.

        If the tag also begins or ends something else, only the newline before it is skipped.
        """
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
        """Tells whether the text after the tag continues as after the end of a value. Raises `MalformedText`."""
        tape, (value_end, key, foot) = self._reader.tape, self._tags
        if tag == key:
            word = yield from tape.skip_word(tape.alphabet.tape_text(self._format.key_end))
            return self._format.parse_tag(word)[0] in self._properties.keys() - self._emitted_names - {self._name}
        yield from tape.skip_whitespace()
        if not (yield from tape.wait_more()):
            return tag == value_end or tape.ended_naturally
        after = (self._close, self._open, self._head, *self._outer)
        follow = (key, foot, *after) if tag == value_end else after
        for literal in filter(None, follow):
            if (yield from tape.matches_here(literal, cut=tag == value_end)):
                return True
        return tape.at_control_token()
