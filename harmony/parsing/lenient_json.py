"""Converts values in a looser syntax than JSON to JSON while they are read.

Python literals and the object notations of some models differ from JSON in their quotes, in unquoted keys and in a
few keywords: `{a: 'x', b: True}` becomes `{"a": "x", "b": true}`. Emitted text is never revised: a string is emitted
as it arrives, a number or a keyword once it has ended.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE

MAX_VALUE_DEPTH = 64
NO_TYPES: Mapping[str, frozenset[str]] = MappingProxyType({})
MAX_WORD_CHARS = 4096
"""Limit on the characters of a number or a name."""
KEY_PATTERN = re.compile(r"[^\s,:=()\[\]{}\"'<\ud800-\udfff]+")
_NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_JSON_LITERALS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS = {"[": "]", "(": ")"}
_LENIENT_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_OCTAL = re.compile(r"\\[0-7]{1,3}")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class LenientJson(Struct, frozen=True, kw_only=True):
    """Syntax of values. `quotes` delimit strings; backslash escapes work only between those in `escaping`."""

    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")
    escaping: tuple[str, ...] = ('"""', "'''", '"', "'")

    def read_value(self, reader: TapeReader, depth: int = 0) -> Parser[None]:
        """Reads a value and emits it as JSON. Raises `MalformedText`."""
        tape = reader.tape
        if depth > MAX_VALUE_DEPTH or not (yield from tape.wait_more()):
            raise MalformedText("value")
        for quote in self.quotes:
            if (yield from tape.matches_here(tape.alphabet.tape_text(quote))):
                yield from self.read_string(reader, quote)
                return
        if tape.peek() == "{":
            yield from self.read_members(reader, depth)
        elif tape.peek() in _CLOSERS:
            yield from self._read_items(reader, depth)
        else:
            yield from self._read_word(reader)

    def read_members(
        self, reader: TapeReader, depth: int = 0, kinds: Mapping[str, frozenset[str]] = NO_TYPES
    ) -> Parser[None]:
        """Reads an object with its braces. `kinds`: JSON types of those members that cannot be strings."""
        tape = reader.tape
        yield from tape.expect("{")
        reader.emit_arguments("{")
        yield from tape.skip_whitespace()
        keys: set[str] = set()
        while not (yield from tape.skip_literal("}")):
            key = yield from self.read_key(reader)
            if key in keys:
                yield from reader.discard_arguments(self.read_value(reader, depth + 1))
            else:
                reader.emit_arguments(("" if not keys else ", ") + schema_values.encode_string(key) + ": ")
                keys.add(key)
                if not (key in kinds and (yield from self._read_converted(reader, kinds[key]))):
                    yield from self.read_value(reader, depth + 1)
            yield from json_stream.skip_comma(tape)
        reader.emit_arguments("}")

    def read_key(self, reader: TapeReader) -> Parser[str]:
        """Skips a key, quoted or not, its colon and the blanks around them. Returns the key."""
        tape = reader.tape
        key = yield from self._read_quoted(reader)
        if key is None:
            key = yield from read_name(reader)
        yield from tape.skip_whitespace()
        yield from tape.expect(":")
        yield from tape.skip_whitespace()
        return key

    def _read_quoted(self, reader: TapeReader) -> Parser[str | None]:
        """Skips a string, if there is one here, and returns its content; otherwise returns None."""
        tape, parts = reader.tape, list[str]()

        def keep(text: str, count: int) -> None:
            parts.append(text)
            tape.skip(count)

        for quote in self.quotes:
            if (yield from tape.matches_here(tape.alphabet.tape_text(quote))):
                yield from self._read_string_body(reader, quote, keep)
                return "".join(parts)
        return None

    def _read_converted(self, reader: TapeReader, allowed: frozenset[str]) -> Parser[bool]:
        """Reads a string, if there is one here, and emits it as another type: some models quote all values."""
        text = yield from self._read_quoted(reader)
        if text is not None:
            reader.emit_arguments(schema_values.cast_value(text, allowed))
        return text is not None

    def _read_items(self, reader: TapeReader, depth: int) -> Parser[None]:
        tape = reader.tape
        closer = _CLOSERS[tape.peek()]
        tape.skip(1)
        reader.emit_arguments("[")
        yield from tape.skip_whitespace()
        first = True
        while not (yield from tape.skip_literal(closer)):
            if not first:
                reader.emit_arguments(", ")
            yield from self.read_value(reader, depth + 1)
            yield from json_stream.skip_comma(tape, closer)
            first = False
        reader.emit_arguments("]")

    def _read_word(self, reader: TapeReader) -> Parser[None]:
        """Reads a number or a keyword and emits it once it has ended. Any other word is emitted as a string."""
        tape = reader.tape
        text = yield from match_ahead(reader, KEY_PATTERN)
        if not text:
            raise MalformedText("value")
        tape.skip(len(text))
        reader.emit_arguments(
            text if _NUMBER_PATTERN.fullmatch(text) else _JSON_LITERALS.get(text) or schema_values.encode_string(text)
        )

    def read_string(self, reader: TapeReader, quote: str) -> Parser[None]:
        """Reads a string and emits it as a JSON string."""
        reader.emit_arguments('"')
        yield from self._read_string_body(
            reader, quote, lambda text, count: reader.emit_arguments(schema_values.encode_string(text)[1:-1], count)
        )
        reader.emit_arguments('"')

    def read_text(self, reader: TapeReader, quote: str) -> Parser[None]:
        """Reads a string and emits its content."""
        yield from self._read_string_body(reader, quote, reader.emit_arguments)

    def _read_string_body(self, reader: TapeReader, quote: str, emit: Callable[[str, int], None]) -> Parser[None]:
        tape = reader.tape
        tape_quote = tape.alphabet.tape_text(quote)
        yield from tape.expect(tape_quote)
        escaping = quote in self.escaping
        stops = literals(tape_quote, *("\\" if escaping else ""), controls=True)
        while (yield from tape.wait_more()):
            if count := tape.count_clear(stops):
                emit(tape.peek_original(count), count)
                continue
            stop = yield from tape.match_literal(stops)
            if stop is None:
                continue  # a possible stop turned out to be text
            if stop == tape_quote:
                tape.skip(len(tape_quote))
                return
            if stop != "\\":
                break
            yield from self._read_escape(reader, emit)
        raise MalformedText("string")

    def _read_escape(self, reader: TapeReader, emit: Callable[[str, int], None]) -> Parser[None]:
        tape = reader.tape
        if not (yield from tape.wait_count(2)):
            raise MalformedText("escape")
        char = tape.peek(2)[1]
        if CONTROL_RANGE[0] <= char <= CONTROL_RANGE[-1]:
            raise MalformedText("escape")
        if char in "01234567":
            code = yield from match_up_to(reader, _OCTAL, 4)
            emit(chr(int(code[1:], 8)), len(code))
            return
        if char == "u" and (pair := (yield from self._read_surrogate_pair(reader))):
            emit(pair, 12)
            return
        digits = _HEX_DIGITS.get(char, 0)
        if digits and (yield from tape.wait_count(2 + digits)):
            code = tape.peek(2 + digits)[2:]
            if (character := _parse_code_point(code)) is not None:
                emit(character, 2 + digits)
                return
        replacement = _LENIENT_ESCAPES.get(char, char if char in "\\'\"/" else f"\\{char}")
        emit(tape.alphabet.original_text(replacement), 2)

    def _read_surrogate_pair(self, reader: TapeReader) -> Parser[str]:
        """Returns the character of two escapes that form a surrogate pair; empty if they do not."""
        tape = reader.tape
        if not (yield from tape.wait_count(6)) or not re.fullmatch(r"\\u[dD][89abAB][0-9a-fA-F]{2}", tape.peek(6)):
            return ""
        if not (yield from tape.wait_count(12)) or not re.fullmatch(
            r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", tape.peek(12)[6:]
        ):
            return ""
        high, low = (int(code, base=16) for code in (tape.peek(6)[2:], tape.peek(12)[8:]))
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _parse_code_point(code: str) -> str | None:
    """Returns the character with this hexadecimal code point; None if there is none."""
    number = int(code, 16) if re.fullmatch(r"[0-9a-fA-F]+", code) else -1
    return chr(number) if 0 <= number < 0xD800 or 0xE000 <= number < 0x110000 else None


def match_ahead(reader: TapeReader, pattern: re.Pattern[str]) -> Parser[str]:
    """Returns the longest match here, once the match has certainly ended. Does not skip it."""
    tape = reader.tape
    while True:
        match = pattern.match(tape.text, tape.index)
        text = match[0] if match else ""
        if len(text) > MAX_WORD_CHARS:  # before its end is looked at, which depends on how the text was split
            raise MalformedText("too long")
        if tape.ended or tape.index + len(text) < len(tape.text):
            return text
        yield


def match_up_to(reader: TapeReader, pattern: re.Pattern[str], longest: int) -> Parser[str]:
    """Returns the match within the next `longest` characters. Does not skip it."""
    yield from reader.tape.wait_count(longest)
    match = pattern.match(reader.tape.peek(longest))
    return match[0] if match else ""


def read_name(reader: TapeReader) -> Parser[str]:
    """Skips a name and returns it. Raises `MalformedText`."""
    text = yield from match_ahead(reader, KEY_PATTERN)
    if not text or len(text) > 256:
        raise MalformedText("name")
    reader.tape.skip(len(text))
    return text
