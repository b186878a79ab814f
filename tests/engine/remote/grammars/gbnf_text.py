"""Reads GBNF text and generates texts of it, independently of the code that writes it.

It knows the forms that the translation uses: literals, classes, tokens, names and counts.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from random import Random
from typing import Any

SYMBOL = re.compile(
    r'(?:"(?P<literal>(?:\\.|[^"\\])*)"|\[(?P<sign>\^?)(?P<charset>(?:\\.|[^\]\\])*)\]|<\[(?P<token>\d+)\]>|(?P<any>\.)'
    r"|(?P<name>[a-z0-9-]+))(?:(?P<quantifier>[*+?])|\{(?P<low>\d+)(?P<comma>,?)(?P<high>\d*)\})?"
)
ESCAPE = re.compile(r"\\x([0-9A-F]{2})|\\u([0-9A-F]{4})|\\U([0-9A-F]{8})|\\?(.)", re.DOTALL)
UNUSUAL = "é漢🙂\u200b"


@dataclass(frozen=True)
class GbnfSymbol:
    literal: str | None
    charset: str | None
    is_negated: bool
    token: int | None
    name: str | None
    low: int
    high: int | None


class Gbnf:
    """A parsed grammar."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, list[list[GbnfSymbol]]] = {}
        for line in text.splitlines():
            name, _, body = line.partition(" ::= ")
            self.rules[name] = _read_alternatives(body)

    @cached_property
    def costs(self) -> dict[str, float]:
        """Fewest characters of a text of each rule."""
        costs = dict.fromkeys(self.rules, float("inf"))
        has_changed = True
        while has_changed:
            has_changed = False
            for name, alternatives in self.rules.items():
                cost = min(self._cost(each, costs) for each in alternatives)
                if cost < costs[name]:
                    costs[name], has_changed = cost, True
        return costs

    def _cost(self, alternative: list[GbnfSymbol], costs: dict[str, float]) -> float:
        return sum(
            0 if symbol.low == 0 else symbol.low * (1 if symbol.name is None else costs[symbol.name])
            for symbol in alternative
        )

    def sample(self, random: Random, budget: int = 60) -> list[str | int]:
        """Returns a random text, as strings and token ids. Beyond the budget, the shortest ways are taken."""
        output: list[str | int] = []
        pending = [GbnfSymbol(None, None, False, None, "root", 1, 1)]
        while pending:
            symbol = pending.pop()
            is_short = len(output) > budget
            if (symbol.low, symbol.high) != (1, 1):
                count = symbol.low
                while not is_short and (symbol.high is None or count < symbol.high) and random.random() < 0.7:
                    count += 1
                one = GbnfSymbol(symbol.literal, symbol.charset, symbol.is_negated, symbol.token, symbol.name, 1, 1)
                pending += [one] * count
            elif symbol.name is not None:
                alternatives = self.rules[symbol.name]
                chosen = random.choice(alternatives)
                if is_short:
                    chosen = min(alternatives, key=lambda each: self._cost(each, self.costs))
                pending += reversed(chosen)
            elif symbol.token is not None:
                output.append(symbol.token)
            elif symbol.literal is not None:
                output.append(symbol.literal)
            else:
                output.append(_sample_charset(symbol, random))
        return output

    def expand(self, stacks: set[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
        """Replaces rules at the top of stacks, the first element, until each begins with a character or a token."""
        done, pending = set[tuple[Any, ...]](), [*stacks]
        seen = set[tuple[Any, ...]]()
        while pending:
            stack = pending.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if not stack:
                done.add(stack)
            elif isinstance(stack[0], str):
                pending += [(*each, *stack[1:]) for each in self.rules[stack[0]]]
            elif (stack[0].low, stack[0].high) != (1, 1):
                pending += _unroll(stack[0], stack[1:])
            elif stack[0].name is not None:
                pending.append((stack[0].name, *stack[1:]))
            elif stack[0].literal is not None:
                letters = [
                    replace(stack[0], literal=None, charset=f"\\U{ord(letter):08X}") for letter in stack[0].literal
                ]
                pending.append((*letters, *stack[1:]))
            else:
                done.add(stack)
        return done

    def advance(self, stacks: set[tuple[Any, ...]], part: str | int) -> set[tuple[Any, ...]]:
        """Returns the stacks after a character or a token."""
        return self.expand({stack[1:] for stack in stacks if stack and _matches(stack[0], part)})


def _unroll(symbol: "GbnfSymbol", rest: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Returns the stacks with one repetition fewer."""
    one = replace(symbol, low=1, high=1)
    if symbol.high == 0:
        return [rest]
    left = replace(symbol, low=max(symbol.low - 1, 0), high=None if symbol.high is None else symbol.high - 1)
    return [(one, left, *rest), *([rest] if symbol.low == 0 else [])]


def _matches(symbol: "GbnfSymbol", part: str | int) -> bool:
    if isinstance(part, int):
        return symbol.token == part
    if symbol.charset is None:
        return False
    return any(low <= ord(part) <= high for low, high in _read_intervals(symbol.charset)) != symbol.is_negated


def _read_alternatives(body: str) -> list[list[GbnfSymbol]]:
    alternatives: list[list[GbnfSymbol]] = [[]]
    position = 0
    while position < len(body):
        if body[position] == " ":
            position += 1
        elif body[position] == "|":
            alternatives.append([])
            position += 1
        else:
            match = SYMBOL.match(body, position)
            assert match is not None, body[position : position + 40]
            alternatives[-1].append(_read_symbol(match))
            position = match.end()
    return alternatives


def _read_symbol(match: re.Match[str]) -> GbnfSymbol:
    low, high = {"*": (0, None), "+": (1, None), "?": (0, 1), None: (1, 1)}[match["quantifier"]]
    if match["low"]:
        low = int(match["low"])
        high = int(match["high"]) if match["high"] else None if match["comma"] else low
        assert low <= 2000 and (high is None or high <= 2000), "llama.cpp takes such a bound for none"
    literal = None if match["literal"] is None else "".join(map(_decode, ESCAPE.finditer(match["literal"])))
    charset = "" if match["any"] else match["charset"]
    is_negated = match["sign"] == "^" or match["any"] is not None
    token = int(match["token"]) if match["token"] else None
    return GbnfSymbol(literal, charset, is_negated, token, match["name"], low, high)


def _decode(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else escape[4]


def _sample_charset(symbol: GbnfSymbol, random: Random) -> str:
    intervals = _read_intervals(symbol.charset or "")
    if not symbol.is_negated:
        low, high = random.choice(intervals)
        return chr(random.choice([low, high, random.randint(low, high)]))
    while True:
        letter = random.choice([chr(random.randrange(0x20, 0x7F)), random.choice(UNUSUAL)])
        if not any(low <= ord(letter) <= high for low, high in intervals):
            return letter
        if random.random() < 0.01:
            letter = chr(random.randrange(0x80, 0xD800))
            if not any(low <= ord(letter) <= high for low, high in intervals):
                return letter


@cache
def _read_intervals(text: str) -> list[tuple[int, int]]:
    letters = [(_decode(match), match[0]) for match in ESCAPE.finditer(text)]
    intervals, position = [], 0
    while position < len(letters):
        letter = ord(letters[position][0])
        if position + 2 < len(letters) and letters[position + 1][1] == "-":
            intervals.append((letter, ord(letters[position + 2][0])))
            position += 3
        else:
            intervals.append((letter, letter))
            position += 1
    return intervals
