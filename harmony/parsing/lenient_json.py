"""Values in a syntax that is looser than JSON, said as JSON while they are read.

Python's literals and the object notations of some models differ from JSON in their quotes, in keys without any, and in
a few words. What was said is never revised: a string is said as it comes, a number or a word when it has ended.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE

MAX_DEPTH = 64
NO_TYPES: Mapping[str, frozenset[str]] = MappingProxyType({})
MAX_WORD_CHARS = 4096
"""Letters of a number or a name."""
_WORD = re.compile(r"[^\s,:=()\[\]{}\"'<\ud800-\udfff]+")
KEY = re.compile(r"[^\s,:=()\[\]{}\"'<\ud800-\udfff]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS = {"[": "]", "(": ")"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_OCTAL = re.compile(r"\\[0-7]{1,3}")
_HEX = {"x": 2, "u": 4, "U": 8}


class LenientJson(Struct, frozen=True, kw_only=True):
    """A syntax. `quotes` begin and end strings; those in `escaping` know backslashes, in others nothing is special."""

    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")
    escaping: tuple[str, ...] = ('"""', "'''", '"', "'")

    def read_value(self, reader: TapeReader, depth: int = 0) -> Parser[None]:
        """Read one value and say it as JSON. Raises `Malformed`."""
        tape = reader.tape
        if depth > MAX_DEPTH or not (yield from tape.wait_more()):
            raise MalformedText("value")
        for quote in self.quotes:
            if (yield from tape.stands_here(tape.alphabet.tape_text(quote))):
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
        """Read an object, its braces included; `kinds`: the JSON types of those of its members that are no strings."""
        tape = reader.tape
        yield from tape.expect("{")
        reader.emit_arguments("{")
        yield from tape.skip_whitespace()
        first = True
        while not (yield from tape.skip_literal("}")):
            key = yield from self.read_key(reader)
            reader.emit_arguments(("" if first else ", ") + schema_values.encode_string(key) + ": ")
            if not (key in kinds and (yield from self._read_converted(reader, kinds[key]))):
                yield from self.read_value(reader, depth + 1)
            yield from self.skip_comma(reader, "}")
            first = False
        reader.emit_arguments("}")

    def read_key(self, reader: TapeReader) -> Parser[str]:
        """Skip a key, with quotes or without, its colon, and the blanks around."""
        tape = reader.tape
        key = yield from self._read_quoted(reader)
        if key is None:
            key = yield from read_name(reader)
        yield from tape.skip_whitespace()
        yield from tape.expect(":")
        yield from tape.skip_whitespace()
        return key

    def _read_quoted(self, reader: TapeReader) -> Parser[str | None]:
        """Skip a string, if one stands here, and return what is in it."""
        tape, parts = reader.tape, list[str]()

        def keep(text: str, count: int) -> None:
            parts.append(text)
            tape.skip(count)

        for quote in self.quotes:
            if (yield from tape.stands_here(tape.alphabet.tape_text(quote))):
                yield from self._read_string_body(reader, quote, keep)
                return "".join(parts)
        return None

    def _read_converted(self, reader: TapeReader, allowed: frozenset[str]) -> Parser[bool]:
        """Read a string that should be none as what it should be: some models put all values in quotation marks."""
        text = yield from self._read_quoted(reader)
        if text is not None:
            reader.emit_arguments(schema_values.cast_value(text, allowed))
        return text is not None

    def skip_comma(self, reader: TapeReader, closer: str) -> Parser[None]:
        """Skip to what comes next, or stay at the closer. Raises `Malformed` at anything else."""
        tape = reader.tape
        yield from tape.skip_whitespace()
        if not (yield from tape.skip_literal(",")) and not (yield from tape.stands_here(closer)):
            raise MalformedText("member")
        yield from tape.skip_whitespace()

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
            yield from self.skip_comma(reader, closer)
            first = False
        reader.emit_arguments("]")

    def _read_word(self, reader: TapeReader) -> Parser[None]:
        """A number or a word: said when it has ended. What is neither is a string."""
        tape = reader.tape
        text = yield from match_ahead(reader, _WORD)
        if not text:
            raise MalformedText("value")
        tape.skip(len(text))
        reader.emit_arguments(
            text if _NUMBER.fullmatch(text) else _WORDS.get(text) or schema_values.encode_string(text)
        )

    def read_string(self, reader: TapeReader, quote: str) -> Parser[None]:
        """Read a string and say it as JSON's."""
        reader.emit_arguments('"')
        yield from self._read_string_body(
            reader, quote, lambda text, count: reader.emit_arguments(schema_values.encode_string(text)[1:-1], count)
        )
        reader.emit_arguments('"')

    def read_text(self, reader: TapeReader, quote: str) -> Parser[None]:
        """Read a string and say what is in it."""
        yield from self._read_string_body(reader, quote, reader.emit_arguments)

    def _read_string_body(self, reader: TapeReader, quote: str, say: Callable[[str, int], None]) -> Parser[None]:
        tape = reader.tape
        spelled = tape.alphabet.tape_text(quote)
        yield from tape.expect(spelled)
        escaping = quote in self.escaping
        stops = literals(spelled, *("\\" if escaping else ""), controls=True)
        while (yield from tape.wait_more()):
            if count := tape.count_clear(stops):
                say(tape.peek_original(count), count)
                continue
            stop = yield from tape.match_literal(stops)
            if stop is None:
                continue  # what began like a stop was none
            if stop == spelled:
                tape.skip(len(spelled))
                return
            if stop != "\\":
                break
            yield from self._read_escape(reader, say)
        raise MalformedText("string")

    def _read_escape(self, reader: TapeReader, say: Callable[[str, int], None]) -> Parser[None]:
        tape = reader.tape
        if not (yield from tape.wait_count(2)):
            raise MalformedText("escape")
        letter = tape.peek(2)[1]
        if CONTROL_RANGE[0] <= letter <= CONTROL_RANGE[-1]:
            raise MalformedText("escape")
        if letter in "01234567":
            code = yield from match_up_to(reader, _OCTAL, 4)
            say(chr(int(code[1:], 8)), len(code))
            return
        if letter == "u" and (pair := (yield from self._read_surrogate_pair(reader))):
            say(pair, 12)
            return
        digits = _HEX.get(letter, 0)
        if digits and (yield from tape.wait_count(2 + digits)):
            code = tape.peek(2 + digits)[2:]
            if (character := _parse_code_point(code)) is not None:
                say(character, 2 + digits)
                return
        known = _ESCAPES.get(letter, letter if letter in "\\'\"/" else f"\\{letter}")
        say(tape.alphabet.original_text(known), 2)

    def _read_surrogate_pair(self, reader: TapeReader) -> Parser[str]:
        """The character of two escapes that are halves of it; empty where these are none."""
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
    """The character of a hexadecimal number, if it is one's."""
    number = int(code, 16) if re.fullmatch(r"[0-9a-fA-F]+", code) else -1
    return chr(number) if 0 <= number < 0xD800 or 0xE000 <= number < 0x110000 else None


def match_ahead(reader: TapeReader, pattern: re.Pattern[str]) -> Parser[str]:
    """The longest text here that the pattern matches, once it is known to have ended; it is not skipped."""
    tape = reader.tape
    while True:
        found = pattern.match(tape.text, tape.index)
        text = found[0] if found else ""
        if tape.ended or tape.index + len(text) < len(tape.text):
            return text
        if len(text) > MAX_WORD_CHARS:
            raise MalformedText("too long")
        yield


def match_up_to(reader: TapeReader, pattern: re.Pattern[str], longest: int) -> Parser[str]:
    """The text here that the pattern matches, of so many characters at most; it is not skipped."""
    yield from reader.tape.wait_count(longest)
    found = pattern.match(reader.tape.peek(longest))
    return found[0] if found else ""


def read_name(reader: TapeReader) -> Parser[str]:
    """Skip and return a name. Raises `Malformed`."""
    text = yield from match_ahead(reader, KEY)
    if not text or len(text) > 256:
        raise MalformedText("name")
    reader.tape.skip(len(text))
    return text
