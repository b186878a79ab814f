"""Values without a type of their own: they become JSON of a type that the schema allows, or a string."""

import pytest

from antiphon.harmony.parsing.schema_values import cast_value, parse_json


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'["\ud83d", "\ude00", "\ud83d\ude00", "\uD83Dx"]', ["\ufffd", "\ufffd", "\U0001f600", "\ufffdx"]),
        (r'"\\ud83d \" \\\ud83d"', '\\ud83d " \\\ufffd'),
        (r'{"\ud83d": 1}', {"\ufffd": 1}),
        ('{"a": 1, "b": 2, "a": 3}', {"a": 1, "b": 2}),
    ],
)
def test_json_of_a_model_has_no_half_of_a_pair_and_its_first_members(text: str, expected: object) -> None:
    assert parse_json(text) == expected


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "9" * 5000, "[" * 100_000, "", r'"\x"'])
def test_json_that_python_alone_reads_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json, of int and of this module
        parse_json(text)
