"""Incremental JSON scanning: finds the end of a value, and decodes escapes.

Values are passed through as the model wrote them, so nothing here parses one; only its extent is needed. The model,
or its grammar, is responsible for valid JSON inside.
"""

import re
from collections.abc import Callable

from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE

# A control token is never text. A string with one in it is malformed, because leaving it out would change the string.
_INSIDE = re.compile(rf'[^"\\{CONTROL_RANGE}]*')
# Outside its strings no value contains '<' or a marker character: the model has begun something else.
_OUTSIDE = re.compile(r'[^"{}\[\]<\ud800-\udfff]*')
_SCALAR = re.compile(r"[-+.\w]*")
_UNICODE_ESCAPE = re.compile(r"u[0-9a-fA-F]{4}")
_JSON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
MAX_KEY_CHARS = 256
PIECE_CHARS = 1024
"""Characters scanned before each call of `take`, which may raise at its limit: scanning more would be wasted."""


class Extent:
    """Finds the end of a JSON value, which begins at the index of the first `advance`."""

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self.scalar = False
        self._depth = 0
        self._string = False
        self._escaped = False
        self._begun = False

    def advance(self, text: str, at: int) -> int:
        """Returns the index up to which the text belongs to the value. Sets `done` or `bad`, or uses up the text."""
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
        if at == len(text):  # true at the end of most tokens
            return at
        char = text[at]
        self._escaped = char == "\\"
        self._string = char != '"'
        self.bad = char not in {'"', "\\"}
        self.done = char == '"' and self._depth == 0
        return at + (not self.bad)

    def _in_value(self, text: str, at: int) -> int:
        char = text[at : at + 1]
        self._string = char == '"'
        self._depth += (char in {"{", "["}) - (char in {"}", "]"})
        self.bad = char not in {'"', "{", "[", "}", "]", ""}
        self.done = char in {"}", "]"} and self._depth == 0
        return at + (char != "" and not self.bad)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def read_value(tape: Tape, take: Callable[[int], object]) -> Parser[None]:
    """Reads a value, passing its pieces' lengths to `take`. Raises `MalformedText` at text that cannot belong to it."""
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
    """Reads a string: `take` gets the runs without escapes, `make` each decoded escape. Raises `MalformedText`."""
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
    """Returns the text that the escape here stands for, and the length of the escape."""
    if not (yield from tape.wait_count(2)):
        raise MalformedText("escape")
    char = tape.peek(2)[1]
    if char in _JSON_ESCAPES:
        return _JSON_ESCAPES[char], 2
    if char != "u" or not (yield from tape.wait_count(6)) or not _UNICODE_ESCAPE.fullmatch(tape.peek(6)[1:]):
        return "\\", 1  # not an escape: a literal backslash
    code = int(tape.peek(6).removeprefix("\\u"), base=16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), 6
    # A surrogate: the other half of its pair follows, or it is replaced.
    if code < 0xDC00 and (yield from _pair_follows(tape)):
        low = int(tape.peek(12)[8:], base=16)
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return "�", 6


def _pair_follows(tape: Tape) -> Parser[bool]:
    for offset, allowed in enumerate(("\\", "u", "dD", "cdefCDEF")):
        if not (yield from tape.wait_count(7 + offset)) or tape.peek(7 + offset)[-1] not in allowed:
            return False
    yield from tape.wait_count(12)
    return _UNICODE_ESCAPE.fullmatch(tape.peek(12)[7:]) is not None


def skip_name(tape: Tape) -> Parser[str]:
    """Skips a short string and returns its text, with escapes not decoded. Raises `MalformedText`."""
    yield from tape.expect('"')
    return (yield from tape.skip_word('"', MAX_KEY_CHARS))


def skip_key(tape: Tape) -> Parser[str]:
    """Skips a member's name, its colon and the blanks around them. Returns the name. Raises `MalformedText`."""
    yield from tape.skip_whitespace()
    text = yield from skip_name(tape)
    yield from tape.skip_whitespace()
    yield from tape.expect(":")
    yield from tape.skip_whitespace()
    return text


def skip_other_members(tape: Tape) -> Parser[None]:
    """Skips the members after one that was read, up to the brace that closes the object. Raises `MalformedText`."""
    yield from tape.skip_whitespace()
    while (yield from tape.skip_literal(",")):
        yield from tape.skip_whitespace()
        if (yield from tape.matches_here("}")):
            return  # models write a comma before the brace, too
        yield from skip_key(tape)
        yield from read_value(tape, tape.skip)
        yield from tape.skip_whitespace()


def skip_comma(tape: Tape, closer: str = "}") -> Parser[None]:
    """Skips to the next element, or stops at the closer. Raises `MalformedText` at anything else."""
    yield from tape.skip_whitespace()
    if not (yield from tape.skip_literal(",")) and not (yield from tape.matches_here(closer)):
        raise MalformedText("member")
    yield from tape.skip_whitespace()
