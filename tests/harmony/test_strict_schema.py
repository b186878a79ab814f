"""Objects with declared properties are closed in constrained output, unless their schema says otherwise."""

import copy
import json
from typing import Any

import pytest

from antiphon.events.tools import FunctionTool
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.strict_schema import MAX_SCHEMA_STEPS, close_objects
from antiphon.harmony.tools import ToolTable
from tests.harmony import parser_helpers
from tests.harmony.grammar_helpers import accepts_output

TEXT, NUMBER, ANY = {"type": "string"}, {"type": "integer"}, dict[str, Any]()
A = {"type": "object", "properties": {"a": NUMBER}}
A_REQUIRED = {**A, "required": ["a"]}
B = {"properties": {"b": NUMBER}, "required": ["b"]}
C = {"properties": {"c": NUMBER}, "required": ["c"]}
OBJECT = {"type": "object"}


def accepts(schema: dict[str, Any], value: object) -> bool:
    return accepts_output(
        parser_helpers.load_token_format("plain"),
        json.dumps(value),
        parser_helpers.build_prompt_input(output_constraint=OutputConstraint(schema=schema)),
    )


CASES: dict[str, tuple[dict[str, Any], list[object], list[object]]] = {
    "declared properties": (A, [{}, {"a": 1}], [{"z": 1}, {"a": 1, "z": 1}, {"a": "1"}]),
    "no properties": (OBJECT, [{}, {"z": [1]}], []),
    "empty properties": ({**OBJECT, "properties": {}}, [{}], [{"z": 1}]),
    "additional properties": ({**A, "additionalProperties": True}, [{"a": 1, "z": 1}], [{"a": "1"}]),
    "additional properties by schema": ({**A, "additionalProperties": TEXT}, [{"a": 1, "z": "1"}], [{"z": 1}]),
    "pattern properties": ({**A, "patternProperties": {"^x": NUMBER}}, [{"a": 1, "x": 1}, {"z": 1}], [{"x": "1"}]),
    "closed by the client": ({**A, "additionalProperties": False}, [{"a": 1}], [{"z": 1}]),
    "unevaluated properties": ({**A, "unevaluatedProperties": False}, [{}, {"a": 1}], [{"z": 1}]),
    "unevaluated properties of branches": (
        {"anyOf": [A, {**B, **OBJECT}], "unevaluatedProperties": False},
        [{"a": 1}, {"b": 1}],
        [{"z": 1}],
    ),
    "required without declaration": ({**A, "required": ["z"]}, [{"a": 1, "z": [2]}], [{"a": 1}, {"z": 1, "y": 1}]),
    "nested": (
        {**OBJECT, "properties": {"o": A, "l": {"type": "array", "items": A}}, "required": ["o"]},
        [{"o": {"a": 1}, "l": [{}, {"a": 1}]}],
        [{"o": {"z": 1}}, {"o": {}, "l": [{"z": 1}]}],
    ),
    "values of additional properties": ({**OBJECT, "additionalProperties": A}, [{"z": {"a": 1}}], [{"z": {"z": 1}}]),
    "tuple": ({"type": "array", "prefixItems": [A], "items": False, "minItems": 1}, [[{"a": 1}]], [[{"z": 1}]]),
    "property named like a keyword": (
        {**OBJECT, "properties": {"properties": {**OBJECT, "additionalProperties": NUMBER}, "enum": NUMBER}},
        [{"properties": {"z": 1}, "enum": 1}],
        [{"z": 1}],
    ),
    "values that look like schemas": ({"enum": [{"properties": {"a": 1}}]}, [{"properties": {"a": 1}}], [{}]),
    "or null": ({"type": ["object", "null"], "properties": {"a": NUMBER}}, [None, {"a": 1}], [{"z": 1}]),
    "allOf": ({"allOf": [A, B]}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1}, {"b": 1, "z": 1}]),
    "allOf of one": ({"allOf": [A], "description": "d"}, [{"a": 1}], [{"z": 1}]),
    "allOf beside properties": ({**A, "allOf": [B, C]}, [{"a": 1, "b": 1, "c": 1}], [{"b": 1, "c": 1, "z": 1}]),
    "allOf with an open part": ({"allOf": [{**A, "additionalProperties": True}, B]}, [{"b": 1, "z": 1}], [{"z": 1}]),
    "allOf with a closed part": (
        {"allOf": [{"properties": {"a": NUMBER, "b": ANY}, "additionalProperties": False}, {**B, **OBJECT}]},
        [{"a": 1, "b": 1}],
        [{"b": 1, "z": 1}],
    ),
    "allOf of references": (
        {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
        [{"a": 1, "b": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "reference used alone and in a combination": (
        {
            **OBJECT,
            "properties": {"x": {"$ref": "#/$defs/A"}, "y": {"allOf": [{"$ref": "#/$defs/A"}, B]}},
            "$defs": {"A": A},
        },
        [{"x": {"a": 1}, "y": {"a": 1, "b": 1}}],
        [{"x": {"b": 1}}, {"y": {"b": 1, "z": 1}}],
    ),
    "reference beside properties": (
        {**A, "$ref": "#/$defs/B", "$defs": {"B": B}},
        [{"a": 1, "b": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "reference to an escaped name": (
        {"allOf": [{"$ref": "#/definitions/A~1%5BB%5D"}, B], "definitions": {"A/[B]": A}},
        [{"a": 1, "b": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "reference to an item of a list": (
        {"allOf": [{"$ref": "#/$defs/all/anyOf/0"}, B], "$defs": {"all": {"anyOf": [A]}}},
        [{"a": 1, "b": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "recursive reference": (
        {**OBJECT, "properties": {"next": {"$ref": "#"}}},
        [{"next": {"next": {}}}],
        [{"next": {"z": 1}}],
    ),
    "recursive reference in a combination": (
        {
            "$ref": "#/$defs/N",
            "$defs": {"N": {"allOf": [A, {"properties": {"next": {"$ref": "#/$defs/N"}}}]}},
        },
        [{"a": 1, "next": {"a": 1, "next": {}}}],
        [{"next": {"z": 1}}, {"z": 1}],
    ),
    "anyOf": (
        {"anyOf": [A_REQUIRED, {**B, **OBJECT}, {"type": "null"}]},
        [{"a": 1}, {"b": 1}, None],
        [{"a": 1, "b": 1}, {"b": 1, "z": 1}],
    ),
    "anyOf beside properties": (
        {**A, "anyOf": [B, C]},
        [{"a": 1, "b": 1}, {"c": 1}],
        [{"a": 1}, {"b": 1, "c": 1}, {"b": 1, "z": 1}],
    ),
    "anyOf of required names": (
        {**OBJECT, "properties": {"a": NUMBER, "b": NUMBER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1, "z": 1}],
    ),
    "anyOf with an open branch": (
        {**A, "anyOf": [{**B, "additionalProperties": True}, C]},
        [{"a": 1, "b": 1, "z": 1}, {"c": 1}],
        [{"c": 1, "z": 1}],
    ),
    "anyOf of references beside properties": (
        {**A, "anyOf": [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/C"}], "$defs": {"B": B, "C": C}},
        [{"a": 1, "b": 1}, {"c": 1}],
        [{"b": 1, "c": 1}, {"b": 1, "z": 1}],
    ),
    "anyOf beside required names": (
        {"required": ["z"], "anyOf": [{"type": "string"}, A]},
        [{"a": 1, "z": 1}, "text"],
        [{"a": 1}, {"y": 1, "z": 1}],
    ),
    "recursive anyOf beside properties": (
        {**A, "anyOf": [{"properties": {"next": {"anyOf": [B, {"$ref": "#"}]}}}, C]},
        [{"a": 1, "next": {"next": {"b": 1}}}, {"c": 1}],
        [{"next": {"z": 1}}, {"z": 1}],
    ),
    "branches with the same property": (
        {**A, "anyOf": [{"properties": {"o": B}, "required": ["o"]}, {"properties": {"o": C}, "required": ["o"]}]},
        [{"a": 1, "o": {"b": 1}}, {"o": {"c": 1}}],
        [{"o": {"b": 1, "c": 1}}, {"o": {"b": 1}, "z": 1}],
    ),
    "property with several schemas": (
        {"allOf": [{"properties": {"o": A}}, {"properties": {"o": B}, "required": ["o"]}]},
        [{"o": {"a": 1, "b": 1}}],
        [{"o": {"a": 1}}],
    ),
    "property with several schemas in a branch": (
        {**OBJECT, "properties": {"o": A}, "anyOf": [{"properties": {"o": B}, "required": ["o"]}]},
        [{"o": {"a": 1, "b": 1}}],
        [{"o": {"a": 1}}],
    ),
    "anyOf in allOf": (
        {"allOf": [A, {"anyOf": [B, C]}]},
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "two combinations of branches": (
        {**A, "anyOf": [B, C], "allOf": [{"anyOf": [{"required": ["b"]}, {"required": ["c"]}]}]},
        [{"a": 1, "b": 1}],
        [{"a": 1, "b": 1, "z": 1}],
    ),
    "anyOf with any value": ({**A, "anyOf": [True, B]}, [{"a": 1}, {}], [{"z": 1}]),
}


@pytest.mark.parametrize("name", CASES)
def test_objects_with_declared_properties_are_closed(name: str) -> None:
    schema, accepted, rejected = CASES[name]
    before = copy.deepcopy(schema)
    assert [value for value in accepted if not accepts(schema, value)] == []
    assert [value for value in rejected if accepts(schema, value)] == []
    assert schema == before  # the response repeats it


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize("strict", [True, False])
def test_arguments_of_tools_are_closed(name: str, strict: bool) -> None:
    tool = FunctionTool(name="f", parameters={**OBJECT, "properties": {"o": A}, "required": ["o"]}, strict=strict)
    tools = ToolTable.from_request([tool])
    prompt_input = parser_helpers.build_prompt_input(tools=tools, tool_choice="required")
    offer = tools.find_tool("f")
    assert offer is not None
    model_format = parser_helpers.load_token_format(name)
    for value, expected in (({"a": 1}, True), ({"a": 1, "z": 1}, False)):
        call = parser_helpers.DIALECTS[name].calls[0].write_calls([(offer, json.dumps({"o": value}))])
        assert call is not None and accepts_output(model_format, call, prompt_input) is expected


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#anchor"}, A], "$defs": {"B": {**B, "$anchor": "anchor"}}},
        {"allOf": [{"$ref": "#/$defs/missing"}, A]},
        {"allOf": [{"$ref": "http://example.com/b"}, A], "$defs": {"B": {**B, "$id": "http://example.com/b"}}},
        {**A, "properties": [A]},
        {**A, "allOf": A},
    ],
)
def test_schema_whose_references_or_keywords_cannot_be_followed_is_left_alone(schema: dict[str, Any]) -> None:
    assert close_objects(schema) == schema


@pytest.mark.parametrize("part", [{"$ref": "#"}, {"$ref": "#/$defs/N"}])
def test_recursive_combination_that_the_grammar_library_could_not_compile_closed_is_left_alone(
    part: dict[str, Any],
) -> None:
    schema = {**A, "$defs": {"N": {"properties": {"n": {"allOf": [True, part]}}}}}
    schema["properties"] = {"n": {"allOf": [True, part]}}
    assert accepts(schema, {"n": {"n": {}}})


def test_property_order_of_the_schema_is_kept() -> None:
    schema = {"allOf": [{"properties": {"b": NUMBER}}, {"properties": {"a": NUMBER}}], "required": ["b", "a"]}
    assert accepts(schema, {"b": 1, "a": 1}) and not accepts(schema, {"a": 1, "b": 1})


def test_schema_that_costs_too_much_to_close_is_left_alone() -> None:
    deep: dict[str, Any] = A
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    assert close_objects(deep) is deep
    size = int(MAX_SCHEMA_STEPS**0.5)
    wide = {**OBJECT, "properties": {f"p{n}": NUMBER for n in range(size)}, "anyOf": [B] * size}
    assert close_objects(wide) is wide
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, A]} for n in range(size)}
    long = {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{size}": B}}
    assert close_objects(long) is long
