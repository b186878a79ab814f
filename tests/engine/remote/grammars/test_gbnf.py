"""The translation to GBNF generates only what the original grammar allows, and refuses what it cannot say."""

import contextlib
import json
import time
from random import Random
from typing import Any

import pytest
from llguidance import LLMatcher

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.number_ranges import integer_between
from antiphon.engine.remote.grammars.gbnf.regex_reader import RegexReader
from antiphon.engine.remote.grammars.gbnf.regular import ExpressionTable
from antiphon.engine.remote.grammars.gbnf.translator import translate_grammar
from tests.counts import FULL_COUNTS
from tests.engine.remote.grammars.gbnf_text import Gbnf
from tests.engine.remote.remote_helpers import load_model, load_tokenizer

NUM_SAMPLES = 400 if FULL_COUNTS else 25
BLANKS = {"x-guidance": {"whitespace_pattern": r"( |\n[ \t]{0,20})?"}}
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
    "required": ["v"],
    "additionalProperties": False,
}
THREE = {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "boolean"}}
PAIR = [{"type": "integer"}, {"type": "string"}]

SCHEMAS: dict[str, Any] = {
    "string": {"type": "string"},
    "length": {"type": "string", "minLength": 2, "maxLength": 5},
    "least length": {"type": "string", "minLength": 2},
    "pattern": {"type": "string", "pattern": '^[a-z"\\\\]+$'},
    "pattern inside": {"type": "string", "pattern": r"b\d"},
    "pattern at the start": {"type": "string", "pattern": "^a.c"},
    "pattern and length": {"type": "string", "pattern": "^[a-c]*$", "minLength": 2, "maxLength": 4},
    "pattern and format": {"type": "string", "pattern": "^2024", "format": "date"},
    **{name: {"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "ipv4", "email")},
    "integer": {"type": "integer"},
    "integers between": {"type": "integer", "minimum": -120, "maximum": 99},
    "integers of several lengths": {"type": "integer", "minimum": 95, "maximum": 1234},
    "integers from": {"type": "integer", "minimum": 7},
    "integers below": {"type": "integer", "exclusiveMaximum": -3},
    "number": {"type": "number"},
    "numbers from": {"type": "number", "minimum": 1},
    "numbers between": {"type": "number", "minimum": 0, "maximum": 1},
    "numbers around zero": {"type": "number", "minimum": -3, "exclusiveMaximum": 12},
    "negative numbers": {"type": "number", "exclusiveMinimum": -5, "maximum": -1},
    "numbers above zero": {"type": "number", "exclusiveMinimum": 0},
    "numbers to zero": {"type": "number", "maximum": 0},
    "numbers below zero": {"type": "number", "exclusiveMaximum": 0},
    "numbers to": {"type": "number", "maximum": -7},
    "boolean": {"type": "boolean"},
    "enum": {"enum": ['a"b', "é", 1, None, True]},
    "const": {"const": "x/y"},
    "any": {},
    "object": {"type": "object", "properties": THREE, "required": ["b"], "additionalProperties": False},
    "object, all required": {
        "type": "object",
        "properties": THREE,
        "required": [*THREE],
        "additionalProperties": False,
    },
    "object, none required": {"type": "object", "properties": THREE, "additionalProperties": False},
    "object without properties": {"type": "object", "properties": {}, "additionalProperties": False},
    "object with others": {"type": "object", "properties": THREE, "additionalProperties": {"type": "integer"}},
    "any object": {"type": "object"},
    "array": {"type": "array", "items": {"type": "integer"}},
    "any array": {"type": "array"},
    "array of a length": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    "array of one": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1},
    "empty array": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": PAIR, "items": False},
    "tuple of a length": {"type": "array", "prefixItems": PAIR, "minItems": 2, "maxItems": 2},
    "options": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d", "default": None},
    "one of": {"oneOf": [{"type": "string"}, {"type": "null"}]},
    "all of one": {"allOf": [{"type": "string"}]},
    "types": {"type": ["integer", "null"]},
    "recursion": {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
}
GRAMMARS: dict[str, str] = {
    **{f"JSON Schema: {name}": f"start: %json {json.dumps({**schema, **BLANKS})}" for name, schema in SCHEMAS.items()},
    "range of repetitions": 'start: "ab"~1..3',
    "repetitions": 'start: "a" ~ 2 "b"{2,} "c"{,3} ("d" "e")~0..2',
    "repetitions in a terminal": 'start: A\nA: "ab"~1..3 "c"?',
    "many repetitions": 'start: "a"~1..1000',
    "range": 'start: "a".."z"',
    "complement": "start: A\nA: /a+/ & ~/aaa/",
    "intersection": "start: A\nA: /[a-z]+/ & /.{3}/",
    "names of branches": 'start: "a" -> foo\n | "b" -> bar',
    "optional": 'start: ["a"] "b"',
    "marks": '!start: x\n?x: "a"',
    "nested": 'start: %lark {\nstart: "a" b\nb: "c"+\n} "d"',
    "cases": 'start: "aB1"i /a[b-d]/i /(?i:x)Y/',
    "dot": "start: /a./s /b./",
    "token": 'start: <[5]> "a"',
    "shortest": 'start: x "y"\nx[lazy]: /.*x/',
    "comments": 'start: "a" // hi "\n  | "b" # "hi',
    "edges": "start: /^x$/",
    "lazy quantifier": "start: /a*?b/",
    "escapes": r'start: "\x41\u00e9\n" /\x41\u{e9}\t\//',
    "empty": 'start: | "a" ""',
    "classes": r"start: /\d+\s\w+\S[^\s]/",
    "negated class": r'start: /[^a-z\n"]+/',
    "right recursion": 'start: "a" start | "b"',
    "expressions": 'start: e\ne: t ("+" t)*\nt: NUM | "(" e ")"\nNUM: /[0-9]+/',
    "beyond ASCII": "start: /[а-я]+é/",
    "lines": 'start: row ("\\n" row)*\nrow: CELL ("," CELL)*\nCELL: /[^,\\n]+/',
    "terminals in terminals": 'start: WORD\nWORD: LETTER+ DIGIT?\nLETTER: "a".."z"\nDIGIT: /[0-9]/',
}
REFUSED: dict[str, str] = {
    'start: "a" "b"\n%ignore /[ ]+/': "%",
    "%import common.INT\nstart: INT": "%",
    'start: start "a" | "b"': "left recursion",
    'start: x\nx: y "a" | "b"\ny: x "c"': "left recursion",
    'start: ("a"?)+': "may be empty",
    "start: /[a-z&&[^b]]/": "operations on classes",
    r"start: /\p{L}/": "regular expression",
    r"start: /\W/": "class",
    "start: A\nA: /a\\d/ & ~/\\d/": "Unicode",
    "start: /(?i:é)/": "beyond ASCII",
    'start: "a"~1..3000': "repetitions",
    "start: A\nA: /a{1,3000}b/ & /.*b/": "too large",
    "start[max_tokens=3]: /a/": "attribute",
    "start: A\nA: /a/ & /b/": "matches no text",
    "start: <think>": "grammar",
    "start: " + "(" * 200 + '"a"' + ")" * 200: "nested too deeply",
    "start: /" + "(" * 200 + "a" + ")" * 200 + "/": "nested too deeply",
}
REFUSED_SCHEMAS: dict[str, tuple[Any, str]] = {
    "bounds": ({"type": "number", "minimum": 0.5}, "a fraction"),
    "two bounds": ({"type": "number", "minimum": 1, "exclusiveMinimum": 0}, "two bounds"),
    "multiple": ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    "all of": ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "allOf"),
    "beside": ({"anyOf": [{"type": "string"}], "type": "string"}, "type"),
    "format": ({"type": "string", "format": "uri"}, "format uri"),
    "keyword": ({"type": "object", "patternProperties": {}}, "patternProperties"),
    "required": ({"type": "object", "required": ["z"]}, "required property z"),
    "reference": ({"$ref": "other.json"}, "reference"),
    "nothing": ({"type": "array", "items": False, "minItems": 1}, ""),
    "untyped": ({"minLength": 3}, "without a type"),
    "constant": ({"const": {"a": 1}}, "constant"),
    "long": ({"type": "string", "maxLength": 5000}, "repetitions"),
    "deep": (json.loads('{"type": "array", "items": ' * 100 + "{}" + "}" * 100), "nested too deeply"),
}


def sample_tokens(gbnf: Gbnf, seed: int) -> list[int]:
    """Returns a random text of a grammar as tokens."""
    tokens, text = list[int](), ""
    for part in [*gbnf.sample(Random(seed)), None]:
        if isinstance(part, str):
            text += part
            continue
        tokens += load_tokenizer().tokenize_str(text)
        text = ""
        tokens += [] if part is None else [part]
    return tokens


def check_soundness(grammar: str, added_tokens: dict[int, str], num_samples: int = NUM_SAMPLES) -> set[tuple[int, ...]]:
    """Checks that texts of the translation are texts of the original. Returns them."""
    matcher = LLMatcher(load_tokenizer(), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    gbnf, samples = Gbnf(translate_grammar(grammar, added_tokens).text), set()
    for seed in range(num_samples):
        tokens = sample_tokens(gbnf, seed)
        copy = matcher.deep_copy()
        accepted = copy.try_consume_tokens(tokens)
        text = load_tokenizer().decode_str(tokens)
        assert accepted == len(tokens) and copy.is_accepting(), (text, accepted)
        samples.add(tuple(tokens))
    return samples


@pytest.mark.parametrize("name", GRAMMARS)
def test_translation_generates_only_what_the_grammar_allows(name: str) -> None:
    check_soundness(GRAMMARS[name], {})


def test_translation_of_every_construct() -> None:
    """The grammar of the handshake. It generates many texts: nothing was left out to make it fit."""
    probe = load_model()[0].grammar_probe
    assert probe is not None
    samples = check_soundness(probe.grammar, dict(load_model()[0].added_tokens), 4 * NUM_SAMPLES)
    assert len(samples) > 2 * NUM_SAMPLES


@pytest.mark.parametrize("grammar", REFUSED)
def test_what_gbnf_cannot_say_is_refused(grammar: str) -> None:
    with pytest.raises(UntranslatableError, match=REFUSED[grammar]):
        translate_grammar(grammar, {})


@pytest.mark.parametrize("name", [name for name, (_, reason) in REFUSED_SCHEMAS.items() if reason])
def test_schema_that_gbnf_cannot_say_is_refused(name: str) -> None:
    schema, reason = REFUSED_SCHEMAS[name]
    with pytest.raises(UntranslatableError, match=reason):
        translate_grammar(f"start: %json {json.dumps(schema)}", {})


def test_text_of_a_token_that_is_matched_by_id_is_in_no_pattern() -> None:
    """In GBNF a token matches wherever its text does; llguidance matches it by id only."""
    for body in ("/(?s:.*)/", '%json {"type": "string"}', "T\nT: /[a-z<>_]*/"):
        translated = translate_grammar(f"start: <[7]> {body}", {7: "<tool>", 8: "<other>"})
        assert translated.token_ids == {7}
        assert "<tool>" not in translated.text
        gbnf = Gbnf(translated.text)
        for seed in range(200):
            assert "<tool>" not in "".join(map(str, gbnf.sample(Random(seed), 400)))
        assert _accepts(gbnf, [7, *_quoted(body, "<tool<other>")])
        assert not _accepts(gbnf, [7, *_quoted(body, "<tool>")])


def _quoted(body: str, text: str) -> list[str | int]:
    return list(json.dumps(text) if "json" in body else text)


def _accepts(gbnf: Gbnf, parts: list[str | int]) -> bool:
    """Returns true if the grammar generates these characters and tokens."""
    stacks = gbnf.expand({("root",)})
    for part in parts:
        stacks = gbnf.advance(stacks, part)
    return () in stacks


@pytest.mark.parametrize(("low", "high"), [(0, 0), (-5, 5), (8, 123), (-120, -9), (99, 101), (None, 12), (-12, None)])
def test_integers_between_bounds(low: int | None, high: int | None) -> None:
    table = ExpressionTable()
    number = RegexReader(table, integer_between(low, high)).read()

    def matches(text: str) -> bool:
        state = number
        for letter in text:
            state = table.derive(state, ord(letter))
        return table.is_nullable(state)

    for value in range(-1300, 1300):
        is_inside = (low is None or low <= value) and (high is None or value <= high)
        assert matches(str(value)) == is_inside, value
    assert not matches("-0") and not matches("") and not matches("007")


@pytest.mark.parametrize(
    "grammar",
    [
        "start: A\nA: " + " & ".join(f"/(?s:.*)[a-m]{{{n}}}(?s:.*)/" for n in range(2, 12)),
        "start: A\nA: /(?s:.*)a(?s:.){200}/ & /[ab]*/",
        "start: " + " | ".join(f'"{n}"' for n in range(30_000)),
        "".join(f"x{n}: x{n + 1} x{n + 1}\n" for n in range(40)) + 'start: x0\nx40: "a"\n',
        'start: %json {"enum": [' + ",".join(f'"{n}"' for n in range(20_000)) + "]}",
        "start: " + "/a{1,2000}{1,2000}/",
    ],
    ids=["intersections", "window", "options", "doubling", "enum", "powers"],
)
def test_hostile_grammar_ends_soon(grammar: str) -> None:
    started = time.thread_time()
    with contextlib.suppress(UntranslatableError):
        assert len(translate_grammar(grammar, {}).text) <= 1 << 20
    assert time.thread_time() - started < 20
