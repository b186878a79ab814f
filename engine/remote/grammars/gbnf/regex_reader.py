r"""Reads regular expressions in the syntax of llguidance, which is that of Rust's library.

What depends on a version of Unicode (`\w`, `\p{L}`, case folding beyond ASCII) is refused, or replaced by its part
in ASCII where that generates a subset.
"""

import re

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.regular import (
    ALL_CHARACTERS,
    EMPTY,
    UNBOUNDED,
    Charset,
    ExpressionTable,
    invert,
    unite,
)

DIGITS: Charset = ((0x30, 0x39),)
ASCII_BLANKS: Charset = ((0x09, 0x0D), (0x20, 0x20))
WORD: Charset = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_CLASSES = {"d": DIGITS, "s": ASCII_BLANKS, "w": WORD}
ALL_BLANKS = unite(ASCII_BLANKS, ((0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)))
ALL_BLANKS = unite(ALL_BLANKS, ((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)))
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{1,6})(,?)(\d{0,6})\})\??")
GROUP = re.compile(r"\?(?:P?<\w+>|([a-z]*)(?:-([a-z]+))?:)")
HEX = re.compile(r"x([0-9A-Fa-f]{2})|[xuU]\{([0-9A-Fa-f]{1,8})\}|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
MAX_REGEX_DEPTH = 100


class RegexReader:
    """Reads one expression. `flags`: letters such as `i` and `s`. `is_exact` refuses parts of classes."""

    def __init__(self, table: ExpressionTable, source: str, flags: str = "", *, is_exact: bool = False) -> None:
        self._table, self._source, self._is_exact = table, source, is_exact
        self._position = self._depth = 0
        self._flags = frozenset(flags)

    def read(self) -> int:
        """Returns the expression. Raises `UntranslatableError`."""
        if self._flags - set("is"):
            raise UntranslatableError("flags of regular expressions other than i and s")
        result = self._read_options()
        if self._position < len(self._source):
            raise UntranslatableError("an unbalanced parenthesis in a regular expression")
        return result

    def _read_options(self) -> int:
        self._depth += 1
        if self._depth > MAX_REGEX_DEPTH:
            raise UntranslatableError("a regular expression that is nested too deeply")
        options = [self._read_sequence()]
        while self._take("|"):
            options.append(self._read_sequence())
        self._depth -= 1
        return self._table.either(*options)

    def _read_sequence(self) -> int:
        parts = []
        while self._position < len(self._source) and self._source[self._position] not in "|)":
            parts.append(self._read_repeated(self._read_atom()))
        return self._table.concat(*parts)

    def _read_repeated(self, part: int) -> int:
        while match := QUANTIFIER.match(self._source, self._position):
            self._position = match.end()
            sign, low, comma, high = match.groups()
            if sign is not None:
                part = self._table.repeat(part, int(sign == "+"), 1 if sign == "?" else UNBOUNDED)
            else:
                bound = int(high) if high else UNBOUNDED if comma else int(low)
                part = self._table.repeat(part, int(low), bound)
        return part

    def _take(self, text: str) -> bool:
        is_there = self._source.startswith(text, self._position)
        self._position += len(text) if is_there else 0
        return is_there

    def _read_atom(self) -> int:
        letter = self._source[self._position]
        self._position += 1
        if letter == "(":
            return self._read_group()
        if letter == "[":
            return self._table.chars(self._fold(self._read_class()))
        if letter == ".":
            return self._table.chars(ALL_CHARACTERS if "s" in self._flags else invert(((0x0A, 0x0A),)))
        if letter == "\\":
            return self._table.chars(self._fold(self._read_escape(is_negated=False)))
        if letter in "^$":
            is_edge = self._position == 1 if letter == "^" else self._position == len(self._source)
            if not is_edge:
                raise UntranslatableError(f"{letter} inside a regular expression")
            return EMPTY
        if letter in "*+?{":
            raise UntranslatableError("a quantifier without an operand")
        return self._table.chars(self._fold(_one(letter)))

    def _read_group(self) -> int:
        flags = self._flags
        if self._take("?"):
            self._position -= 1
            match = GROUP.match(self._source, self._position)
            if match is None or set((match[1] or "") + (match[2] or "")) - set("is"):
                raise UntranslatableError("look-around or a flag in a regular expression")
            self._position = match.end()
            self._flags = (flags | set(match[1] or "")) - set(match[2] or "")
        result = self._read_options()
        if not self._take(")"):
            raise UntranslatableError("an unbalanced parenthesis in a regular expression")
        self._flags = flags
        return result

    def _read_class(self) -> Charset:
        is_negated = self._take("^")
        parts, is_first = list[Charset](), True
        while is_first or not self._take("]"):
            if self._position >= len(self._source):
                raise UntranslatableError("an unbalanced bracket in a regular expression")
            if self._source[self._position] == "[" or self._source[self._position : self._position + 2] in (
                "&&",
                "--",
                "~~",
            ):
                raise UntranslatableError("operations on classes in a regular expression")
            is_first = False
            low = self._read_class_item(is_negated=is_negated)
            is_range = self._source.startswith("-", self._position) and not self._source.startswith(
                "-]", self._position
            )
            if is_range:
                self._position += 1
                high = self._read_class_item(is_negated=is_negated)
                low = ((low[0][0], high[-1][1]),)
                if low[0][0] > low[0][1]:
                    raise UntranslatableError("a range that is empty in a regular expression")
            parts.append(low)
        charset = unite(*parts)
        return invert(self._fold(charset)) if is_negated else charset

    def _read_class_item(self, *, is_negated: bool) -> Charset:
        letter = self._source[self._position]
        self._position += 1
        return self._read_escape(is_negated=is_negated) if letter == "\\" else _one(letter)

    def _read_escape(self, *, is_negated: bool) -> Charset:
        if match := HEX.match(self._source, self._position):
            self._position = match.end()
            return _one(chr(int(next(each for each in match.groups() if each), 16)))
        letter = self._source[self._position : self._position + 1]
        self._position += 1
        if letter.lower() in ASCII_CLASSES and letter:
            if self._is_exact or (is_negated and letter != "s"):
                raise UntranslatableError("a class of Unicode that must be exact in a regular expression")
            if letter.islower():
                return ALL_BLANKS if is_negated else ASCII_CLASSES[letter]
            if letter == "S" and not is_negated:
                return invert(ALL_BLANKS)
            raise UntranslatableError(f"the class \\{letter} in a regular expression")
        if letter in CONTROLS:
            return _one(CONTROLS[letter])
        if letter.isalnum() or not letter:
            raise UntranslatableError(f"\\{letter} in a regular expression")
        return _one(letter)

    def _fold(self, charset: Charset) -> Charset:
        """Adds the other case if the flag i is set."""
        if "i" not in self._flags:
            return charset
        if any(high > 0x7F for _, high in charset):
            raise UntranslatableError("a case-insensitive regular expression beyond ASCII")
        letters = {chr(code) for low, high in charset for code in range(low, high + 1)}
        folded = {each for letter in letters for each in (letter.lower(), letter.upper())}
        return unite(*map(_one, folded))


def _one(letter: str) -> Charset:
    return ((ord(letter), ord(letter)),)
