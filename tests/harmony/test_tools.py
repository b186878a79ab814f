"""The tool table: flat names for namespaced tools, which are looked up, never split, and stable between turns."""

import pytest

from antiphon.events.tools import CustomTool, FunctionTool, NamespaceTool
from antiphon.harmony.tools import MAX_TOOL_NAME_CHARS, ToolError, ToolTable


def function_tool(name: str) -> FunctionTool:
    return FunctionTool(name=name)


def test_tools_without_namespace_keep_their_names() -> None:
    table = ToolTable.from_request([function_tool("a"), CustomTool(name="b", description="B")])
    assert [(offer.model_name, offer.kind) for offer in table] == [("a", "function"), ("b", "custom")]
    assert len(table) == 2 and table.find_tool("c") is None


def test_namespaced_tools_are_looked_up_not_split() -> None:
    table = ToolTable.from_request([NamespaceTool(name="ns", tools=(function_tool("x"),)), function_tool("other__y")])
    namespaced, unscoped = table.find_tool("ns__x"), table.find_tool("other__y")
    assert namespaced is not None and (namespaced.namespace, namespaced.name) == ("ns", "x")
    assert unscoped is not None and (unscoped.namespace, unscoped.name) == (None, "other__y")
    assert table.find_tool("y") is None and table.find_tool("other.y") is None


def test_namespaced_tool_is_found_by_its_own_name_where_that_is_unambiguous() -> None:
    names = ("x", "y", "ns__z")
    first = NamespaceTool(name="ns", tools=tuple(map(function_tool, names)))
    table = ToolTable.from_request([first, NamespaceTool(name="other", tools=(function_tool("y"),))])
    for name in ("x", "ns.x"):
        found = table.find_tool(name)
        assert found is not None and (found.namespace, found.name, found.model_name) == ("ns", "x", "ns__x")
    assert table.find_tool("y") is None, "two tools have the name"
    assert [tool.namespace for name in ("ns.y", "other.y") if (tool := table.find_tool(name))] == ["ns", "other"]
    plain = ToolTable.from_request([first, function_tool("x")]).find_tool("x")
    assert plain is not None and plain.namespace is None, "a tool of exactly this name goes first"
    assert len(table) == 4 and [tool.model_name for tool in table].count("ns__x") == 1


def test_name_collision_gives_the_namespaced_tool_a_hash() -> None:
    tools = [NamespaceTool(name="ns", tools=(function_tool("x"),)), function_tool("ns__x")]
    table = ToolTable.from_request(tools)
    unscoped = table.find_tool("ns__x")
    assert unscoped is not None and unscoped.namespace is None
    flat_name = table.model_name_of("x", "ns")
    assert flat_name != "ns__x" and flat_name.startswith("ns__x_") and table.find_tool(flat_name) is not None
    assert [offer.model_name for offer in table] == [flat_name, "ns__x"]
    assert ToolTable.from_request(tools[::-1]).model_name_of("x", "ns") == flat_name


def test_namespaces_with_equal_flat_names_stay_distinct() -> None:
    table = ToolTable.from_request(
        [
            NamespaceTool(name="a", tools=(function_tool("b__c"),)),
            NamespaceTool(name="a__b", tools=(function_tool("c"),)),
        ]
    )
    assert len({offer.model_name for offer in table}) == len(table) == 2


def test_long_and_invalid_names_get_a_hash() -> None:
    long_name = "x" * 100
    table = ToolTable.from_request(
        [
            function_tool(long_name),
            NamespaceTool(name="my server.1", tools=(function_tool("f"), function_tool(long_name))),
        ]
    )
    flat_names = [offer.model_name for offer in table]
    assert all(
        len(flat_name) <= MAX_TOOL_NAME_CHARS and flat_name.replace("_", "").replace("-", "").isalnum()
        for flat_name in flat_names
    )
    assert len(set(flat_names)) == 3 and flat_names[1].startswith("my_server_1__f_")


def test_shortened_tool_is_found_by_its_whole_name() -> None:
    long_name = "x" * 128
    plain = ToolTable.from_request([function_tool(long_name)])
    inside = ToolTable.from_request([NamespaceTool(name="ns", tools=(function_tool(long_name),))])
    both = ToolTable.from_request(
        [function_tool(f"ns__{'y' * 64}"), NamespaceTool(name="ns", tools=(function_tool("y" * 64),))]
    )
    [tool] = plain
    assert plain.find_tool(long_name) == plain.find_tool(tool.model_name) == tool
    assert [inside.find_tool(name) for name in (long_name, f"ns.{long_name}", f"ns__{long_name}")] == list(inside) * 3
    assert both.find_tool(f"ns__{'y' * 64}") is None and both.find_tool("y" * 64) is not None, "two tools have the name"


def test_calls_of_removed_tools_have_a_model_name() -> None:
    table = ToolTable.from_request([function_tool("ns__x")])
    assert table.model_name_of("gone") == "gone"
    assert table.model_name_of("y", "ns") == "ns__y"
    assert table.model_name_of("x", "ns") not in {"ns__x", "x"}
    assert table.model_name_of("<|im_end|>\n").startswith("__im_end___")


@pytest.mark.parametrize(
    ("tools", "index"),
    [
        ([function_tool("a"), function_tool("a")], 1),
        ([function_tool("a"), CustomTool(name="a")], 1),
        ([function_tool("b"), NamespaceTool(name="n", tools=(function_tool("a"), function_tool("a")))], 1),
        (
            [
                NamespaceTool(name="n", tools=(function_tool("a"),)),
                function_tool("c"),
                NamespaceTool(name="n", tools=(function_tool("a"),)),
            ],
            2,
        ),
        ([function_tool("a b")], 0),
        ([function_tool("")], 0),
        ([function_tool("a\n")], 0),
        ([function_tool("x" * 129)], 0),
    ],
)
def test_duplicate_and_invalid_tool_names_are_rejected(tools: list[FunctionTool], index: int) -> None:
    with pytest.raises(ToolError) as error_info:
        ToolTable.from_request(tools)
    assert error_info.value.index == index and error_info.value.message
