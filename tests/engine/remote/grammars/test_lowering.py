"""The older syntax of grammars for engines with an older library."""

import time

import pytest
from llguidance import LLMatcher

from antiphon.engine.remote.grammars.lowering import lower_syntax
from tests.engine.remote.remote_helpers import load_model, load_tokenizer


@pytest.mark.parametrize(
    ("grammar", "lowered"),
    [
        ('start: "a"~1..3', 'start: "a"{1,3}'),
        ('start: x ~ 1 .. 3 "b"\nx: "a"', 'start: x {1,3} "b"\nx: "a"'),
        ('start: ("a"|"b")~0..12', 'start: ("a"|"b"){0,12}'),
        ('start: A\nA: "a"~1..3 & ~/aa/', 'start: A\nA: "a"{1,3} & ~/aa/'),
        (r'start: "\x41\n\\x42"', r'start: "\u0041\n\\x42"'),
        (r'start: "\\\x7e"', r'start: "\\\u007e"'),
        ('start: %lark {\nstart: "a"~1..3\n} "b"~2..3', 'start: %lark {\nstart: "a"{1,3}\n} "b"{2,3}'),
    ],
)
def test_newer_syntax_is_lowered(grammar: str, lowered: str) -> None:
    assert lower_syntax(grammar) == lowered
    for text in (grammar, lowered):
        matcher = LLMatcher(load_tokenizer(), text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"~2',
        'start: "~1..3" /~1..3/ // "~1..3\n# ~1..3 "\n',
        r'start: /\x41/ "\\x41" "\"~1..3"',
        'start: %json {"pattern": "\\"~1..3", "a": {"enum": ["~1..3", "\\\\x41"]}} "b"',
        'start: %regex {"substring_words": "~1..3"}',
        'start: "a".."z"',
        'start: "not closed ~1..3',
        'start: %json {"not": "closed ~1..3 "a"~1..3',
    ],
)
def test_other_text_is_kept(grammar: str) -> None:
    assert lower_syntax(grammar) == grammar


def test_grammar_of_every_construct_is_kept() -> None:
    probe = load_model()[0].grammar_probe
    assert probe is not None and lower_syntax(probe.grammar) == probe.grammar


@pytest.mark.parametrize(
    "piece", ['"', "/", "\\", '"\\', "~1", "~ 1", "~", "%json {", "%json [", "#", "a", '\\"', "~1."]
)
def test_time_is_linear(piece: str) -> None:
    """CPU time of a text that is four times as long: quadratic work would take sixteen times as long."""

    def measure(size: int) -> float:
        text, times = piece * (size // len(piece)), []
        for _ in range(3):
            started = time.thread_time()
            lower_syntax(text)
            times.append(time.thread_time() - started)
        return min(times)

    assert measure(80_000) < 8 * measure(20_000) + 0.02
