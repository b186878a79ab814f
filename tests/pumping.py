"""Inputs that make a backtracking regular expression slow, derived from the expression itself.

A matcher that backtracks is slow on a text that a repeated part of the expression can read in several ways, or that the
expression reads far from each start before it fails. Such a text is a prefix that leads to the repeated part, a piece
that it reads, repeated many times, and an end that does not match. `find_slow_input` builds these texts from the syntax
tree of an expression and measures them.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, permutations
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

ALPHABET = "a0Z _-.:;,=/<>{}[]()|\"'!?*+$%&#@\\\n\t\x00é\ue000\ud800"
"""Characters from which inputs are made: letters, digits, blanks, and what syntaxes use."""
LONG_REPEAT = 16
"""Smallest maximum of a repetition that counts as long."""
MAX_CHARS = 8
"""Number of characters that stand for those of an expression."""
SMALL_SIZES = (8, 10, 12, 14, 16, 18, 20, 23, 26, 30, 34, 40, 48, 64, 128, 250)
"""Characters of the first inputs, in this order: an exponential expression is noticed at a small one."""
SIZE, LARGE_SIZE = 500, 2_000
"""Characters of the inputs between which the growth of the CPU time is measured."""
SUSPECT_S = 0.000_5
"""CPU time of a large input from which on its growth is measured. One linear scan takes a tenth of it."""
HOPELESS_S = 0.05
"""CPU time from which on an input counts as slow without a measurement of its growth."""
MAX_GROWTH_FACTOR = 9.0
"""Growth of the CPU time with the size of the text: 4 if it is linear, 16 if it is quadratic."""
METHODS = ("match", "fullmatch", "search", "findall")


def find_slow_input(pattern: str | bytes, flags: int = 0, methods: Iterable[str] = METHODS) -> str:
    """Returns a description of an input on which the expression takes more than linear time; empty if there is none."""
    compiled = re.compile(pattern, flags)
    for method in methods:
        run: Callable[[Any], Any] = getattr(compiled, method)
        for build in _list_inputs(compiled):
            if _is_slow(run, build):
                return f"{method} on {build(12)[:80]!r}… takes more than linear time"
    return ""


def _list_inputs(compiled: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    is_bytes = isinstance(compiled.pattern, bytes)
    inputs = _Expression(compiled).list_inputs()
    for prefix, pump, end in inputs:
        if is_bytes and not f"{prefix}{pump}{end}".isascii():
            continue

        def build(size: int, prefix: str = prefix, pump: str = pump, end: str = end) -> Any:
            text = prefix + pump * (size // len(pump)) + end
            return text.encode() if is_bytes else text

        yield build


def _is_slow(run: Callable[[Any], Any], build: Callable[[int], Any]) -> bool:
    seconds = 0.0
    for size in (*SMALL_SIZES, SIZE, LARGE_SIZE // 2, LARGE_SIZE):
        seconds = _measure(run, build(size))
        if seconds > HOPELESS_S:
            return True
    return seconds > SUSPECT_S and all(_grows_fast(run, build) for _ in range(3))


def _grows_fast(run: Callable[[Any], Any], build: Callable[[int], Any]) -> bool:
    small, large = (min(_measure(run, build(size)) for _ in range(3)) for size in (SIZE, LARGE_SIZE))
    return large > small * MAX_GROWTH_FACTOR


def _measure(run: Callable[[Any], Any], text: Any) -> float:
    started = time.thread_time()
    run(text)
    return time.thread_time() - started


class _Expression:
    """The syntax tree of an expression, with texts that its parts match."""

    def __init__(self, compiled: re.Pattern[Any]) -> None:
        self._tree = _parser.parse(compiled.pattern, compiled.flags & ~re.DEBUG)
        self._chars: dict[int, str] = {}

    def list_inputs(self) -> Iterator[tuple[str, str, str]]:
        """Yields prefixes, pumps and ends."""
        chars = "".join(dict.fromkeys(char for node in self._walk(self._tree) for char in self._find_chars(node)[:3]))
        chars = chars[:MAX_CHARS]
        repeats = list(self._find_repeats(self._tree, ""))
        whole = self._sample(self._tree)
        pumps = dict.fromkeys([*chars, *(body for _, body in repeats), whole, whole[:-1], whole[1:]])
        if len(repeats) > 1 or len(chars) < 5:
            pumps |= dict.fromkeys(map("".join, permutations(chars[:5], 2)))
        prefixes = dict.fromkeys(["", *(prefix for prefix, _ in repeats), *whole[:1]])
        stranger = next((char for char in "\x00!~" if char not in chars), "\x00")
        ends = ("", stranger, f"{whole[-1:]}{stranger}")
        for pump in filter(None, pumps):
            for prefix in islice(prefixes, 6):
                for end in dict.fromkeys(ends):
                    yield prefix, pump, end

    def _walk(self, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yields all nodes that match single characters."""
        for operator, value in items:
            yield operator, value
            for inner in _inner_sequences(operator, value):
                yield from self._walk(inner)

    def _find_repeats(self, items: Sequence[Any], prefix: str) -> Iterator[tuple[str, str]]:
        """Yields a text that leads to each long repetition, and one that its body matches."""
        for operator, value in items:
            if operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
                least, most, body = value
                if most - least >= LONG_REPEAT:
                    yield prefix, self._sample(body)
            for inner in _inner_sequences(operator, value):
                yield from self._find_repeats(inner, prefix)
            prefix += self._sample([(operator, value)])

    def _sample(self, items: Iterable[Any]) -> str:
        """Returns a text that a sequence of nodes matches, apart from what stands around it."""
        return "".join(self._sample_node(operator, value) for operator, value in items)

    def _sample_node(self, operator: Any, value: Any) -> str:
        if operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            least, most, body = value
            return self._sample(body) * min(max(least, 1), most, 64)
        if operator == _constants.BRANCH:
            return max((self._sample(branch) for branch in value[1]), key=len)
        if operator in (_constants.SUBPATTERN, _constants.ATOMIC_GROUP):
            return self._sample(_inner_sequences(operator, value)[0])
        return self._find_chars((operator, value))[:1]

    def _find_chars(self, node: tuple[Any, Any]) -> str:
        """Returns the characters of the alphabet that a node of one character matches."""
        operator, value = node
        if operator == _constants.LITERAL:
            return chr(value)
        if operator not in (_constants.IN, _constants.ANY, _constants.NOT_LITERAL):
            return ""
        if id(value) not in self._chars or operator == _constants.ANY:
            one = _compiler.compile(_parser.SubPattern(self._tree.state, [node]), self._tree.state.flags)
            is_bytes = isinstance(self._tree.state.str, bytes)
            alphabet = [char for char in ALPHABET if not is_bytes or char.isascii()]
            self._chars[id(value)] = "".join(
                char for char in alphabet if one.fullmatch(char.encode() if is_bytes else char)
            )
        return self._chars[id(value)]


def _inner_sequences(operator: Any, value: Any) -> list[Any]:
    """Returns the sequences of nodes inside a node."""
    if operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        return [value[2]]
    if operator == _constants.SUBPATTERN:
        return [value[3]]
    if operator == _constants.ATOMIC_GROUP:
        return [value]
    if operator == _constants.BRANCH:
        return list(value[1])
    if operator in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [value[1]]
    if operator == _constants.GROUPREF_EXISTS:
        return [part for part in value[1:] if part is not None]
    return []
