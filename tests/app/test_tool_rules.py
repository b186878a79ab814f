"""Rules of `mcp` tools: the strictest wins, nothing is exempt by mistake, and a malformed rule names its place."""

from typing import Any

import pytest

from antiphon.app.turn_types.tool_rules import (
    ALL_TOOLS,
    ToolRuleError,
    needs_approval,
    parse_allowed_tools,
    parse_approval_rule,
)

READ = {"read_only": True}
NAMED = {"tool_names": ["read", "both"]}
RULES: dict[str, tuple[Any, set[str]]] = {
    "default": (None, set()),
    "always": ("always", set()),
    "never": ("never", {"read", "write", "unknown"}),
    "no filter": ({}, set()),
    "null filters": ({"always": None, "never": None}, set()),
    "filters without a criterion": ({"always": {}, "never": {}}, set()),
    "filter with null criteria": ({"never": {"tool_names": None, "read_only": None}}, set()),
    "never some names": ({"never": NAMED}, {"read"}),
    "never no names": ({"never": {"tool_names": []}}, set()),
    "never what only reads": ({"never": READ}, {"read"}),
    "never what may write": ({"never": {"read_only": False}}, {"write", "unknown"}),
    "never what fits both": ({"never": {"tool_names": ["write", "read"], "read_only": True}}, {"read"}),
    "only always": ({"always": {"tool_names": ["write"]}}, set()),
    "both match": ({"always": {"tool_names": ["read"]}, "never": {"tool_names": ["read", "write"]}}, {"write"}),
    "writes are never exempt": (
        {"always": {"read_only": False}, "never": {"tool_names": ["read", "write", "unknown"]}}, {"read"},
    ),
}  # fmt: skip
"""`require_approval`, and which of `TOOLS` it exempts."""
TOOLS = {"read": True, "write": False, "unknown": None}
"""Tools with their annotation."""


@pytest.mark.parametrize("name", RULES)
def test_rule_exempts_exactly_these_tools(name: str) -> None:
    value, exempt = RULES[name]
    rule = parse_approval_rule(value)
    assert {tool for tool, reads in TOOLS.items() if not needs_approval(rule, tool, reads, forced=False)} == exempt
    assert all(needs_approval(rule, tool, reads, forced=True) for tool, reads in TOOLS.items()), "the operator's rule"


ALLOWED: dict[str, tuple[Any, set[str]]] = {
    "null": (None, set(TOOLS)),
    "no names": ([], set()),
    "names": (["read", "gone"], {"read"}),
    "empty filter": ({}, set(TOOLS)),
    "filter by names": ({"tool_names": ["unknown"]}, {"unknown"}),
    "filter of no names": ({"tool_names": []}, set()),
    "what only reads": ({"read_only": True}, {"read"}),
    "what may write": ({"read_only": False}, {"write", "unknown"}),
    "both": ({"tool_names": ["write", "read"], "read_only": True}, {"read"}),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_tools_are_exactly_these(name: str) -> None:
    value, allowed = ALLOWED[name]
    tool_filter = parse_allowed_tools(value)
    assert {tool for tool, reads in TOOLS.items() if tool_filter.matches(tool, reads)} == allowed


def test_filter_of_a_list_equals_that_of_an_object() -> None:
    assert parse_allowed_tools(["a", "a"]) == parse_allowed_tools({"tool_names": ["a"]}) != ALL_TOOLS


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ("sometimes", "", "Expected 'always', 'never' or an object, but got 'sometimes' instead."),
        ("Never", "", "Expected 'always', 'never' or an object, but got 'Never' instead."),
        (True, "", "Expected a string or an object, but got a boolean instead."),
        (["read"], "", "Expected a string or an object, but got an array instead."),
        ({"nevr": {}}, ".nevr", "Unknown parameter. Use always or never."),
        ({"never": ["read"]}, ".never", "Expected an object, but got an array instead."),
        ({"never": "read"}, ".never", "Expected an object, but got a string instead."),
        ({"never": {"names": []}}, ".never.names", "Unknown parameter. Use tool_names or read_only."),
        ({"never": {"tool_names": "read"}}, ".never.tool_names", "Expected an array of strings, but got a string instead."),
        ({"never": {"tool_names": ["a", 1]}}, ".never.tool_names[1]", "Expected a string, but got an integer instead."),
        ({"always": {"tool_names": [None]}}, ".always.tool_names[0]", "Expected a string, but got null instead."),
        ({"always": {"read_only": 1}}, ".always.read_only", "Expected a boolean, but got an integer instead."),
    ],
)  # fmt: skip
def test_malformed_approval_rule_names_its_place(value: Any, path: str, message: str) -> None:
    with pytest.raises(ToolRuleError) as caught:
        parse_approval_rule(value)
    assert (caught.value.path, caught.value.message) == (f"require_approval{path}", message)
    assert str(caught.value) == f"require_approval{path}: {message}"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("read", ""), (1, ""), (["a", {}], "[1]"), ({"tool_names": {}}, ".tool_names"), ({"read_only": "yes"}, ".read_only"),
        ({"x" * 1000: 1}, f".{'x' * 100}…"),
    ],
)  # fmt: skip
def test_malformed_allowed_tools_name_their_place(value: Any, path: str) -> None:
    with pytest.raises(ToolRuleError) as caught:
        parse_allowed_tools(value)
    assert caught.value.path == f"allowed_tools{path}"
