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
from antiphon.harmony.tokens.detokenizer import split_at_tokens
from antiphon.harmony.tools import ToolSpec

_LINE = "\n"
GAP_PATTERN = r"[ \t\r\n]{0,16}"
"""Blanks that may stand between the parts of a turn: small models would write them for ever."""
JSON_WHITESPACE = r"( |\n[ \t]{0,20})?"
"""Blanks that JSON may have in one place: one, or a new line and its indentation, as all who write JSON have them."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class AnswerRequirements(Struct, frozen=True, kw_only=True):
    """What an answer must be, besides readable. `answer`: the schema of its text."""

    call_required: bool = False
    single_call: bool = False
    text_schema: Mapping[str, Any] | None = None


class GrammarBuilder:
    """Collects rules. What its methods return can stand on the right-hand side of one."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        self._rules: list[str] = []

    def add_rule(self, name: str, *sides: str) -> str:
        """A rule with these alternatives."""
        self._rules.append(f"{name}: {' | '.join(sides)}")
        return name

    def add_unique_rule(self, name: str, *sides: str) -> str:
        """A rule under a name of its own."""
        return self.add_rule(f"{name}{len(self._rules)}", *sides)

    def marker_symbol(self, marker: str) -> str:
        """A marker: by id where it is one token, and what of it is one."""
        return " ".join(
            f"<[{self._added[part]}]>" if part in self._added else self.literal_text(part)
            for part in split_at_tokens(marker, self._added)
        )

    def literal_text(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def json_value(self, schema: Mapping[str, Any] | None) -> str:
        """Any JSON value that the schema allows, with blanks between its tokens, but not without end."""
        held = {**(ANY_OBJECT if schema is None else schema), "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
        return self.add_unique_rule("json", f"%json {json.dumps(held, ensure_ascii=False)}")

    def add_terminal(self, sides: str) -> str:
        """A terminal under a name of its own."""
        return self.add_unique_rule("TEXT", sides)

    def free_text(self, *without: str, head: Iterable[str] = ()) -> str:
        """Text, at least a character of it, that holds none of these and does not begin with one of `head`."""
        return self.add_terminal(f"/(?s:.+)/{_not_containing(without)}{_not_starting_with(head)}")

    def text_until(
        self, end: str, *without: str, head: Iterable[str] = (), ruin: str = "", bounds: Sequence[str] = ()
    ) -> str:
        """Text up to its first `end`, and the end. Which is the first, the lexer tells where the end is letters.

        `bounds`: patterns that all of the text must match. `ruin`: a pattern that nothing in it may match.
        """
        letters, tail = self._split_end(end)
        unlike = _not_starting_with(head) + _not_containing_pattern(ruin)
        if tail and not letters:
            sides = " & ".join(["/(?s:.+)/", *(f"/{bound}/" for bound in bounds)])
            text = self.add_terminal(f"{sides}{_not_containing((end, *without))}{unlike}")
            empty = all(re.fullmatch(bound.replace("(?s:.)", "(?:.)"), "") for bound in bounds)
            return f"{text}{'?' if empty else ''} {tail}"
        sides = " & ".join(f"/{bound}{_escape_pattern(letters or end)}/" for bound in bounds or ["(?s:.*)"])
        if tail:
            return f"{self.add_terminal(f'{sides}{_not_containing(without)}{unlike}')} {tail}"
        text = self.add_terminal(f"{sides}{_not_containing([other for other in without if other != end])}{unlike}")
        name = f"until{len(self._rules)}"
        self.add_rule(f"{name}[lazy]", text)
        return name

    def _split_end(self, end: str) -> tuple[str, str]:
        """The letters of an end before its first token, and the rest as a grammar says it; empty if it has no token."""
        parts = split_at_tokens(end, self._added)
        first = next((place for place, part in enumerate(parts) if part in self._added), len(parts))
        return "".join(parts[:first]), self.marker_symbol("".join(parts[first:])) if first < len(parts) else ""

    def constrained_text(self, schema: Mapping[str, Any], end: str, ruin: str = "") -> str:
        """Text as a string schema allows it (length, pattern), up to its first `end`, and the end."""
        return self.text_until(end, ruin=ruin, bounds=_string_bounds(schema))

    def custom_input(self, offer: ToolSpec, end: str, ruin: str = "") -> str:
        """A custom tool's text, by its own grammar where it has one, and what ends it."""
        rules = offer.format
        if not isinstance(rules, GrammarFormat):
            return self.text_until(end, ruin=ruin)
        if rules.syntax == "regex":
            pattern = re.sub(r"(?<!\\)/", r"\/", rules.definition)
            return f"{self.add_terminal(f'/{pattern}/')} {self.marker_symbol(end)}"
        return f"{self.add_unique_rule('raw', f'%lark {{{_LINE}{rules.definition}{_LINE}}}')} {self.marker_symbol(end)}"

    def build(self, *sides: str) -> str:
        """The grammar: an answer is one of these."""
        return "\n".join(
            [f"start: {' | '.join(sides)}", *self._rules, f"BLANKS: /{GAP_PATTERN}/", r"GAP: /[ \t\r\n]{0,4}/", ""]
        )


def build_turn_grammar(
    grammar: GrammarBuilder,
    think: tuple[str, str] | None,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    *,
    thinking: bool,
    asked: AnswerRequirements = AnswerRequirements(),  # noqa: B008  # it is frozen
    bare: frozenset[str] = frozenset(),
    wrapper: tuple[str, str] | None = None,
) -> str:
    """`think? (text? call)* text?`, beginning inside reasoning where the prompt does, and less where less is asked for.

    `calls`: by the marker that opens them, what may follow it; those in `bare` open one at the head of an answer only.
    `markers`: what plain text must not hold. `wrapper`: what may stand around it.
    """
    answer = _answer_rule(grammar, calls, markers, asked, bare, wrapper)
    if think is None:
        return grammar.build(answer)
    reasoning = grammar.text_until(think[1], *markers)
    if thinking:
        return grammar.build(f"{reasoning} {answer}")
    return grammar.build(f"(BLANKS {grammar.marker_symbol(think[0])} {reasoning})? {answer}")


def _answer_rule(
    grammar: GrammarBuilder,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    asked: AnswerRequirements,
    bare: frozenset[str],
    wrapper: tuple[str, str] | None,
) -> str:
    """What follows reasoning. Where something is asked for, it comes at once: no text stands before it."""
    at_once = asked.call_required or asked.text_schema is not None
    sides = []
    for opener, after in calls.items():
        begin = (
            grammar.text_until(opener, *markers, head=bare)
            if not at_once and opener not in bare
            else _opener_rule(grammar, opener)
        )
        sides.append(f"{begin} ({' | '.join(after)})")
    text = (
        f"GAP {grammar.json_value(asked.text_schema)}"
        if asked.text_schema is not None
        else f"{grammar.free_text(*markers, head=bare)}?"
    )
    if wrapper is not None:
        text = f"(BLANKS {grammar.marker_symbol(wrapper[0])})? {text} (BLANKS {grammar.marker_symbol(wrapper[1])})?"
    if not sides:
        return text
    call = grammar.add_rule("call", *sides)
    if asked.call_required:
        return call if asked.single_call else f"{call}+"
    if at_once or asked.single_call:
        return f"({call if asked.single_call else f'{call}+'} | {text})"
    return f"({call})* {text}"


def _string_bounds(schema: Mapping[str, Any]) -> list[str]:
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


def _opener_rule(grammar: GrammarBuilder, opener: str) -> str:
    return f"BLANKS {grammar.marker_symbol(opener)}"


def _not_starting_with(head: Iterable[str]) -> str:
    """Text that begins like a call would be read as one."""
    return "".join(f" & ~/[ \\t\\r\\n]*{_escape_pattern(text)}(?s:.*)/" for text in sorted(head))


def _not_containing_pattern(pattern: str) -> str:
    return f" & ~/(?s:.*)({pattern})(?s:.*)/" if pattern else ""


def one_then(first: str, then: Iterable[str], between: str = r"[ \t\r\n]*") -> str:
    """A pattern: this text, what may stand between, and one of those."""
    return f"{_escape_pattern(first)}{between}({'|'.join(map(_escape_pattern, then))})"


def _not_containing(texts: Iterable[str]) -> str:
    stops = "|".join(map(_escape_pattern, texts))
    return f" & ~/(?s:.*)({stops})(?s:.*)/" if stops else ""


def _escape_pattern(text: str) -> str:
    return re.sub(r"([!-;=?-@\[-`{-~])", r"\\\1", text).replace("\n", "\\n")
