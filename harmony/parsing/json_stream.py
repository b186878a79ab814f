"""JSON read as it comes: where a value ends, and what an escape stands for.

Values are passed through as they were written, so nothing here parses one; only its extent has to be known. That the
text inside is good JSON is the model's business, or its grammar's.
"""

import re
from collections.abc import Callable

from antiphon.harmony.parsing.tape import Malformed, Tape, Wait
from antiphon.harmony.tokens.detokenizer import CONTROLS

# A control token is never text: a string with one in it is ruined, since leaving it out would change what it says.
_INSIDE = re.compile(rf'[^"\\{CONTROLS}]*')
# No value can hold a '<' outside its strings, and a mark there is a marker: the model has gone elsewhere.
_OUTSIDE = re.compile(r'[^"{}\[\]<\ud800-\udfff]*')
_SCALAR = re.compile(r"[-+.\w]*")
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
LONGEST_NAME = 256
PIECE = 1024
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
                at = _end(_SCALAR, text, at)
                self.done = at < len(text)
            elif self._escaped:
                self._escaped = False
                self.bad = text[at] >= CONTROLS[0] and text[at] <= CONTROLS[-1]
                at += not self.bad
            elif self._string:
                at = self._in_string(text, _end(_INSIDE, text, at))
            else:
                at = self._in_value(text, _end(_OUTSIDE, text, at))
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


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def value(tape: Tape, take: Callable[[int], object]) -> Wait[None]:
    """Read one value, giving `take` the lengths of its pieces. Raises `Malformed` at what cannot belong to it."""
    extent, empty = Extent(), True
    while (yield from tape.more()):
        if count := extent.advance(tape.peek(PIECE), 0):
            take(count)
            empty = False
        if extent.bad or empty:
            break
        if extent.done:
            return
    if empty or not extent.scalar:
        raise Malformed("value")


def string(tape: Tape, take: Callable[[int], object], make: Callable[[str, int], object]) -> Wait[None]:
    """Read a string and say what it stands for: `take` gets plain runs, `make` each escape. Raises `Malformed`."""
    yield from tape.expect('"')
    while (yield from tape.more()):
        if count := _end(_INSIDE, tape.text, tape.pos) - tape.pos:
            take(count)
        elif tape.peek() == '"':
            tape.skip(1)
            return
        elif tape.peek() == "\\":
            text, count = yield from _escape(tape)
            make(text, count)
        else:
            break
    raise Malformed("string")


def _escape(tape: Tape) -> Wait[tuple[str, int]]:
    """What the escape here stands for, and its length."""
    if not (yield from tape.have(2)):
        raise Malformed("escape")
    letter = tape.peek(2)[1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], 2
    if letter != "u" or not (yield from tape.have(6)) or not _HEX.fullmatch(tape.peek(6)[1:]):
        return "\\", 1  # no escape at all: a backslash as it stands
    code = int(tape.peek(6).removeprefix("\\u"), base=16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), 6
    # Half a character: the other half follows, or it never was one.
    if code < 0xDC00 and (yield from _pair_follows(tape)):
        low = int(tape.peek(12)[8:], base=16)
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return "�", 6


def _pair_follows(tape: Tape) -> Wait[bool]:
    for place, letters in enumerate(("\\", "u", "dD", "cdefCDEF")):
        if not (yield from tape.have(7 + place)) or tape.peek(7 + place)[-1] not in letters:
            return False
    yield from tape.have(12)
    return _HEX.fullmatch(tape.peek(12)[7:]) is not None


def name(tape: Tape) -> Wait[str]:
    """Skip a short string without escapes that matter, and return its text. Raises `Malformed`."""
    yield from tape.expect('"')
    return (yield from tape.word('"', LONGEST_NAME))


def key(tape: Tape) -> Wait[str]:
    """Skip a member's name, its colon and the blanks around. Raises `Malformed`."""
    yield from tape.blanks()
    text = yield from name(tape)
    yield from tape.blanks()
    yield from tape.expect(":")
    yield from tape.blanks()
    return text


def comma(tape: Tape) -> Wait[None]:
    """Skip to the next member, or stay at the end of the object. Raises `Malformed` at anything else."""
    yield from tape.blanks()
    if not (yield from tape.literal(",")) and not (yield from tape.sees("}")):
        raise Malformed("member")
    yield from tape.blanks()
