"""Tools that are found by a search of the client, or added in the conversation: when they can be called, where shown."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.events.inputs import InputFunctionCall, InputFunctionOutput, InputMessage
from antiphon.harmony.prompt.builtin_items import show_builtin_calls
from tests.app.requests.request_builders import read_responses_spec
from tests.harmony.parser_helpers import NOW, load_token_format

SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client"}
HI = {"role": "user", "content": "hi"}
CALL = {"type": "tool_search_call", "call_id": "t1", "execution": "client", "arguments": {"query": "weather"}}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "parameters": {"type": "object"},
        **fields,
    }


def found(*tools: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_search_output",
        "call_id": "t1",
        "execution": "client",
        "status": "completed",
        "tools": list(tools),
    }


DEFERRED = [SEARCH, function("now"), function("weather", defer_loading=True),
            {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [function("list", defer_loading=True), function("get")]},
            {"type": "namespace", "name": "erp", "description": "ERP.", "tools": [function("buy")], "defer_loading": True}]  # fmt: skip


def names(spec: Any, *, loaded: bool | None = None) -> list[str]:
    return [tool.model_name for tool in spec.prompt_input.tools if loaded in (None, tool.is_loaded)]


def test_deferred_tools_are_echoed_and_not_offered() -> None:
    spec = read_responses_spec(tools=DEFERRED)
    assert names(spec) == ["tool_search", "now", "crm__get"]
    assert [tool["type"] for tool in spec.base_response.tools] == [
        "tool_search",
        "function",
        "function",
        "namespace",
        "namespace",
    ]


def test_without_a_search_all_tools_are_offered() -> None:
    assert names(read_responses_spec(tools=DEFERRED[1:])) == ["now", "weather", "crm__list", "crm__get", "erp__buy"]


@pytest.mark.parametrize("search", [{"type": "tool_search"}, {"type": "tool_search", "execution": "server"}])
def test_tools_that_a_search_of_the_server_finds_are_kept_apart(search: dict[str, Any]) -> None:
    spec = read_responses_spec(tools=[search, *DEFERRED[1:]])
    assert names(spec) == ["now", "crm__get"] and spec.hosted_tools is not None
    deferred = spec.hosted_tools.client_tools.deferred
    assert [(each.path, each.tool.name) for each in deferred] == [
        ("tools[2]", "weather"),
        ("tools[3]", "crm"),
        ("tools[4]", "erp"),
    ]
    assert [tool["name"] for tool in deferred[1].definition["tools"]] == ["list"]


def test_found_tools_can_be_called_and_are_shown_in_the_output() -> None:
    items = [HI, CALL, found(function("weather"), {**DEFERRED[4], "defer_loading": None}, function("extra"))]
    spec = read_responses_spec(tools=DEFERRED, input=items)
    assert names(spec, loaded=False) == ["tool_search", "now", "crm__get"]
    assert names(spec, loaded=True) == ["weather", "erp__buy", "extra"]
    _, call, output = show_builtin_calls(spec.prompt_input.items, spec.prompt_input.tools)
    assert call == InputFunctionCall(call_id="t1", name="tool_search", arguments='{"query": "weather"}')
    assert isinstance(output, InputFunctionOutput) and isinstance(output.output, str)
    assert [line.split(",")[0] for line in output.output.splitlines()[1:]] == [
        '{"name": "weather"',
        '{"name": "erp__buy"',
        '{"name": "extra"',
    ]


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
def test_prompt_before_the_found_tools_stays_the_same(dialect: str) -> None:
    model_format = load_token_format(dialect)
    before = read_responses_spec(tools=DEFERRED, input=[HI, CALL, found()]).prompt_input
    after = read_responses_spec(tools=DEFERRED, input=[HI, CALL, found(function("weather"))]).prompt_input
    texts = [model_format.render_prompt(each, now=NOW).text for each in (before, after)]
    shared = texts[0].index("No tools were found.")
    assert texts[0][:shared] == texts[1][:shared]
    assert "Does weather." not in texts[1][:shared] and "Does weather." in texts[1][shared:]


def test_found_tool_of_a_listed_name_changes_nothing() -> None:
    spec = read_responses_spec(tools=DEFERRED, input=[HI, CALL, found(function("now", description="Other."))])
    (now,) = [tool for tool in spec.prompt_input.tools if tool.name == "now"]
    assert now.description == "Does now." and not now.is_loaded


def test_tool_that_is_found_twice_is_the_later_one() -> None:
    again = [{**CALL, "call_id": "t2"}, {**found(function("weather", description="Newer.")), "call_id": "t2"}]
    spec = read_responses_spec(tools=DEFERRED, input=[HI, CALL, found(function("weather")), *again])
    assert [tool.description for tool in spec.prompt_input.tools if tool.name == "weather"] == ["Newer."]


def test_deferred_tool_that_is_sent_twice_is_offered_once_it_is_found() -> None:
    tools = [SEARCH, *[function("weather", defer_loading=True)] * 2]
    assert names(read_responses_spec(tools=tools)) == ["tool_search"]
    spec = read_responses_spec(tools=tools, input=[HI, CALL, found(*[function("weather")] * 2)])
    assert names(spec, loaded=True) == ["weather"] and len(spec.base_response.tools) == 3
    with pytest.raises(ApiError) as caught:
        read_responses_spec(tools=tools[1:])  # without a search, both are offered
    assert (caught.value.code, caught.value.param) == ("invalid_value", "tools[1].name")


def test_ten_thousand_found_tools_are_read() -> None:
    tools = [function(f"tool_{number}") for number in range(10_000)]
    spec = read_responses_spec(tools=[SEARCH], input=[HI, CALL, found(*tools)])
    assert len(names(spec)) == 10_001


def test_tools_added_later_are_shown_where_they_were_added() -> None:
    added = {"type": "additional_tools", "tools": [function("weather")]}
    early = read_responses_spec(tools=[function("now")], input=[added, HI])
    assert names(early, loaded=False) == ["now", "weather"]
    assert list(show_builtin_calls(early.prompt_input.items, early.prompt_input.tools)) == [
        InputMessage(role="user", content="hi")
    ]
    late = read_responses_spec(tools=[function("now")], input=[HI, added])
    assert (names(late, loaded=False), names(late, loaded=True)) == (["now"], ["weather"])
    message = show_builtin_calls(late.prompt_input.items, late.prompt_input.tools)[1]
    assert isinstance(message, InputMessage) and '"name": "weather"' in str(message.content)


def test_call_of_a_found_tool_is_part_of_later_turns() -> None:
    call = {"type": "function_call", "call_id": "f1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "f1", "output": "wet"}
    spec = read_responses_spec(tools=DEFERRED, input=[HI, CALL, found(function("weather")), call, output])
    assert names(spec, loaded=True) == ["weather"]


BAD: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"tools": [SEARCH, SEARCH]}, ("invalid_value", "tools[1].type")),
    ({"tools": [SEARCH, DEFERRED[1], {"type": "tool_search"}]}, ("invalid_value", "tools[2].type")),
    ({"tools": [{"type": "tool_search"}] * 2}, ("invalid_value", "tools[1].type")),
    ({"tools": [SEARCH], "input": [HI, CALL]}, (None, "input")),
    ({"tools": [SEARCH], "input": [HI, found()]}, (None, "input")),
    (
        {"tools": [SEARCH], "input": [HI, CALL, found({"type": "function"})]},
        ("missing_required_parameter", "input[2].tools[0].name"),
    ),
    (
        {"tools": [SEARCH], "input": [HI, CALL, found({"type": "function", "name": "a b"})]},
        ("invalid_value", "input[2].tools[0].name"),
    ),
    ({"tools": [{**SEARCH, "execution": "moon"}]}, ("invalid_value", "tools[0].execution")),
    (
        {"tools": [SEARCH, DEFERRED[2]], "tool_choice": {"type": "function", "name": "weather"}},
        ("invalid_value", "tool_choice"),
    ),
]


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_bad_input_is_named(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(**body)
    assert (caught.value.code, caught.value.param) == expected


def test_search_of_another_server_stays_an_item_that_is_not_shown() -> None:
    foreign = [{"type": "tool_search_call", "id": "tsc_1", "call_id": None, "execution": "server", "arguments": {"paths": ["a"]}},
               {"type": "tool_search_output", "id": "tso_1", "call_id": None, "execution": "server", "tools": [function("x")]}]  # fmt: skip
    spec = read_responses_spec(input=[HI, *foreign])
    assert names(spec) == [] and len(spec.input_items) == 3
