"""Tools under flat names: looked up, never split, and the same in every turn."""

import pytest

from antiphon.events.inputs import CustomTool, FunctionTool, NamespaceTool
from antiphon.harmony.tools import MAX_TOOL_NAME_CHARS, ToolError, ToolTable


def function(name: str) -> FunctionTool:
    return FunctionTool(name=name)


def test_plain_tools_keep_their_names() -> None:
    table = ToolTable.from_request([function("a"), CustomTool(name="b", description="B")])
    assert [(offer.model_name, offer.kind) for offer in table] == [("a", "function"), ("b", "custom")]
    assert len(table) == 2 and table.find_tool("c") is None


def test_namespaced_tools_are_looked_up_not_split() -> None:
    table = ToolTable.from_request([NamespaceTool(name="ns", tools=(function("x"),)), function("other__y")])
    found, plain = table.find_tool("ns__x"), table.find_tool("other__y")
    assert found is not None and (found.namespace, found.name) == ("ns", "x")
    assert plain is not None and (plain.namespace, plain.name) == (None, "other__y")
    assert table.find_tool("x") is None and table.find_tool("ns.x") is None


def test_a_collision_gets_a_hash_and_the_plain_tool_its_name() -> None:
    tools = [NamespaceTool(name="ns", tools=(function("x"),)), function("ns__x")]
    table = ToolTable.from_request(tools)
    plain = table.find_tool("ns__x")
    assert plain is not None and plain.namespace is None
    flat = table.model_name_of("x", "ns")
    assert flat != "ns__x" and flat.startswith("ns__x_") and table.find_tool(flat) is not None
    assert [offer.model_name for offer in table] == [flat, "ns__x"]
    assert ToolTable.from_request(tools[::-1]).model_name_of("x", "ns") == flat


def test_two_namespaces_that_spell_alike() -> None:
    table = ToolTable.from_request(
        [NamespaceTool(name="a", tools=(function("b__c"),)), NamespaceTool(name="a__b", tools=(function("c"),))]
    )
    assert len({offer.model_name for offer in table}) == len(table) == 2


def test_long_and_odd_names_get_a_hash() -> None:
    long = "x" * 100
    table = ToolTable.from_request(
        [function(long), NamespaceTool(name="my server.1", tools=(function("f"), function(long)))]
    )
    flats = [offer.model_name for offer in table]
    assert all(len(flat) <= MAX_TOOL_NAME_CHARS and flat.replace("_", "").replace("-", "").isalnum() for flat in flats)
    assert len(set(flats)) == 3 and flats[1].startswith("my_server_1__f_")


def test_earlier_calls_of_tools_that_are_gone_have_a_name() -> None:
    table = ToolTable.from_request([function("ns__x")])
    assert table.model_name_of("gone") == "gone"
    assert table.model_name_of("y", "ns") == "ns__y"
    assert table.model_name_of("x", "ns") not in {"ns__x", "x"}
    assert table.model_name_of("<|im_end|>\n").startswith("__im_end___")


@pytest.mark.parametrize(
    ("tools", "index"),
    [
        ([function("a"), function("a")], 1),
        ([function("a"), CustomTool(name="a")], 1),
        ([function("b"), NamespaceTool(name="n", tools=(function("a"), function("a")))], 1),
        (
            [
                NamespaceTool(name="n", tools=(function("a"),)),
                function("c"),
                NamespaceTool(name="n", tools=(function("a"),)),
            ],
            2,
        ),
        ([function("a b")], 0),
        ([function("")], 0),
        ([function("a\n")], 0),
        ([function("x" * 129)], 0),
    ],
)
def test_what_cannot_be_told_apart_or_called_is_refused(tools: list[FunctionTool], index: int) -> None:
    with pytest.raises(ToolError) as refused:
        ToolTable.from_request(tools)
    assert refused.value.index == index and refused.value.message
