"""Regular expressions with intersection and complement, and their derivatives.

An expression is a number in a table, equal expressions have one number, and every result is kept. The derivative of an
expression by a character matches what may follow that character (J. Brzozowski, 1964); the distinct derivatives are the
states of an automaton.
"""

from collections.abc import Iterable
from typing import Any

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError

Charset = tuple[tuple[int, int], ...]
"""Code points as sorted intervals that do not touch, both ends included."""
ALL_CHARACTERS: Charset = ((0, 0xD7FF), (0xE000, 0x10FFFF))
MAX_EXPRESSIONS = 40_000
NONE, EMPTY, ANYTHING = 0, 1, 2
"""Numbers of three expressions: no text, the empty text, every text."""
UNBOUNDED = -1


def unite(*charsets: Charset) -> Charset:
    """Returns the union."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(interval for charset in charsets for interval in charset):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def invert(charset: Charset) -> Charset:
    """Returns all other characters."""
    result, start = [], 0
    for low, high in (*unite(charset, ((0xD800, 0xDFFF),)), (0x110000, 0x110000)):
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    return tuple(result)


def intersect(one: Charset, other: Charset) -> Charset:
    """Returns the intersection."""
    return invert(unite(invert(one), invert(other)))


class ExpressionTable:
    """Creates expressions. Keys: a kind and its operands."""

    def __init__(self) -> None:
        self.keys: list[tuple[Any, ...]] = [("chars", ()), ("empty",), ("not", NONE)]
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        self._derivatives: dict[tuple[int, int], int] = {}
        self._nullable: dict[int, bool] = {EMPTY: True}

    def _intern(self, *key: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self.keys) >= MAX_EXPRESSIONS:
                raise UntranslatableError("a pattern is too large")
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number

    def chars(self, charset: Charset) -> int:
        """Matches one of these characters."""
        return self._intern("chars", charset)

    def literal(self, text: str) -> int:
        """Matches this text."""
        return self.concat(*(self.chars(((ord(letter), ord(letter)),)) for letter in text))

    def concat(self, *parts: int) -> int:
        """Matches the parts one after another."""
        result = EMPTY
        for part in reversed(parts):
            result = self._concat_pair(part, result)
        return result

    def _concat_pair(self, first: int, rest: int) -> int:
        if NONE in (first, rest):
            return NONE
        if first == EMPTY:
            return rest
        if rest == EMPTY:
            return first
        key = self.keys[first]
        if key[0] == "concat":
            return self._concat_pair(key[1], self._concat_pair(key[2], rest))
        follows = self.keys[rest]
        if first == ANYTHING and (rest == ANYTHING or (follows[0] == "concat" and follows[1] == ANYTHING)):
            return rest
        return self._intern("concat", first, rest)

    def either(self, *options: int) -> int:
        """Matches one of the options."""
        found, charset = set[int](), Charset()
        for option in self._flatten("either", options):
            key = self.keys[option]
            if option == ANYTHING:
                return ANYTHING
            if key[0] == "chars":
                charset = unite(charset, key[1])
            else:
                found.add(option)
        if charset:
            found.add(self.chars(charset))
        if len(found) == 1:
            return found.pop()
        return self._intern("either", *sorted(found)) if found else NONE

    def both(self, *parts: int) -> int:
        """Matches what all parts match."""
        found = set(self._flatten("both", parts)) - {ANYTHING}
        if NONE in found:
            return NONE
        charsets = [part for part in found if self.keys[part][0] == "chars"]
        if len(charsets) > 1:
            charset = self.keys[charsets[0]][1]
            for part in charsets[1:]:
                charset = intersect(charset, self.keys[part][1])
            return self.both(*(found - set(charsets)), self.chars(charset))
        if len(found) == 1:
            return found.pop()
        return self._intern("both", *sorted(found)) if found else ANYTHING

    def _flatten(self, kind: str, operands: Iterable[int]) -> list[int]:
        flat: list[int] = []
        for operand in operands:
            key = self.keys[operand]
            flat += key[1:] if key[0] == kind else (operand,)
        return flat

    def complement(self, part: int) -> int:
        """Matches what the part does not match."""
        key = self.keys[part]
        return key[1] if key[0] == "not" else self._intern("not", part)

    def repeat(self, part: int, low: int, high: int) -> int:
        """Matches the part `low` to `high` times; `high` may be `UNBOUNDED`."""
        if part in (EMPTY, ANYTHING) and (high or part == EMPTY):
            return part
        if high == 0 or part == NONE:
            return NONE if part == NONE and low else EMPTY
        if (low, high) == (1, 1):
            return part
        if self.is_nullable(part):
            low = 0
        if self.keys[part] == ("chars", ALL_CHARACTERS) and (low, high) == (0, UNBOUNDED):
            return ANYTHING
        return self._intern("repeat", part, low, high)

    def is_nullable(self, number: int) -> bool:
        """Returns true if the empty text matches."""
        known = self._nullable.get(number)
        if known is None:
            kind, *operands = self.keys[number]
            if kind == "chars":
                known = False
            elif kind in ("concat", "both"):
                known = all(map(self.is_nullable, operands))
            elif kind == "either":
                known = any(map(self.is_nullable, operands))
            elif kind == "not":
                known = not self.is_nullable(operands[0])
            else:
                known = operands[1] == 0 or self.is_nullable(operands[0])
            self._nullable[number] = known
        return known

    def derive(self, number: int, character: int) -> int:
        """Returns what may follow this character."""
        place = (number, character)
        known = self._derivatives.get(place)
        if known is None:
            known = self._derivatives[place] = self._derive(number, character)
        return known

    def _derive(self, number: int, character: int) -> int:
        kind, *operands = self.keys[number]
        if kind == "chars":
            return EMPTY if any(low <= character <= high for low, high in operands[0]) else NONE
        if kind == "empty":
            return NONE
        if kind == "concat":
            first, rest = operands
            after = self._concat_pair(self.derive(first, character), rest)
            return self.either(after, self.derive(rest, character)) if self.is_nullable(first) else after
        if kind == "repeat":
            part, low, high = operands
            left = self.repeat(part, max(low - 1, 0), high if high == UNBOUNDED else high - 1)
            return self._concat_pair(self.derive(part, character), left)
        derived = [self.derive(operand, character) for operand in operands]
        if kind == "not":
            return self.complement(derived[0])
        return self.either(*derived) if kind == "either" else self.both(*derived)

    def list_boundaries(self, number: int) -> set[int]:
        """Returns characters at which the derivative may begin to differ from that of the character before."""
        kind, *operands = self.keys[number]
        if kind == "chars":
            return {bound for low, high in operands[0] for bound in (low, high + 1)}
        if kind == "empty":
            return set()
        if kind == "repeat":
            return self.list_boundaries(operands[0])
        if kind == "concat" and not self.is_nullable(operands[0]):
            return self.list_boundaries(operands[0])
        return set().union(*map(self.list_boundaries, operands))
