"""Regular expressions of clients and repositories, whose facts are read without running them."""

import random
import re
import warnings

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from antiphon.app.sandbox.grammar_worker import _byte_tokenizer
from antiphon.events.tools import FunctionTool
from antiphon.harmony.patterns import escape_slashes, find_complex_part, has_end_anchor, matches_empty
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolTable
from tests.counts import FULL_COUNTS
from tests.harmony import parser_helpers
from tests.harmony.grammar_helpers import MatcherVocabulary
from tests.pumping import find_slow_input

PATTERNS = r"""
a a* a+ a? a{0} a{1} a{0,3} a{2,} a*? a+? (a)* (a|) (|a) a|b|c* (a*b*)(c?) ((a?){3}) ((a){0,2}b*) [a-z]* [a-z] [^a]? []a]*
[^]a]* [[:alpha:]]* [[:alpha:]]+ [a&&b]* [a\]b]* \p{L}* \p{L}+ \pL \x{41}? \x{41} \d* \w+ \.* \* \(? \( (?:a|b)* (?P<n>a)? (?<n>a)
(?i) (?i)a* (?i:a)? (?s:.)* . .* ^a* ^$ ^a$ ((){9}){9} (((a*))) (a(b|c*)*)? (a{0}){5} (a{5}){0} {0
""".split()
"""Expressions in the syntax of llguidance."""


CALLS = {
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
}
"""A call of the function `f` with the argument `a`."""


def accepts_empty(pattern: str) -> bool | None:
    """Tells whether llguidance matches the empty text; None if it refuses the expression."""
    matcher = LLMatcher(_byte_tokenizer(), LLMatcher.grammar_from_regex(pattern), log_level=0)
    return None if matcher.is_error() else bool(matcher.is_accepting())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_empty_agrees_with_llguidance(pattern: str) -> None:
    assert accepts_empty(pattern) in (None, matches_empty(pattern))


def test_matches_empty_agrees_on_random_patterns() -> None:
    rng = random.Random(4)
    pieces = ["a", "b", ".", r"\w", "[ab]", "(", "(?:", ")", "|", "*", "?", "+", "{0,2}", "{2}", ""]
    num_valid = 0
    for _ in range(20_000 if FULL_COUNTS else 2_000):
        pattern = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 9)))
        expected = accepts_empty(pattern)
        num_valid += expected is not None
        assert expected in (None, matches_empty(pattern)), pattern
    assert num_valid > 300


@pytest.mark.parametrize(
    "pattern",
    ["((){60000}){60000}", "(" * 50_000 + "a?" + ")" * 50_000, "(a?){60000}" * 1_000, "[" * 50_000, "(?<a" * 50_000],
)
def test_matches_empty_scans_once(pattern: str) -> None:
    matches_empty(pattern)


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"^\p{Lu}+$", "É", "é"),
        (r"^((){60000}){60000}a?$", "a", "b"),
        (r"a/b\\/c", r"a/b\/c", "a/b/c"),
        (r"^a\$", "a$", "a"),
        (r"^a$", "a", "aa"),
        (r"^(x|)$", "", "y"),
    ],
)
@pytest.mark.parametrize("dialect", CALLS)
def test_pattern_of_a_parameter_is_enforced(dialect: str, pattern: str, accepted: str, refused: str) -> None:
    """Expressions that Python cannot read, or matches for ever, are those of the strict tool of a client."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    tools = ToolTable.from_request([FunctionTool(name="f", parameters=parameters, strict=True)])
    prompt_input = parser_helpers.build_prompt_input(tools=tools, tool_choice="required")
    model_format = parser_helpers.load_token_format(dialect)
    grammar = model_format.build_grammar(RenderedPrompt((), "", False), prompt_input)
    assert grammar is not None
    source, tokenizer = (
        LLMatcher.grammar_from_lark(grammar),
        LLTokenizer(TokenizerWrapper(MatcherVocabulary(model_format, 300))),
    )
    for value, is_valid_value in ((accepted, True), (refused, False)):
        text = CALLS[dialect].format(value)
        tokens = model_format.encode(text)
        matcher = LLMatcher(tokenizer, source, log_level=0)
        consumed = matcher.try_consume_tokens(tokens) == len(tokens)
        assert (consumed and matcher.is_accepting() and not matcher.is_error()) is is_valid_value, matcher.get_error()


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s*<call>\s*<function=(?P<name>[^>\n]+)>",
        r"<\|tool>call:(?P<name>\w+)",
        r"<run>(?P<name>\w+)\n",
        r"<a>|<b>",
        r"<tool_call>(?P<name>[^\n]*?)\n",
        r"a(?:b|c)d",
    ],
)
def test_simple_patterns_are_used(pattern: str) -> None:
    assert find_complex_part(pattern) == ""
    assert find_slow_input(pattern, 0, ["match"]) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        "<a>(a+)+",
        "<a>(x|xx)*y",
        "<a>.*.*=",
        "<a>a*a",
        "<a>a*a*",
        r"<a>\w*[a-z]",
        "<a>a*(?:b|a)",
        "<a>[[](a*)*b",
        "<a>(?=a*a*b)",
        r"<a>(a)\1*",
        "<a>(?i)a*A",
        "<a>" + "(a|a)" * 40 + "b",
        "<a>" + "a?" * 40 + "a" * 40,
        r"<a>\x61*a",
        "<a>a{1,300}a",
        "<a>(?:a{2})*",
    ],
)
def test_other_patterns_are_not_used(pattern: str) -> None:
    assert find_complex_part(pattern)


def test_random_simple_patterns_take_linear_time() -> None:
    rng = random.Random(5)
    pieces = ["a", "b", ".", r"\w", r"\s", "[^a]", "[ab]", "(", ")", "|", "*", "?", "+", "{1,99}", "*?", "<", " "]
    simple: set[str] = set()
    while len(simple) < (400 if FULL_COUNTS else 40):
        pattern = "".join(rng.choice(pieces) for _ in range(rng.randrange(2, 12)))
        if is_valid(pattern) and set(pattern) & set("*+{") and not find_complex_part(pattern):
            simple.add(pattern)
    slow = {pattern: found for pattern in sorted(simple) if (found := find_slow_input(pattern, 0, ["match"]))}
    assert slow == {}


def is_valid(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error:
        return False
    return True


def test_slashes_and_end_anchors() -> None:
    assert escape_slashes(r"a/b\/c\\/") == r"a\/b\/c\\\/"
    assert [has_end_anchor(text) for text in ("a$", r"a\$", r"a\\$", "a", "$")] == [True, False, True, False, True]
