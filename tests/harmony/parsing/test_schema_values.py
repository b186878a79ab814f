"""Values without a type of their own: they become JSON of a type that the schema allows, or a string."""

import pytest

from antiphon.harmony.parsing.schema_values import cast_value


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("3", "integer", "3"),
        ("3", "number", "3"),
        ("3.0", "integer", "3.0"),
        ("3.5", "integer", '"3.5"'),
        ("3", "string", '"3"'),
        ("3", "boolean", '"3"'),
        ("true", "boolean", "true"),
        ("True", "boolean", "true"),
        ("FALSE", "boolean", "false"),
        ("None", "null string", "null"),
        ("Null", "null", "null"),
        ("None", "string", '"None"'),
        (" \n[1, 2]\n", "array", "[1, 2]"),
        ("['a', True]", "array", '["a", true]'),
        ("{'a': None}", "object", '{"a": null}'),
        ("{'a': None}", "array", "\"{'a': None}\""),
        ("NaN", "number", '"NaN"'),
        (" text ", "string", '" text "'),
        (" text ", "integer", '" text "'),
    ],
)
def test_text_becomes_a_value_of_an_allowed_type(text: str, types: str, expected: str) -> None:
    assert cast_value(text, frozenset(types.split())) == expected
