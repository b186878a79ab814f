"""What an answer may be, as Lark text for llguidance.

A grammar covers the whole turn from the prompt's last token on, so nothing has to be switched on when reasoning ends.
Markers that are one token are matched by id. Whoever samples by such a grammar can only write what the reader of the
same dialect reads as it was meant; which calls there are is told by the frames.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.events.inputs import GrammarFormat
from antiphon.harmony.tokens.detokenizer import tokens_in
from antiphon.harmony.tools import Offered

_LINE = "\n"
GAPS = r"[ \t\r\n]{0,16}"
"""Blanks that may stand between the parts of a turn: small models would write them for ever."""
INDENT = r"( |\n[ \t]{0,20})?"
"""Blanks that JSON may have in one place: one, or a new line and its indentation, as all who write JSON have them."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class Asked(Struct, frozen=True, kw_only=True):
    """What an answer must be, besides readable. `answer`: the schema of its text."""

    required: bool = False
    single: bool = False
    answer: Mapping[str, Any] | None = None


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
        """A marker: by id where it is one token, and what of it is one."""
        return " ".join(
            f"<[{self._added[part]}]>" if part in self._added else self.text(part)
            for part in tokens_in(marker, self._added)
        )

    def text(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any] | None) -> str:
        """Any JSON value that the schema allows, with blanks between its tokens, but not without end."""
        held = {**(ANY_OBJECT if schema is None else schema), "x-guidance": {"whitespace_pattern": INDENT}}
        return self.fresh("json", f"%json {json.dumps(held, ensure_ascii=False)}")

    def terminal(self, sides: str) -> str:
        """A terminal under a name of its own."""
        return self.fresh("TEXT", sides)

    def free(self, *without: str, head: Iterable[str] = ()) -> str:
        """Text, at least a character of it, that holds none of these and does not begin with one of `head`."""
        return self.terminal(f"/(?s:.+)/{_lacking(without)}{_not_first(head)}")

    def until(
        self, end: str, *without: str, head: Iterable[str] = (), ruin: str = "", bounds: Sequence[str] = ()
    ) -> str:
        """Text up to its first `end`, and the end. Which is the first, the lexer tells where the end is letters.

        `bounds`: patterns that all of the text must match. `ruin`: a pattern that nothing in it may match.
        """
        letters, tail = self._split(end)
        unlike = _not_first(head) + _unlike(ruin)
        if tail and not letters:
            sides = " & ".join(["/(?s:.+)/", *(f"/{bound}/" for bound in bounds)])
            text = self.terminal(f"{sides}{_lacking((end, *without))}{unlike}")
            empty = all(re.fullmatch(bound.replace("(?s:.)", "(?:.)"), "") for bound in bounds)
            return f"{text}{'?' if empty else ''} {tail}"
        sides = " & ".join(f"/{bound}{_pattern(letters or end)}/" for bound in bounds or ["(?s:.*)"])
        if tail:
            return f"{self.terminal(f'{sides}{_lacking(without)}{unlike}')} {tail}"
        text = self.terminal(f"{sides}{_lacking([other for other in without if other != end])}{unlike}")
        name = f"until{len(self._rules)}"
        self.rule(f"{name}[lazy]", text)
        return name

    def _split(self, end: str) -> tuple[str, str]:
        """The letters of an end before its first token, and the rest as a grammar says it; empty if it has no token."""
        parts = tokens_in(end, self._added)
        first = next((place for place, part in enumerate(parts) if part in self._added), len(parts))
        return "".join(parts[:first]), self.marker("".join(parts[first:])) if first < len(parts) else ""

    def held(self, schema: Mapping[str, Any], end: str, ruin: str = "") -> str:
        """Text as a string schema allows it (length, pattern), up to its first `end`, and the end."""
        return self.until(end, ruin=ruin, bounds=_bounds(schema))

    def raw(self, offer: Offered, end: str, ruin: str = "") -> str:
        """A custom tool's text, by its own grammar where it has one, and what ends it."""
        rules = offer.format
        if not isinstance(rules, GrammarFormat):
            return self.until(end, ruin=ruin)
        if rules.syntax == "regex":
            pattern = re.sub(r"(?<!\\)/", r"\/", rules.definition)
            return f"{self.terminal(f'/{pattern}/')} {self.marker(end)}"
        return f"{self.fresh('raw', f'%lark {{{_LINE}{rules.definition}{_LINE}}}')} {self.marker(end)}"

    def finish(self, *sides: str) -> str:
        """The grammar: an answer is one of these."""
        return "\n".join(
            [f"start: {' | '.join(sides)}", *self._rules, f"BLANKS: /{GAPS}/", r"GAP: /[ \t\r\n]{0,4}/", ""]
        )


