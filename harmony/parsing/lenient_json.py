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
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at
from antiphon.harmony.tokens.detokenizer import CONTROLS

DEEPEST = 64
NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})
LONGEST = 4096
"""Letters of a number or a name."""
_WORD = re.compile(r"[^\s,:=()\[\]{}\"'<\ud800-\udfff]+")
KEY = re.compile(r"[^\s,:=()\[\]{}\"'<\ud800-\udfff]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS = {"[": "]", "(": ")"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_OCTAL = re.compile(r"\\[0-7]{1,3}")
_HEX = {"x": 2, "u": 4, "U": 8}


class Loose(Struct, frozen=True, kw_only=True):
    """A syntax. `quotes` begin and end strings; those in `escaping` know backslashes, in others nothing is special."""

    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")
    escaping: tuple[str, ...] = ('"""', "'''", '"', "'")

    def value(self, reader: TapeReader, depth: int = 0) -> Wait[None]:
        """Read one value and say it as JSON. Raises `Malformed`."""
        tape = reader.tape
        if depth > DEEPEST or not (yield from tape.more()):
            raise Malformed("value")
        for quote in self.quotes:
            if (yield from tape.sees(tape.alphabet.spell(quote))):
                yield from self.string(reader, quote)
                return
        if tape.peek() == "{":
            yield from self.members(reader, depth)
        elif tape.peek() in _CLOSERS:
            yield from self._items(reader, depth)
        else:
            yield from self._word(reader)

    def members(self, reader: TapeReader, depth: int = 0, kinds: Mapping[str, frozenset[str]] = NOTHING) -> Wait[None]:
        """Read an object, its braces included; `kinds`: the JSON types of those of its members that are no strings."""
        tape = reader.tape
        yield from tape.expect("{")
        reader.make("{")
        yield from tape.blanks()
        first = True
        while not (yield from tape.literal("}")):
            key = yield from self.key(reader)
            reader.make(("" if first else ", ") + schema_values.quote(key) + ": ")
            if not (key in kinds and (yield from self._converted(reader, kinds[key]))):
                yield from self.value(reader, depth + 1)
            yield from self.comma(reader, "}")
            first = False
        reader.make("}")

    def key(self, reader: TapeReader) -> Wait[str]:
        """Skip a key, with quotes or without, its colon, and the blanks around."""
        tape = reader.tape
        key = yield from self._quoted(reader)
        if key is None:
            key = yield from name(reader)
        yield from tape.blanks()
        yield from tape.expect(":")
        yield from tape.blanks()
        return key

    def _quoted(self, reader: TapeReader) -> Wait[str | None]:
        """Skip a string, if one stands here, and return what is in it."""
        tape, parts = reader.tape, list[str]()

        def keep(text: str, count: int) -> None:
            parts.append(text)
            tape.skip(count)

        for quote in self.quotes:
            if (yield from tape.sees(tape.alphabet.spell(quote))):
                yield from self._string(reader, quote, keep)
                return "".join(parts)
        return None

    def _converted(self, reader: TapeReader, allowed: frozenset[str]) -> Wait[bool]:
        """Read a string that should be none as what it should be: some models put all values in quotation marks."""
        text = yield from self._quoted(reader)
        if text is not None:
            reader.make(schema_values.cast(text, allowed))
        return text is not None

    def comma(self, reader: TapeReader, closer: str) -> Wait[None]:
        """Skip to what comes next, or stay at the closer. Raises `Malformed` at anything else."""
        tape = reader.tape
        yield from tape.blanks()
        if not (yield from tape.literal(",")) and not (yield from tape.sees(closer)):
            raise Malformed("member")
        yield from tape.blanks()

    def _items(self, reader: TapeReader, depth: int) -> Wait[None]:
        tape = reader.tape
        closer = _CLOSERS[tape.peek()]
        tape.skip(1)
        reader.make("[")
        yield from tape.blanks()
        first = True
        while not (yield from tape.literal(closer)):
            if not first:
                reader.make(", ")
            yield from self.value(reader, depth + 1)
            yield from self.comma(reader, closer)
            first = False
        reader.make("]")

    def _word(self, reader: TapeReader) -> Wait[None]:
        """A number or a word: said when it has ended. What is neither is a string."""
        tape = reader.tape
        text = yield from run(reader, _WORD)
        if not text:
            raise Malformed("value")
        tape.skip(len(text))
        reader.make(text if _NUMBER.fullmatch(text) else _WORDS.get(text) or schema_values.quote(text))

    def string(self, reader: TapeReader, quote: str) -> Wait[None]:
        """Read a string and say it as JSON's."""
        reader.make('"')
        yield from self._string(reader, quote, lambda text, count: reader.make(schema_values.quote(text)[1:-1], count))
        reader.make('"')

    def text(self, reader: TapeReader, quote: str) -> Wait[None]:
        """Read a string and say what is in it."""
        yield from self._string(reader, quote, reader.make)

    def _string(self, reader: TapeReader, quote: str, say: Callable[[str, int], None]) -> Wait[None]:
        tape = reader.tape
        spelled = tape.alphabet.spell(quote)
        yield from tape.expect(spelled)
        escaping = quote in self.escaping
        stops = stops_at(spelled, *("\\" if escaping else ""), controls=True)
        while (yield from tape.more()):
            if count := tape.clear(stops):
                say(tape.ahead(count), count)
                continue
            stop = yield from tape.at(stops)
            if stop is None:
                continue  # what began like a stop was none
            if stop == spelled:
                tape.skip(len(spelled))
                return
            if stop != "\\":
                break
            yield from self._escape(reader, say)
        raise Malformed("string")

    def _escape(self, reader: TapeReader, say: Callable[[str, int], None]) -> Wait[None]:
        tape = reader.tape
        if not (yield from tape.have(2)):
            raise Malformed("escape")
        letter = tape.peek(2)[1]
        if CONTROLS[0] <= letter <= CONTROLS[-1]:
            raise Malformed("escape")
        if letter in "01234567":
            code = yield from run_of(reader, _OCTAL, 4)
            say(chr(int(code[1:], 8)), len(code))
            return
        if letter == "u" and (pair := (yield from self._pair(reader))):
            say(pair, 12)
            return
        digits = _HEX.get(letter, 0)
        if digits and (yield from tape.have(2 + digits)):
            code = tape.peek(2 + digits)[2:]
            if (character := _character(code)) is not None:
                say(character, 2 + digits)
                return
        known = _ESCAPES.get(letter, letter if letter in "\\'\"/" else f"\\{letter}")
        say(tape.alphabet.written(known), 2)

    def _pair(self, reader: TapeReader) -> Wait[str]:
        """The character of two escapes that are halves of it; empty where these are none."""
        tape = reader.tape
        if not (yield from tape.have(6)) or not re.fullmatch(r"\\u[dD][89abAB][0-9a-fA-F]{2}", tape.peek(6)):
            return ""
        if not (yield from tape.have(12)) or not re.fullmatch(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", tape.peek(12)[6:]):
            return ""
        high, low = (int(code, base=16) for code in (tape.peek(6)[2:], tape.peek(12)[8:]))
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _character(code: str) -> str | None:
    """The character of a hexadecimal number, if it is one's."""
    number = int(code, 16) if re.fullmatch(r"[0-9a-fA-F]+", code) else -1
    return chr(number) if 0 <= number < 0xD800 or 0xE000 <= number < 0x110000 else None


def run(reader: TapeReader, pattern: re.Pattern[str]) -> Wait[str]:
    """The longest text here that the pattern matches, once it is known to have ended; it is not skipped."""
    tape = reader.tape
    while True:
        found = pattern.match(tape.text, tape.pos)
        text = found[0] if found else ""
        if tape.ended or tape.pos + len(text) < len(tape.text):
            return text
        if len(text) > LONGEST:
            raise Malformed("too long")
        yield


def run_of(reader: TapeReader, pattern: re.Pattern[str], longest: int) -> Wait[str]:
    """The text here that the pattern matches, of so many characters at most; it is not skipped."""
    yield from reader.tape.have(longest)
    found = pattern.match(reader.tape.peek(longest))
    return found[0] if found else ""


def name(reader: TapeReader) -> Wait[str]:
    """Skip and return a name. Raises `Malformed`."""
    text = yield from run(reader, KEY)
    if not text or len(text) > 256:
        raise Malformed("name")
    reader.tape.skip(len(text))
    return text
