"""Rules of a GBNF grammar under construction."""

from collections.abc import Sequence

import msgspec

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.regular import ALL_CHARACTERS, Charset, invert

MAX_RULES = 20_000
MAX_REPETITIONS = 2_000
"""Number of repetitions above which llama.cpp takes a bound for none."""
ROOT = "root"


class Symbol(msgspec.Struct, frozen=True):
    """A part of an alternative, such as `"abc"`, `[a-z]`, `<[7]>` or `rule{1,3}`."""

    text: str
    rule: str | None = None
    """Name of the rule that it refers to."""
    may_be_empty: bool = False
    """True if the symbol may be left out."""


EMPTY_LITERAL = Symbol('""', may_be_empty=True)
Alternative = Sequence[Symbol]


class RuleWriter:
    """Collects rules and writes them as text."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[Alternative, ...]] = {}
        self._names: dict[tuple[Alternative, ...], str] = {}
        self._num_reserved = 0

    def add(self, prefix: str, *alternatives: Alternative) -> Symbol:
        """Adds a rule, or finds an equal one. A single symbol needs no rule."""
        key = tuple(map(tuple, alternatives))
        if len(key) == 1 and len(key[0]) == 1:
            return key[0][0]
        if key not in self._names:
            symbol = self.reserve(prefix)
            self.define(symbol, *key)
            self._names[key] = symbol.text
        name = self._names[key]
        return Symbol(name, rule=name)

    def reserve(self, prefix: str) -> Symbol:
        """Returns the symbol of a rule that is defined later."""
        self._num_reserved += 1
        if self._num_reserved > MAX_RULES:
            raise UntranslatableError(f"more than {MAX_RULES} rules")
        name = f"{prefix}{self._num_reserved}"
        return Symbol(name, rule=name)

    def define(self, symbol: Symbol, *alternatives: Alternative) -> None:
        """Defines a rule."""
        self._rules[symbol.text] = alternatives

    def literal(self, text: str) -> Symbol:
        """Matches this text."""
        return Symbol(f'"{"".join(map(_escape, text))}"') if text else EMPTY_LITERAL

    def charset(self, charset: Charset) -> Symbol:
        """Matches one of these characters."""
        if charset == ALL_CHARACTERS:
            return Symbol(".")
        inverted = invert(charset)
        sign, intervals = ("^", inverted) if inverted and len(inverted) < len(charset) else ("", charset)
        return Symbol(f"[{sign}{''.join(map(_write_interval, intervals))}]")

    def token(self, token: int) -> Symbol:
        """Matches this token."""
        return Symbol(f"<[{token}]>")

    def repeat(self, symbol: Symbol, low: int, high: int | None) -> Symbol:
        """Matches a symbol `low` to `high` times; None is unbounded."""
        if (low, high) == (1, 1):
            return symbol
        if high == 0:
            return EMPTY_LITERAL
        if max(low, high or 0) > MAX_REPETITIONS:
            raise UntranslatableError(f"more than {MAX_REPETITIONS} repetitions")
        item = symbol if symbol.text[-1] not in "*+?}" else self._wrap(symbol)
        signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        sign = signs.get((low, high), f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}")
        if symbol.text[0] == '"' and len(symbol.text) > 3:  # of a literal, only the last character would be repeated
            item = self._wrap(symbol)
        return Symbol(item.text + sign, rule=item.rule, may_be_empty=low == 0 or symbol.may_be_empty)

    def _wrap(self, symbol: Symbol) -> Symbol:
        wrapped = self.reserve("w")
        self.define(wrapped, (symbol,))
        return wrapped

    def render(self, *root: Alternative) -> str:
        """Returns the grammar. Raises `UntranslatableError` for rules that begin with themselves."""
        self._rules[ROOT] = root
        self._check_left_recursion()
        return "".join(
            f"{name} ::= {' | '.join(map(_write_alternative, alternatives))}\n"
            for name, alternatives in self._rules.items()
        )

    def _check_left_recursion(self) -> None:
        """llama.cpp refuses rules that can begin with themselves, and repetitions of what may be empty."""
        first = self._find_first_rules()
        done, path = set[str](), set[str]()
        pending = [(name, False) for name in self._rules]
        while pending:
            name, is_left = pending.pop()
            if is_left:
                path.discard(name)
                done.add(name)
            elif name in path:
                raise UntranslatableError("a rule that begins with itself (left recursion)")
            elif name not in done:
                path.add(name)
                pending += [(name, True), *((each, False) for each in first[name])]

    def _find_first_rules(self) -> dict[str, set[str]]:
        """Returns the rules with which each rule can begin."""
        nullable = self._find_nullable()
        first: dict[str, set[str]] = {}
        for name, alternatives in self._rules.items():
            begins = first[name] = set()
            for symbol in (symbol for alternative in alternatives for symbol in alternative):
                if symbol.rule in nullable and symbol.text[-1] in "*+}":
                    raise UntranslatableError("a repetition of something that may be empty")
            for alternative in alternatives:
                for symbol in alternative:
                    if symbol.rule is not None:
                        begins.add(symbol.rule)
                    if not (symbol.may_be_empty or symbol.rule in nullable):
                        break
        return first

    def _find_nullable(self) -> set[str]:
        nullable, has_changed = set[str](), True
        while has_changed:
            has_changed = False
            for name, alternatives in self._rules.items():
                if name not in nullable and any(
                    all(symbol.may_be_empty or symbol.rule in nullable for symbol in each) for each in alternatives
                ):
                    nullable.add(name)
                    has_changed = True
        return nullable


def _write_alternative(alternative: Alternative) -> str:
    return " ".join(symbol.text for symbol in alternative if symbol != EMPTY_LITERAL) or EMPTY_LITERAL.text


def _escape(letter: str) -> str:
    code = ord(letter)
    if letter in '"\\[]^-':
        return f"\\x{code:02X}"
    if 0x20 <= code < 0x7F:
        return letter
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _write_interval(interval: tuple[int, int]) -> str:
    low, high = (_escape(chr(code)) for code in interval)
    return low if low == high else f"{low}-{high}"
