"""Builds grammars of answers, as Lark text for llguidance.

A grammar covers the whole turn from the last prompt token on, so nothing has to be switched on when reasoning ends.
Markers that are one token are matched by id. Output sampled under such a grammar is parsed by the reader of the same
dialect exactly as intended. The rules for calls are supplied by the call formats.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.events.tools import GrammarFormat
from antiphon.harmony.builtin_tools import patch_grammar
from antiphon.harmony.patterns import escape_slashes, has_end_anchor, matches_empty
from antiphon.harmony.strict_schema import close_objects
from antiphon.harmony.tokens.detokenizer import split_at_tokens
from antiphon.harmony.tools import ToolSpec

_NEWLINE = "\n"
GAP_PATTERN = r"[ \t\r\n]{0,16}"
"""Pattern of the blanks between the parts of a turn. At most 16: small models would emit blanks without end."""
JSON_WHITESPACE = r"( |\n[ \t]{0,20})?"
"""Pattern of the blanks at one place in JSON: a space, or a newline and its indentation. All JSON writers use one of
these."""
_REPEATED_WHITESPACE = r"[ \t\n]*"
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class OutputConstraint(Struct, frozen=True):
    """A form that the text for the user must have as a whole; exactly one field is set."""

    schema: Mapping[str, Any] | None = None
    """JSON Schema."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    lark: str | None = None


class AnswerConstraints(Struct, frozen=True, kw_only=True):
    """Constraints on an answer, besides being parsable. `output_constraint`: form of its text."""

    call_required: bool = False
    single_call: bool = False
    output_constraint: OutputConstraint | None = None


