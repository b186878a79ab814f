"""Regular expressions of an adapter's configuration, matched against names of layers in a bounded number of steps.

Clients may write them, and Python's own matcher can take years for one. The parsed expression becomes an automaton, and
the matcher follows all of its states at once: it takes at most states times characters, once more for each position at
which the expression looks ahead.

It tells what `re.fullmatch` tells. References to groups, atomic groups and looking behind need more than an automaton
and are refused. RE2 would refuse looking ahead, too, which three of nine published patterns do.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

parser: Any = importlib.import_module("re._parser")
codes: Any = importlib.import_module("re._constants")
"""Python's parser of regular expressions, and the names of the parts that it finds. Neither has types."""

MAX_PATTERN_CHARS = 4096
MAX_STATES = 2000
MAX_PATTERN_STEPS = 1_000_000
"""States that are visited in all matches of an expression, in less than a second. With 560 layers, the longest
expressions of published adapters visit a quarter of them."""

MAX_LAYER_NAME_CHARS = 512
"""Longest name of a layer that is compared with an expression."""

CATEGORIES: dict[Any, Callable[[str], bool]] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    codes.CATEGORY_WORD: lambda char: _is_word(char),  # noqa: PLW0108  it is defined below
    codes.CATEGORY_NOT_WORD: lambda char: not _is_word(char),
}


class PatternError(ValueError):
    """The expression is invalid, not supported, or takes too many steps."""


class Place(NamedTuple):
    """A position in a name: the character before it and the one after it, empty at the start and at the end."""

    before: str
    after: str

    @property
    def is_boundary(self) -> bool:
        """True between a character of a word and another one."""
        return _is_word(self.before) != _is_word(self.after)


PLACES: dict[Any, Callable[[Place], bool]] = {
    codes.AT_BEGINNING: lambda place: not place.before,
    codes.AT_BEGINNING_STRING: lambda place: not place.before,
    codes.AT_END: lambda place: not place.after,
    codes.AT_END_STRING: lambda place: not place.after,
    codes.AT_BOUNDARY: lambda place: place.is_boundary,
    codes.AT_NON_BOUNDARY: lambda place: not place.is_boundary,
}
"""Conditions on a position. A name has no line breaks, before which `$` would match, too."""


class PatternState(NamedTuple):
    """A state of the automaton. It continues to one of `following`, unless a condition fails.

    `reads` tests the character that the state consumes, None if it consumes none. `place` tests the position.
    `ahead` is the start of what must follow, or with `is_negative` must not.
    """

    following: list[int]
    reads: Callable[[str], bool] | None = None
    place: Callable[[Place], bool] | None = None
    ahead: int | None = None
    is_negative: bool = False


END, END_AHEAD = 0, 1
"""States at which a match ends: of the name, and of an expression that looks ahead, which ends anywhere."""


