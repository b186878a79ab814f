"""What an answer may be, as Lark text for llguidance.

A grammar covers the whole turn from the prompt's last token on, so nothing has to be switched on when reasoning ends.
Markers that are one token are matched by id. Whoever samples by such a grammar can only write what the reader of the
same dialect reads as it was meant; which calls there are is told by the frames.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from events.inputs import GrammarFormat
from harmony.tools import Offered

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class Grammar:
    """Collects rules. What its methods return can stand on the right-hand side of one."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        self._rules: list[str] = []

    def rule(self, name: str, *sides: str) -> str:
        """A rule with these alternatives."""
        self._rules.append(f"{name}: {' | '.join(sides)}")
        return name

    def fresh(self, name: str, *sides: str) -> str:
        """A rule under a name of its own."""
        return self.rule(f"{name}{len(self._rules)}", *sides)

    def marker(self, marker: str) -> str:
        """A marker: by id where it is one token."""
        return f"<[{self._added[marker]}]>" if marker in self._added else self.text(marker)

    def text(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any] | None) -> str:
        """Any JSON value that the schema allows."""
        return self.fresh("json", f"%json {json.dumps(ANY_OBJECT if schema is None else schema, ensure_ascii=False)}")

    def free(self, *without: str) -> str:
        """Text, at least a character of it, that holds none of these."""
        name = f"TEXT{len(self._rules)}"
        stops = "|".join(_pattern(text) for text in without)
        return self.rule(name, "/(?s:.+)/" + (f" & ~/(?s:.*)({stops})(?s:.*)/" if stops else ""))

    def raw(self, offer: Offered, *without: str) -> str:
        """A custom tool's text: by its own grammar where it has one."""
        rules = offer.format
        if not isinstance(rules, GrammarFormat):
            return f"{self.free(*without)}?"
        if rules.syntax == "regex":
            pattern = re.sub(r"(?<!\\)/", r"\/", rules.definition)
            return self.rule(f"TEXT{len(self._rules)}", f"/{pattern}/")
        return self.fresh("raw", f"%lark {{\n{rules.definition}\n}}")

    def finish(self, *sides: str) -> str:
        """The grammar: an answer is one of these."""
        return "\n".join([f"start: {' | '.join(sides)}", *self._rules, r"BLANKS: /\s*/", ""])


def turn(
    grammar: Grammar, think: tuple[str, str] | None, calls: Iterable[str], markers: Iterable[str], *, thinking: bool
) -> str:
    """`think? (text | call)*`, beginning inside reasoning where the prompt does."""
    text = grammar.free(*markers)
    sides = list(calls)
    answer = f"{text}? ({grammar.rule('call', *sides)} {text}?)*" if sides else f"{text}?"
    if think is None:
        return grammar.finish(answer)
    opener, closer = map(grammar.marker, think)
    if thinking:
        return grammar.finish(f"{text}? {closer} {answer}")
    return grammar.finish(f"(BLANKS {opener} {text}? {closer})? {answer}")


def _pattern(text: str) -> str:
    return re.sub(r"([^\w\s<>])", r"\\\1", text).replace("\n", "\\n")
