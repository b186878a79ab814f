"""JSON read as it comes: where a value ends, and what an escape stands for.

Values are passed through as they were written, so nothing here parses one; only its extent has to be known. That the
text inside is good JSON is the model's business, or its grammar's.
"""

import re
from collections.abc import Callable

from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE

# A control token is never text: a string with one in it is ruined, since leaving it out would change what it says.
_INSIDE = re.compile(rf'[^"\\{CONTROL_RANGE}]*')
# No value can hold a '<' outside its strings, and a mark there is a marker: the model has gone elsewhere.
_OUTSIDE = re.compile(r'[^"{}\[\]<\ud800-\udfff]*')
_SCALAR = re.compile(r"[-+.\w]*")
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
MAX_KEY_CHARS = 256
PIECE_CHARS = 1024
"""Characters that are looked at before they are taken: who takes may have had enough."""


class Extent:
    """Finds the end of the value that begins where it is first asked."""

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self.scalar = False
        self._depth = 0
        self._string = False
        self._escaped = False
        self._begun = False

    def advance(self, text: str, at: int) -> int:
        """Up to where the text from `at` on belongs to the value; then `done`, `bad`, or there is no more text."""
        if not self._begun and at < len(text):
            self._begun = True
            self.scalar = text[at] not in '"{['
        while at < len(text) and not self.done and not self.bad:
            if self.scalar:
                at = _match_end(_SCALAR, text, at)
                self.done = at < len(text)
            elif self._escaped:
                self._escaped = False
                self.bad = text[at] >= CONTROL_RANGE[0] and text[at] <= CONTROL_RANGE[-1]
                at += not self.bad
            elif self._string:
                at = self._in_string(text, _match_end(_INSIDE, text, at))
            else:
                at = self._in_value(text, _match_end(_OUTSIDE, text, at))
        return at

    def _in_string(self, text: str, at: int) -> int:
        if at == len(text):  # as at the end of most tokens
            return at
        letter = text[at]
        self._escaped = letter == "\\"
        self._string = letter != '"'
        self.bad = letter not in {'"', "\\"}
        self.done = letter == '"' and self._depth == 0
        return at + (not self.bad)

    def _in_value(self, text: str, at: int) -> int:
        letter = text[at : at + 1]
        self._string = letter == '"'
        self._depth += (letter in {"{", "["}) - (letter in {"}", "]"})
        self.bad = letter not in {'"', "{", "[", "}", "]", ""}
        self.done = letter in {"}", "]"} and self._depth == 0
        return at + (letter != "" and not self.bad)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def read_value(tape: Tape, take: Callable[[int], object]) -> Parser[None]:
    """Read one value, giving `take` the lengths of its pieces. Raises `Malformed` at what cannot belong to it."""
    extent, empty = Extent(), True
    while (yield from tape.wait_more()):
        if count := extent.advance(tape.peek(PIECE_CHARS), 0):
            take(count)
            empty = False
        if extent.bad or empty:
            break
        if extent.done:
            return
    if empty or not extent.scalar:
        raise MalformedText("value")


def read_string(tape: Tape, take: Callable[[int], object], make: Callable[[str, int], object]) -> Parser[None]:
    """Read a string and say what it stands for: `take` gets plain runs, `make` each escape. Raises `Malformed`."""
    yield from tape.expect('"')
    while (yield from tape.wait_more()):
        if count := _match_end(_INSIDE, tape.text, tape.index) - tape.index:
            take(count)
        elif tape.peek() == '"':
            tape.skip(1)
            return
        elif tape.peek() == "\\":
            text, count = yield from _read_escape(tape)
            make(text, count)
        else:
            break
    raise MalformedText("string")


def _read_escape(tape: Tape) -> Parser[tuple[str, int]]:
    """What the escape here stands for, and its length."""
    if not (yield from tape.wait_count(2)):
        raise MalformedText("escape")
    letter = tape.peek(2)[1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], 2
    if letter != "u" or not (yield from tape.wait_count(6)) or not _HEX.fullmatch(tape.peek(6)[1:]):
        return "\\", 1  # no escape at all: a backslash as it stands
    code = int(tape.peek(6).removeprefix("\\u"), base=16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), 6
    # Half a character: the other half follows, or it never was one.
    if code < 0xDC00 and (yield from _pair_follows(tape)):
        low = int(tape.peek(12)[8:], base=16)
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return "�", 6


def _pair_follows(tape: Tape) -> Parser[bool]:
    for place, letters in enumerate(("\\", "u", "dD", "cdefCDEF")):
        if not (yield from tape.wait_count(7 + place)) or tape.peek(7 + place)[-1] not in letters:
            return False
    yield from tape.wait_count(12)
    return _HEX.fullmatch(tape.peek(12)[7:]) is not None


def skip_name(tape: Tape) -> Parser[str]:
    """Skip a short string without escapes that matter, and return its text. Raises `Malformed`."""
    yield from tape.expect('"')
    return (yield from tape.skip_word('"', MAX_KEY_CHARS))


def skip_key(tape: Tape) -> Parser[str]:
    """Skip a member's name, its colon and the blanks around. Raises `Malformed`."""
    yield from tape.skip_whitespace()
    text = yield from skip_name(tape)
    yield from tape.skip_whitespace()
    yield from tape.expect(":")
    yield from tape.skip_whitespace()
    return text


def skip_comma(tape: Tape) -> Parser[None]:
    """Skip to the next member, or stay at the end of the object. Raises `Malformed` at anything else."""
    yield from tape.skip_whitespace()
    if not (yield from tape.skip_literal(",")) and not (yield from tape.stands_here("}")):
        raise MalformedText("member")
    yield from tape.skip_whitespace()