class GrammarBuilder:
    """Collects the rules of a grammar. Its methods return text for the right-hand side of a rule."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        self._rules: list[str] = []

    def add_rule(self, name: str, *sides: str) -> str:
        """Adds a rule with these alternatives. Returns its name."""
        self._rules.append(f"{name}: {' | '.join(sides)}")
        return name

    def add_unique_rule(self, name: str, *sides: str) -> str:
        """Adds a rule under a unique name. Returns the name."""
        return self.add_rule(f"{name}{len(self._rules)}", *sides)

    def marker_symbol(self, marker: str) -> str:
        """Matches a marker. Those of its parts that are tokens are matched by id."""
        return " ".join(
            f"<[{self._added[part]}]>" if part in self._added else self.literal_text(part)
            for part in split_at_tokens(marker, self._added)
        )

    def literal_text(self, text: str) -> str:
        """Matches exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def optional_text(self, text: str) -> str:
        """Matches exactly this text; an empty rule if there is none."""
        return self.literal_text(text) if text else ""

    def after_blanks(self, marker: str) -> str:
        """Matches a marker after any blanks; an empty rule if there is none."""
        return f"BLANKS {self.marker_symbol(marker)}" if marker else ""

    def json_value(self, schema: Mapping[str, Any] | None) -> str:
        """Matches any JSON value of the schema, with closed objects and a bounded number of blanks between tokens."""
        annotated_schema = {
            **(ANY_OBJECT if schema is None else close_objects(schema)),
            "x-guidance": {"whitespace_pattern": JSON_WHITESPACE},
        }
        return self.add_unique_rule("json", f"%json {json.dumps(annotated_schema, ensure_ascii=False)}")

    def add_terminal(self, sides: str) -> str:
        """Adds a terminal under a unique name. Returns the name."""
        return self.add_unique_rule("TEXT", sides)

    def free_text(self, *without: str, head: Iterable[str] = ()) -> str:
        """Matches one or more characters of text without any of `without`, not beginning with one of `head`."""
        return self.add_terminal(f"/(?s:.+)/{_not_containing(without)}{_not_starting_with(head)}")

    def text_until(
        self, end: str, *without: str, head: Iterable[str] = (), forbidden_pattern: str = "", bounds: Sequence[str] = ()
    ) -> str:
        """Matches text up to and including its first `end`.

        If `end` has no token, the lexer finds the first occurrence (a lazy rule). `without`: texts that must not
        occur. `head`: texts with which it must not begin. `bounds`: patterns that the whole text must match.
        `forbidden_pattern`: a pattern that must not match anywhere in the text.
        """
        letters, token_tail = self._split_end(end)
        exclusions = _not_starting_with(head) + _not_containing_pattern(forbidden_pattern)
        if token_tail and not letters:
            pattern = " & ".join(["/(?s:.+)/", *(f"/{bound}/" for bound in bounds)])
            text = self.add_terminal(f"{pattern}{_not_containing((end, *without))}{exclusions}")
            may_be_empty = all(map(matches_empty, bounds))
            return f"{text}{'?' if may_be_empty else ''} {token_tail}"
        pattern = " & ".join(f"/{bound}{_escape_pattern(letters or end)}/" for bound in bounds or ["(?s:.*)"])
        if token_tail:
            return f"{self.add_terminal(f'{pattern}{_not_containing(without)}{exclusions}')} {token_tail}"
        text = self.add_terminal(
            f"{pattern}{_not_containing([other for other in without if other != end])}{exclusions}"
        )
        name = f"until{len(self._rules)}"
        self.add_rule(f"{name}[lazy]", text)
        return name

    def _split_end(self, end: str) -> tuple[str, str]:
        """Returns the text of `end` before its first token, and the remainder as symbols (empty without a token)."""
        parts = split_at_tokens(end, self._added)
        first = next((index for index, part in enumerate(parts) if part in self._added), len(parts))
        return "".join(parts[:first]), self.marker_symbol("".join(parts[first:])) if first < len(parts) else ""

    def constrained_text(self, schema: Mapping[str, Any], end: str, forbidden_pattern: str = "") -> str:
        """Matches text that a string schema allows (length, pattern), up to and including its first `end`."""
        return self.text_until(end, forbidden_pattern=forbidden_pattern, bounds=_string_bounds(schema))

    def custom_input(self, tool: ToolSpec, end: str, forbidden_pattern: str = "") -> str:
        """Matches a custom tool's input and the `end` after it. The tool's own grammar applies if it has one."""
        spec = tool.format
        if not isinstance(spec, GrammarFormat):
            return self.text_until(end, forbidden_pattern=forbidden_pattern)
        if tool.builtin == "apply_patch":
            patch = patch_grammar(single_file=tool.single_file, exclusion=_not_containing([end.strip()]))
            return f"{self.nested_grammar(patch)} {self.marker_symbol(end)}"
        form = self.pattern if spec.syntax == "regex" else self.nested_grammar
        return f"{form(spec.definition)} {self.marker_symbol(end)}"

    def pattern(self, regex: str) -> str:
        """Matches text that matches a regular expression as a whole."""
        return self.add_terminal(f"/{escape_slashes(regex)}/")

    def nested_grammar(self, lark: str) -> str:
        """Matches text of a grammar in Lark's syntax."""
        return self.add_unique_rule("raw", f"%lark {{{_NEWLINE}{lark}{_NEWLINE}}}")

    def required_text(self, constraint: OutputConstraint) -> str:
        """Matches text of the required form."""
        if constraint.choice is not None:
            return self.add_unique_rule("choice", *map(self.literal_text, constraint.choice))
        if constraint.regex is not None:
            return self.pattern(constraint.regex)
        if constraint.lark is not None:
            return self.nested_grammar(constraint.lark)
        return self.json_value(constraint.schema)

    def answer_text(self, constraint: OutputConstraint) -> str:
        """Matches an answer's text of the required form. Blanks may precede JSON, and nothing else."""
        gap = "GAP " if constraint.schema is not None else ""
        return f"{gap}{self.required_text(constraint)}"

    def build(self, *sides: str) -> str:
        """Returns the grammar of an answer that is one of these alternatives."""
        return "\n".join(
            [f"start: {' | '.join(sides)}", *self._rules, f"BLANKS: /{GAP_PATTERN}/", r"GAP: /[ \t\r\n]{0,4}/", ""]
        )


def build_turn_grammar(
    grammar: GrammarBuilder,
    think: tuple[str, ...] | None,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    *,
    thinking: bool,
    constraints: AnswerConstraints = AnswerConstraints(),  # noqa: B008  # it is frozen
    head_only_openers: frozenset[str] = frozenset(),
    wrapper: tuple[str, str] | None = None,
) -> str:
    """Builds the grammar `think? (text? call)* text?`, reduced to what `constraints` allow.

    `thinking`: the prompt ends inside reasoning, so the grammar begins there. `calls`: for each opener, the rules of
    what may follow it; openers in `head_only_openers` count only at the start of an answer. `markers`: texts that plain
    text must not contain. `wrapper`: opener and closer that may surround the text. `think`: opener and closer of
    reasoning, and texts that may follow it.
    """
    answer = _answer_rule(grammar, calls, markers, constraints, head_only_openers, wrapper)
    if think is None:
        return grammar.build(answer)
    reasoning = grammar.text_until(think[1], *markers)
    reasoning += "".join(f" (BLANKS {grammar.marker_symbol(text)})?" for text in think[2:])
    if thinking:
        return grammar.build(f"{reasoning} {answer}")
    return grammar.build(f"(BLANKS {grammar.marker_symbol(think[0])} {reasoning})? {answer}")