def turn(
    grammar: Grammar,
    think: tuple[str, str] | None,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    *,
    thinking: bool,
    asked: Asked = Asked(),  # noqa: B008  # it is frozen
    bare: frozenset[str] = frozenset(),
    wrapper: tuple[str, str] | None = None,
) -> str:
    """`think? (text? call)* text?`, beginning inside reasoning where the prompt does, and less where less is asked for.

    `calls`: by the marker that opens them, what may follow it; those in `bare` open one at the head of an answer only.
    `markers`: what plain text must not hold. `wrapper`: what may stand around it.
    """
    answer = _answer(grammar, calls, markers, asked, bare, wrapper)
    if think is None:
        return grammar.finish(answer)
    reasoning = grammar.until(think[1], *markers)
    if thinking:
        return grammar.finish(f"{reasoning} {answer}")
    return grammar.finish(f"(BLANKS {grammar.marker(think[0])} {reasoning})? {answer}")


def _answer(
    grammar: Grammar,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    asked: Asked,
    bare: frozenset[str],
    wrapper: tuple[str, str] | None,
) -> str:
    """What follows reasoning. Where something is asked for, it comes at once: no text stands before it."""
    at_once = asked.required or asked.answer is not None
    sides = []
    for opener, after in calls.items():
        begin = (
            grammar.until(opener, *markers, head=bare)
            if not at_once and opener not in bare
            else _opened(grammar, opener)
        )
        sides.append(f"{begin} ({' | '.join(after)})")
    text = f"GAP {grammar.json(asked.answer)}" if asked.answer is not None else f"{grammar.free(*markers, head=bare)}?"
    if wrapper is not None:
        text = f"(BLANKS {grammar.marker(wrapper[0])})? {text} (BLANKS {grammar.marker(wrapper[1])})?"
    if not sides:
        return text
    call = grammar.rule("call", *sides)
    if asked.required:
        return call if asked.single else f"{call}+"
    if at_once or asked.single:
        return f"({call if asked.single else f'{call}+'} | {text})"
    return f"({call})* {text}"


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    """What a schema says of a string, as regular expressions that all of it must match."""
    bounds = []
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None or high is not None:
        bounds.append(f"(?s:.){{{low or 0},{'' if high is None else high}}}")
    if isinstance(pattern := schema.get("pattern"), str):
        inside = re.sub(r"(?<!\\)/", r"\/", pattern.removeprefix("^").removesuffix("$"))
        before = "" if pattern.startswith("^") else "(?s:.*)"
        bounds.append(f"{before}({inside}){'' if pattern.endswith('$') else '(?s:.*)'}")
    return bounds


def _opened(grammar: Grammar, opener: str) -> str:
    return f"BLANKS {grammar.marker(opener)}"


def _not_first(head: Iterable[str]) -> str:
    """Text that begins like a call would be read as one."""
    return "".join(f" & ~/[ \\t\\r\\n]*{_pattern(text)}(?s:.*)/" for text in sorted(head))


def _unlike(pattern: str) -> str:
    return f" & ~/(?s:.*)({pattern})(?s:.*)/" if pattern else ""


def one_then(first: str, then: Iterable[str], between: str = r"[ \t\r\n]*") -> str:
    """A pattern: this text, what may stand between, and one of those."""
    return f"{_pattern(first)}{between}({'|'.join(map(_pattern, then))})"


def _lacking(texts: Iterable[str]) -> str:
    stops = "|".join(map(_pattern, texts))
    return f" & ~/(?s:.*)({stops})(?s:.*)/" if stops else ""


def _pattern(text: str) -> str:
    return re.sub(r"([!-;=?-@\[-`{-~])", r"\\\1", text).replace("\n", "\\n")
