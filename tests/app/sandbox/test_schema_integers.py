"""Integers of schemas that no grammar can hold: the fault names the value and its place; others pass as they are."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from antiphon.app.sandbox.grammar_checker import GrammarChecker
from antiphon.app.sandbox.grammar_worker import _byte_tokenizer

pytestmark = pytest.mark.processes

FLOAT, BITS = "which a 64-bit float does not hold exactly", "which has more than 63 bits"


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.process.stop()


@pytest.mark.parametrize(
    ("schema", "value", "path", "reason"),
    [
        ({"type": "integer", "enum": [1, 2**70, -(2**70)]}, 2**70, "enum[1]", FLOAT),
        ({"type": "integer", "const": -(2**70)}, -(2**70), "const", FLOAT),
        ({"const": -(2**63)}, -(2**63), "const", FLOAT),
        ({"enum": [2**53 + 1]}, 2**53 + 1, "enum[0]", FLOAT),
        ({"const": {"a": [2**64]}}, 2**64, "const.a[0]", FLOAT),
        ({"properties": {"enum": {"enum": [2**70]}}}, 2**70, "properties.enum.enum[0]", FLOAT),
        ({"$defs": {"a": {"const": 2**64}}, "items": {"$ref": "#/$defs/a"}}, 2**64, "$defs.a.const", FLOAT),
        ({"anyOf": [{"type": "string"}, {"const": 2**64}]}, 2**64, "anyOf[1].const", FLOAT),
        ({"type": "integer", "minimum": -(2**70)}, -(2**70), "minimum", BITS),
        ({"type": "integer", "minimum": -(2**63), "maximum": 5}, -(2**63), "minimum", BITS),
        ({"type": "number", "exclusiveMinimum": 2**64}, 2**64, "exclusiveMinimum", BITS),
    ],
    ids=str,
)
async def test_integer_that_no_grammar_holds_is_named(
    schema: dict[str, Any], value: int, path: str, reason: str, checker: GrammarChecker
) -> None:
    fault = await checker.find_fault("schema", json.dumps(schema))
    assert fault.startswith(f"no grammar can hold the integer {value} at '{path}', {reason}"), fault


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "integer", "default": 2**70, "examples": [2**70]},
        {"properties": {"const": {"type": "integer", "maximum": 2**70}}},
        {"enum": ["1180591620717411303424", 1e30]},
        {"enum": [2**53, -(2**53), 2**60]},
    ],
    ids=str,
)
async def test_other_large_integers_pass(schema: dict[str, Any], checker: GrammarChecker) -> None:
    assert not await checker.find_fault("schema", json.dumps(schema))


async def test_enum_that_passes_requires_its_own_digits(checker: GrammarChecker) -> None:
    for value in (2**53, 2**60, -(2**62), -(2**63) + 1024):
        source = json.dumps({"type": "integer", "const": value})
        assert not await checker.find_fault("schema", source)
        matcher = LLMatcher(_byte_tokenizer(), LLMatcher.grammar_from_json_schema(source))
        digits = str(value).encode()
        assert matcher.try_consume_tokens(list(digits)) == len(digits) and matcher.is_accepting()


async def test_long_integer_is_shortened(checker: GrammarChecker) -> None:
    fault = await checker.find_fault("schema", json.dumps({"const": 10**4000}))
    assert "0000…" in fault and len(fault) < 200
