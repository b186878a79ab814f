"""Expressions of adapters mean what they mean for Python, and cannot take more than their steps."""

import contextlib
import itertools
import random
import re
import time

import pytest

from antiphon.engine.adapters import layer_pattern
from antiphon.engine.adapters.layer_pattern import MAX_LAYER_NAME_CHARS, LayerPattern, PatternError
from tests.counts import FULL_COUNTS

NAMES = [
    f"{prefix}layers.{number}.{module}"
    for prefix in ("model.", "model.language_model.", "model.visual.", "")
    for number in (0, 1, 10)
    for module in ("self_attn.q_proj", "mlp.down_proj", "mlp.gate_up_proj", "visual.q_proj")
]

PUBLISHED = [
    r".*\.(q_proj|v_proj)",
    r".*layers\.[01]\.mlp\.(up|down)_proj",
    r"^(?!.*visual).*(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*",
    r"^(model\.language_model(?=\.).*\.(q_proj|down_proj))$",
    (
        r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?(?:q_proj|down_proj).*?)"
        r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp)\.(?:(?:q_proj|down_proj)))"
    ),
    r"model\.layers\.\d+\.(?:self_attn\.[qkv]_proj|mlp\..*)",
    r"(.*\.)?(^model.layers.0.mlp.down_proj)$",
    r"[^v]*q_proj",
    r"model\.(?!visual)(?:layers|language_model\.layers)\.(?:1|10)\..{3,20}",
]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_expressions_match_as_in_python(pattern: str) -> None:
    compiled = LayerPattern(pattern)
    expected = [re.fullmatch(pattern, name) is not None for name in NAMES]
    assert [compiled.matches(name) for name in NAMES] == expected
    assert len(set(expected)) == 2


def make_pattern(source: random.Random, depth: int) -> str:
    """Returns a random expression over few characters."""
    if depth == 0:
        return source.choice(
            ["a", "b", ".", r"\.", "[ab]", "[^a]", r"\w", r"\d", "1", "", "^", "$", r"\b", r"\B", r"\W"]
        )
    part = make_pattern(source, depth - 1)
    other = make_pattern(source, depth - 1)
    repeated = [
        f"({part})*",
        f"(?:{part})+?",
        f"({part}){{1,3}}",
        f"({part})?",
        f"(?:{part}){{2}}",
        f"(?:{part}){{2,}}",
    ]
    return source.choice(
        [part + other, part + other, f"{part}|{other}", *repeated, f"(?={part}){other}", f"(?!{part}){other}"]
    )


def test_random_expressions_match_as_in_python() -> None:
    source = random.Random(33)
    texts = ["".join(chars) for length in range(1, 5) for chars in itertools.product("ab1.", repeat=length)]
    for _ in range(5000 if FULL_COUNTS else 150):
        pattern = make_pattern(source, source.randint(1, 4))
        compiled = LayerPattern(pattern)
        for text in source.sample(texts, 10):
            assert compiled.matches(text) is (re.fullmatch(pattern, text) is not None), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        (r"(a)\1", "not supported"),
        (r"(?<=a)b", "not supported"),
        (r"(?>a)b", "not supported"),
        (r"(?i)a", "flags"),
        (r"(?i:a)", "not supported"),
        ("a" * 5000, "characters"),
        ("(" * 4000, "nested too deeply|unterminated"),
        ("(?:" * 1000 + ")" * 1000, "nested too deeply"),
        ("a{3000}", "too long"),
        ("(?:){1000000000}", "too long"),
        ("a{99999999999999999999}", "repeats too often"),
        ("(((a{100}){100}){100}){100}", "too long"),
    ],
)
def test_other_expressions_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        LayerPattern(pattern)


HARMFUL = [
    r"(([a-z._0-9]+)+)+!",
    r"(.*)*!",
    r"(.|.)*!",
    r"(\w|\w\w|\.)*!",
    r"(a?){50}a{50}",
    r".*.*.*.*.*.*.*.*!",
    r"(?=(.*)*!)(.*)*",
    "(?:" * 90 + ".*" + ")*" * 90 + "!",
    "".join(f"(?!{'.*' * 20}!)" for _ in range(40)) + ".*",
]


@pytest.mark.parametrize("pattern", HARMFUL)
def test_expression_of_an_attack_ends_after_its_steps(pattern: str) -> None:
    """The first one takes Python's own matcher minutes for a name of 30 characters."""
    started_at = time.process_time()
    compiled = LayerPattern(pattern)
    with contextlib.suppress(PatternError):  # after its steps
        for name in NAMES:
            compiled.matches(name)
    assert time.process_time() - started_at < 20


def test_steps_are_those_of_all_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_pattern, "MAX_PATTERN_STEPS", 1000)
    compiled = LayerPattern(r".*q_proj")
    assert compiled.matches(NAMES[0])
    with pytest.raises(PatternError, match="takes too long"):
        list(map(compiled.matches, NAMES * 100))


def test_long_names_and_lines_do_not_match() -> None:
    compiled = LayerPattern("(.|\n)*")
    assert compiled.matches("a" * MAX_LAYER_NAME_CHARS)
    assert not compiled.matches("a" * (MAX_LAYER_NAME_CHARS + 1))
    assert not compiled.matches("a\n")
