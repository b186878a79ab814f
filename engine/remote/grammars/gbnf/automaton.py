"""Writes regular expressions as rules: by their structure, or as an automaton with a rule for each state."""

from collections.abc import Iterator

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.regular import (
    ALL_CHARACTERS,
    ANYTHING,
    EMPTY,
    NONE,
    UNBOUNDED,
    Charset,
    ExpressionTable,
    unite,
)
from antiphon.engine.remote.grammars.gbnf.rules import RuleWriter, Symbol

MAX_AUTOMATON_STATES = 3_000
"""States of one automaton."""


class RegularWriter:
    """Adds rules for expressions of `table` to `rules`."""

    def __init__(self, table: ExpressionTable, rules: RuleWriter) -> None:
        self._table, self._rules = table, rules
        self._written: dict[tuple[int, bool], Symbol] = {}

    def write(self, number: int, *, shortest: bool = False) -> Symbol:
        """Returns a symbol for what the expression matches. `shortest`: the text ends at its first match."""
        if number == NONE:
            raise UntranslatableError("a pattern that matches no text")
        place = (number, shortest)
        if place not in self._written:
            by_structure = not shortest and self._has_structure(number)
            self._written[place] = self._write_structure(number) if by_structure else self._write_states(*place)
        return self._written[place]

    def _has_structure(self, number: int) -> bool:
        """Returns true if GBNF has every operator of the expression."""
        kind, *operands = self._table.keys[number]
        if kind in ("chars", "empty") or number == ANYTHING:
            return True
        if kind == "repeat":
            return not self._table.is_nullable(operands[0]) and self._has_structure(operands[0])
        return kind in ("concat", "either") and all(map(self._has_structure, operands))

    def _write_structure(self, number: int) -> Symbol:
        kind, *operands = self._table.keys[number]
        if number == ANYTHING:
            return self._rules.repeat(self._rules.charset(ALL_CHARACTERS), 0, None)
        if kind == "chars":
            return self._rules.charset(operands[0])
        if kind == "repeat":
            part, low, high = operands
            return self._rules.repeat(self.write(part), low, None if high == UNBOUNDED else high)
        if kind == "empty":
            return self._rules.literal("")
        if kind == "either":
            return self._rules.add("p", *((self.write(operand),) for operand in operands))
        return self._rules.add("p", tuple(self._write_parts(number)))

    def _write_parts(self, number: int) -> Iterator[Symbol]:
        """Yields the symbols of a sequence. Single characters that follow each other become one literal."""
        text = ""
        while number != EMPTY:
            key = self._table.keys[number]
            first, number = key[1:] if key[0] == "concat" else (number, EMPTY)
            kind, *operands = self._table.keys[first]
            charset: Charset = operands[0] if kind == "chars" else ()
            if len(charset) == 1 and charset[0][0] == charset[0][1]:
                text += chr(charset[0][0])
                continue
            if text:
                yield self._rules.literal(text)
                text = ""
            yield self.write(first)
        if text:
            yield self._rules.literal(text)

    def _write_states(self, start: int, shortest: bool) -> Symbol:
        transitions = self._explore(start, shortest)
        alive = self._find_alive(transitions)
        if start not in alive:
            raise UntranslatableError("a pattern that matches no text")
        symbols = {state: self._rules.reserve("s") for state in transitions if state in alive}
        for state, symbol in symbols.items():
            alternatives = [
                (self._rules.charset(charset), symbols[target])
                for target, charset in transitions[state].items()
                if target in alive
            ]
            is_end = [()] if self._table.is_nullable(state) else []
            self._rules.define(symbol, *alternatives, *is_end)
        return symbols[start]

    def _explore(self, start: int, shortest: bool) -> dict[int, dict[int, Charset]]:
        """Returns the characters that lead from each state to each other."""
        transitions: dict[int, dict[int, Charset]] = {}
        pending = [start]
        while pending:
            state = pending.pop()
            if state in transitions:
                continue
            if len(transitions) >= MAX_AUTOMATON_STATES:
                raise UntranslatableError("a pattern is too large")
            is_last = shortest and self._table.is_nullable(state)
            transitions[state] = {} if is_last else self._list_transitions(state)
            pending += transitions[state]
        return transitions

    def _list_transitions(self, state: int) -> dict[int, Charset]:
        intervals: dict[int, list[tuple[int, int]]] = {}
        for low, high in ALL_CHARACTERS:
            starts = sorted({low} | {bound for bound in self._table.list_boundaries(state) if low < bound <= high})
            for start, end in zip(starts, [*(bound - 1 for bound in starts[1:]), high], strict=True):
                target = self._table.derive(state, start)
                if target != NONE:
                    intervals.setdefault(target, []).append((start, end))
        return {target: unite(tuple(each)) for target, each in intervals.items()}

    def _find_alive(self, transitions: dict[int, dict[int, Charset]]) -> set[int]:
        """Returns the states from which an end can be reached."""
        sources: dict[int, list[int]] = {}
        for state, targets in transitions.items():
            for target in targets:
                sources.setdefault(target, []).append(state)
        alive, pending = set[int](), [state for state in transitions if self._table.is_nullable(state)]
        while pending:
            state = pending.pop()
            if state not in alive:
                alive.add(state)
                pending += sources.get(state, [])
        return alive