def relax_whitespace(grammar: str) -> str:
    """Returns the grammar with any number of blanks at each place in JSON.

    llguidance before 1.9 lets the pattern of blanks repeat. An engine with such a version writes more blanks than the
    grammar says, which change nothing about the JSON.
    """
    return grammar.replace(_whitespace_option(JSON_WHITESPACE), _whitespace_option(_REPEATED_WHITESPACE))


def _whitespace_option(pattern: str) -> str:
    return f'"x-guidance": {{"whitespace_pattern": {json.dumps(pattern)}}}'


def build_probe_grammar(first_id: int) -> str:
    """Builds a grammar that begins with this token and uses every construct of this module.

    An engine that cannot read one of the constructs, or that does not apply grammars from the first token on, is found
    out by a job of forty tokens.
    """
    grammar = GrammarBuilder({"first": first_id})
    head = grammar.text_until("!", "?", head=("[",), forbidden_pattern="x{2}", bounds=("(?s:.){1,6}",))
    schema = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
    call = grammar.add_rule("call", f"{grammar.json_value(schema)} {grammar.nested_grammar('start: /[d-f]{1,3}/')}")
    tail = grammar.pattern("[g-i]{1,2}")
    return grammar.build(f"{grammar.marker_symbol('first')} {head} BLANKS ({call} | GAP {tail})+")


def _answer_rule(
    grammar: GrammarBuilder,
    calls: Mapping[str, Sequence[str]],
    markers: Sequence[str],
    constraints: AnswerConstraints,
    head_only_openers: frozenset[str],
    wrapper: tuple[str, str] | None,
) -> str:
    """Builds the rule of what follows reasoning. No text precedes a required call or form."""
    starts_immediately = constraints.call_required or constraints.output_constraint is not None
    call_rules = []
    for opener, body_rules in calls.items():
        opener_rule = (
            grammar.text_until(opener, *markers, head=head_only_openers)
            if not starts_immediately and opener not in head_only_openers
            else grammar.after_blanks(opener)
        )
        call_rules.append(f"{opener_rule} ({' | '.join(body_rules)})")
    text = (
        grammar.answer_text(constraints.output_constraint)
        if constraints.output_constraint is not None
        else f"{grammar.free_text(*markers, head=head_only_openers)}?"
    )
    if wrapper is not None:
        text = f"(BLANKS {grammar.marker_symbol(wrapper[0])})? {text} (BLANKS {grammar.marker_symbol(wrapper[1])})?"
    if not call_rules:
        return text
    call = grammar.add_rule("call", *call_rules)
    if constraints.call_required:
        return call if constraints.single_call else f"{call}+"
    if starts_immediately or constraints.single_call:
        return f"({call if constraints.single_call else f'{call}+'} | {text})"
    return f"({call})* {text}"


def _string_bounds(schema: Mapping[str, Any]) -> list[str]:
    """Returns regular expressions for a string schema's length and pattern. The whole string must match each."""
    bounds = []
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None or high is not None:
        bounds.append(f"(?s:.){{{low or 0},{'' if high is None else high}}}")
    if isinstance(pattern := schema.get("pattern"), str):
        is_open = not has_end_anchor(pattern)
        body = escape_slashes(pattern.removeprefix("^") if is_open else pattern.removeprefix("^").removesuffix("$"))
        prefix = "" if pattern.startswith("^") else "(?s:.*)"
        bounds.append(f"{prefix}({body}){'(?s:.*)' if is_open else ''}")
    return bounds


def _not_starting_with(head: Iterable[str]) -> str:
    """Excludes text that begins like a call, which would be parsed as one."""
    return "".join(f" & ~/[ \\t\\r\\n]*{_escape_pattern(text)}(?s:.*)/" for text in sorted(head))


def _not_containing_pattern(pattern: str) -> str:
    return f" & ~/(?s:.*)({pattern})(?s:.*)/" if pattern else ""


def literal_then_any(first: str, then: Iterable[str], between: str = r"[ \t\r\n]*") -> str:
    """Returns a pattern of the text `first`, the pattern `between` and one of the texts `then`."""
    return f"{_escape_pattern(first)}{between}({'|'.join(map(_escape_pattern, then))})"


def _not_containing(texts: Iterable[str]) -> str:
    stops = "|".join(map(_escape_pattern, texts))
    return f" & ~/(?s:.*)({stops})(?s:.*)/" if stops else ""


def _escape_pattern(text: str) -> str:
    return re.sub(r"([!-;=?-@\[-`{-~])", r"\\\1", text).replace("\n", "\\n")