class LayerPattern:
    """A regular expression for names of layers. Raises `PatternError`."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternError(f"it has more than {MAX_PATTERN_CHARS} characters")
        self._states = [PatternState([]), PatternState([])]
        self._steps_left = MAX_PATTERN_STEPS
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns of expressions that may change their meaning
                parsed = parser.parse(pattern)
            if parsed.state.flags & ~re.UNICODE:
                raise PatternError("flags are not supported")
            self._start = self._add_sequence(parsed, END)
        except re.error as error:
            raise PatternError(str(error)) from None
        except (RecursionError, OverflowError):
            raise PatternError("it is nested too deeply, or repeats too often") from None

    def matches(self, name: str) -> bool:
        """Tells whether the expression matches a whole name. Raises `PatternError` after too many steps."""
        if len(name) > MAX_LAYER_NAME_CHARS or "\n" in name:
            return False
        self._aheads: dict[tuple[int, int], bool] = {}
        try:
            return self._run(name, self._start, 0)
        except RecursionError:
            raise PatternError("it is nested too deeply") from None

    def _run(self, name: str, start: int, position: int) -> bool:
        """Tells whether the name matches from a state and a position on."""
        active = self._follow(name, [start], position)
        while active and END_AHEAD not in active and position < len(name):
            char, position = name[position], position + 1
            states = (self._states[index] for index in active)
            read = [state.following[0] for state in states if state.reads is not None and state.reads(char)]
            active = self._follow(name, read, position)
        return END_AHEAD in active or (position == len(name) and END in active)

    def _follow(self, name: str, stack: list[int], position: int) -> set[int]:
        """Returns the states that are reached at a position from those on the stack."""
        place = Place(name[position - 1] if position else "", name[position : position + 1])
        reached = set[int]()
        while stack:
            index = stack.pop()
            if index in reached:
                continue
            reached.add(index)
            self._steps_left -= 1
            if self._steps_left < 0:
                raise PatternError("matching it takes too long")
            state = self._states[index]
            if state.reads is None and self._is_passed(state, place, name, position):
                stack += state.following
        return reached

    def _is_passed(self, state: PatternState, place: Place, name: str, position: int) -> bool:
        """Tells whether the conditions of a state hold at a position."""
        if state.place is not None:
            return state.place(place)
        if state.ahead is None:
            return True
        key = (state.ahead, position)
        if key not in self._aheads:
            self._aheads[key] = self._run(name, *key)
        return self._aheads[key] != state.is_negative

    def _add(self, state: PatternState) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError("it is too long")
        self._states.append(state)
        return len(self._states) - 1

    def _add_sequence(self, items: Iterable[Any], following: int) -> int:
        """Adds the states of a parsed sequence in front of a state. Returns the first one."""
        for code, argument in reversed(list(items)):
            following = self._add_item(code, argument, following)
        return following

    def _add_item(self, code: Any, argument: Any, following: int) -> int:
        reads = _find_test(code, argument)
        if reads is not None:
            return self._add(PatternState([following], reads=reads))
        if code is codes.AT and argument in PLACES:
            return self._add(PatternState([following], place=PLACES[argument]))
        if code is codes.BRANCH:
            return self._add(PatternState([self._add_sequence(each, following) for each in argument[1]]))
        if code is codes.SUBPATTERN and not (argument[1] or argument[2]):
            return self._add_sequence(argument[3], following)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            low, high, items = argument
            return self._add_repetition(low, high, items, following)
        if code in (codes.ASSERT, codes.ASSERT_NOT) and argument[0] > 0:
            return self._add_lookahead(argument[1], following, is_negative=code is codes.ASSERT_NOT)
        raise PatternError(f"{str(code).lower()} is not supported")

    def _add_repetition(self, low: int, high: Any, items: Any, following: int) -> int:
        """Adds `low` to `high` copies of a sequence, of which those after `low` may be left out."""
        if high is codes.MAXREPEAT:
            loop = self._add(PatternState([following]))
            self._states[loop].following.append(self._add_sequence(items, loop))
            following = loop
        else:
            self._check_copies(high)
            end = following
            for _ in range(high - low):
                following = self._add(PatternState([self._add_sequence(items, following), end]))
        self._check_copies(low)
        for _ in range(low):
            following = self._add_sequence(items, following)
        return following

    def _check_copies(self, count: int) -> None:
        if count > MAX_STATES:
            raise PatternError("it is too long")

    def _add_lookahead(self, items: Any, following: int, *, is_negative: bool) -> int:
        ahead = self._add_sequence(items, END_AHEAD)
        return self._add(PatternState([following], ahead=ahead, is_negative=is_negative))


def _find_test(code: Any, argument: Any) -> Callable[[str], bool] | None:
    """Returns the test of a character that a parsed item stands for; None for an item of another kind."""
    if code is codes.LITERAL:
        return lambda char: ord(char) == argument
    if code is codes.NOT_LITERAL:
        return lambda char: ord(char) != argument
    if code is codes.ANY:
        return lambda _: True  # names have no line breaks
    if code is codes.RANGE:
        return lambda char: argument[0] <= ord(char) <= argument[1]
    if code is codes.CATEGORY:
        return CATEGORIES[argument]
    if code is not codes.IN:
        return None
    is_negative = argument[0][0] is codes.NEGATE
    tests = [_find_test(*item) for item in argument[is_negative:]]
    return lambda char: any(test(char) for test in tests if test is not None) != is_negative


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
