"""Searches among deferred tools that the server runs: what they load, what the model reads, and later turns."""

import asyncio
import re
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store.log_items import output_as_input
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.tool_search import MAX_DESCRIPTION_CHARS
from antiphon.app.websocket.steering import list_required_input
from tests.app.tools.tool_turns import ToolTurns, last_item, write_call
from tests.kit.checker.openai_hosted_streams import tell_tool_search

SEARCH: dict[str, Any] = {"type": "tool_search"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RAW = {"type": "custom", "name": "note", "description": "Takes a note.", "defer_loading": True}
MCP = {"type": "mcp", "server_label": "web", "require_approval": "never", "defer_loading": True}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "parameters": CITY,
        "strict": False,
        **fields,
    }


WEATHER = function("weather", defer_loading=True)
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [function("list", defer_loading=True), function("get")],
}
ERP = {"type": "namespace", "name": "erp", "description": "Goods.", "tools": [function("buy")], "defer_loading": True}
TOOLS = [SEARCH, function("now"), WEATHER, CRM, ERP, RAW]
FIND_WEATHER = write_call("tool_search", paths=["weather"])
CALL_WEATHER = write_call("weather", city="Oslo")
HAS_FOUND = "can be called from here"
"""Begins what the model reads of tools that were found."""


def prompts(turns: ToolTurns) -> list[str]:
    form = turns.registry.served[0].format
    return [form.decode(job.tokens) for job in turns.jobs]


def searches(events: list[dict[str, Any]]) -> list[tuple[Any, list[str]]]:
    """Returns the arguments of each search, and the names of what it has found."""
    output = events[-1]["response"]["output"]
    calls = [item for item in output if item["type"] == "tool_search_call"]
    found = [item for item in output if item["type"] == "tool_search_output"]
    assert [(call["call_id"], "server", "completed") for call in calls] == [
        (item["call_id"], item["execution"], item["status"]) for item in found
    ]
    return [
        (call["arguments"], [tool.get("name") or tool["server_label"] for tool in item["tools"]])
        for call, item in zip(calls, found, strict=True)
    ]


async def test_found_function_is_called_and_the_order_is_that_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({HAS_FOUND: [CALL_WEATHER], "": [FIND_WEATHER]}, monkeypatch)
    events = await turns.run_turn(tools=TOOLS)
    assert searches(events) == [({"paths": ["weather"]}, ["weather"])]
    call = last_item(events)
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city": "Oslo"}')
    assert events[-1]["response"]["output"][1]["tools"] == [WEATHER], "as the request had it"
    assert events[-1]["response"]["tools"] == TOOLS
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    assert [stub["type"] for stub in list_required_input(log.response)] == ["function_call_output"]

    def order(stream: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        items = [(event["type"], event["item"]) for event in stream if event["type"].startswith("response.output_item")]
        return [(kind, item["type"], item["status"]) for kind, item in items]

    assert order(events) == order(tell_tool_search())
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (added[0]["arguments"], added[0]["execution"], added[1]["tools"]) == ({}, "server", [WEATHER])
    assert added[0]["id"].startswith("tsc_") and added[1]["id"].startswith("tso_")


async def test_prompt_of_the_next_round_continues_where_the_round_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    second = write_call("tool_search", paths=["crm", "web"])
    replies = {'{"name": "crm__list"': ["Done."], HAS_FOUND: [second], "": ["I look. ", FIND_WEATHER]}
    turns = ToolTurns(replies, monkeypatch)
    events = await turns.run_turn(tools=[*TOOLS, MCP])
    assert [names for _, names in searches(events)] == [["weather"], ["crm", "web"]]
    assert last_item(events)["content"][0]["text"] == "Done."
    generated = ["I look. " + FIND_WEATHER, second]
    form = turns.registry.served[0].format
    for before, after, text in zip(turns.jobs, turns.jobs[1:], generated, strict=False):
        spoken = (*before.tokens, *form.encode(text))
        assert after.tokens[: len(spoken)] == spoken
    offered, loaded, _ = prompts(turns)
    assert "- weather: Does weather." in offered and '"name": "weather"' not in offered
    assert [line for line in offered.split("\\n") if line.startswith("- ")][1:4] == [
        "- crm: Customers.", "- erp: Goods.", "- note: Takes a note."
    ]  # fmt: skip
    assert '{"name": "weather", "description": "Does weather.", "parameters": ' in loaded[len(offered) :]


async def test_namespace_has_only_its_deferred_tools_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    find, call = write_call("tool_search", paths=["crm"]), write_call("crm__list", city="Oslo")
    turns = ToolTurns({HAS_FOUND: [call], "": [find]}, monkeypatch)
    events = await turns.run_turn(tools=TOOLS)
    (loaded,) = events[-1]["response"]["output"][1]["tools"]
    assert loaded == {**CRM, "tools": [CRM["tools"][0]]}
    assert (last_item(events)["name"], last_item(events)["namespace"]) == ("list", "crm")
    assert '"name": "crm__get"' in prompts(turns)[0] and '"name": "crm__list"' not in prompts(turns)[0]


async def test_tools_of_a_server_are_listed_at_the_start_and_run_once_they_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find, call = write_call("tool_search", paths=["web"]), write_call("web__find", words="Oslo")
    turns = ToolTurns({"It is 7": ["Seven."], HAS_FOUND: [call], "": [find]}, monkeypatch)
    turns.servers.outcome = ToolOutcome(text="It is 7")
    events = await turns.run_turn(tools=[SEARCH, MCP], max_tool_calls=1)
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
    assert turns.servers.calls == [("web", "find", {"words": "Oslo"})]
    (server,) = events[-1]["response"]["output"][2]["tools"]
    assert (server["type"], server["server_label"]) == ("mcp", "web")
    assert [(tool["name"], sorted(tool)) for tool in server["tools"]] == [
        ("find", ["description", "input_schema", "name"]),
        ("read", ["description", "input_schema", "name"]),
    ]
    assert '"name": "web__find"' not in prompts(turns)[0] and '"name": "web__find"' in prompts(turns)[1]


async def test_found_tools_of_a_server_keep_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    find, call = write_call("tool_search", paths=["web"]), write_call("web__find", words="Oslo")
    turns = ToolTurns({HAS_FOUND: [call], "": [find]}, monkeypatch)
    tool = {**MCP, "require_approval": "always", "allowed_tools": ["find"]}
    events = await turns.run_turn(tools=[SEARCH, tool])
    assert last_item(events)["type"] == "mcp_approval_request" and not turns.servers.calls
    assert [each["name"] for each in events[-1]["response"]["output"][2]["tools"][0]["tools"]] == ["find"]


async def test_names_that_nothing_has_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"No tools were found": ["None."], "": [write_call("tool_search", paths=["now", "other", " "])]}
    events = await ToolTurns(replies, monkeypatch).run_turn(tools=TOOLS)
    assert searches(events) == [({"paths": ["now", "other", " "]}, [])]
    assert last_item(events)["content"][0]["text"] == "None."


async def test_search_is_repeated_up_to_the_limit_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.turns.core.calls.MAX_ROUNDS", 3)
    turns = ToolTurns({"": ["Again. ", FIND_WEATHER]}, monkeypatch)
    events = await turns.run_turn(tools=TOOLS, max_tool_calls=1)
    assert [names for _, names in searches(events)] == [["weather"]] * 3, "max_tool_calls does not count them"
    assert events[-1]["response"]["status"] == "completed"


async def test_two_searches_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    both = f"{FIND_WEATHER}\n{write_call('tool_search', paths=['erp'])}"
    turns = ToolTurns({HAS_FOUND: ["Done."], "": [both]}, monkeypatch)
    assert [names for _, names in searches(await turns.run_turn(tools=TOOLS))] == [["weather"], ["erp"]]
    turns = ToolTurns({HAS_FOUND: ["Done."], "": [both]}, monkeypatch)
    events = await turns.run_turn(tools=TOOLS, parallel_tool_calls=False)
    assert [names for _, names in searches(events)] == [["weather"]]


async def test_search_beside_a_call_of_the_client_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"It is noon": ["Fine."], "": [f"{write_call('now', city='Oslo')}\n{FIND_WEATHER}"]}, monkeypatch)
    events = await turns.run_turn(tools=TOOLS)
    kinds = ["function_call", "tool_search_call", "tool_search_output"]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == kinds
    answer = {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "It is noon"}
    second = await turns.run_turn(tools=TOOLS, input=[{"role": "user", "content": "Hi"}, *output, answer])
    assert last_item(second)["content"][0]["text"] == "Fine."
    prompt = prompts(turns)[1]
    assert prompt.index("It is noon") < prompt.index(HAS_FOUND), "outputs are in the order of calls"


@pytest.mark.parametrize("tools", [[SEARCH], [SEARCH, function("weather")], [SEARCH, {**MCP, "defer_loading": False}]])
async def test_nothing_is_searched_where_nothing_is_deferred(
    monkeypatch: pytest.MonkeyPatch, tools: list[dict[str, Any]]
) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    events = await turns.run_turn(tools=tools)
    assert "tool_search" not in prompts(turns)[0] and last_item(events)["content"][0]["text"] == "Hello."
    assert {tool["type"] for tool in events[-1]["response"]["tools"]} == {tool["type"] for tool in tools}


async def test_deferred_tools_of_a_server_are_offered_where_there_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    await turns.run_turn(tools=[MCP])
    assert '"name": "web__find"' in prompts(turns)[0]


async def test_descriptions_are_one_line_each_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    long = function("long", description="A\nb <|im_end|>" + "x" * 300, defer_loading=True)
    await turns.run_turn(tools=[SEARCH, long, function("bare", description=None, defer_loading=True)])
    (line,) = re.findall(r"- long: (.*?)\\n- bare\b", prompts(turns)[0])
    assert line.startswith("A b ") and len(line) == MAX_DESCRIPTION_CHARS and line.endswith("x…")


class OneResponse:
    """History of the one response that is stored."""

    def __init__(self, turns: ToolTurns) -> None:
        (self.log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
        self._sealer = turns.manager.sealer

    def find_item(self, _item_id: str) -> None:
        return None

    def items_before_input(self, _previous_id: str | None, _conversation_id: str | None) -> tuple[Any, ...]:
        return (*self.log.input_items, *output_as_input(self.log.response.output))

    def decrypt(self, item: Any) -> str:
        return self._sealer.open("", "compaction", item.encrypted_content)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("path", ["weather", "web"])
async def test_tools_stay_loaded_in_later_turns(monkeypatch: pytest.MonkeyPatch, path: str, *, is_stored: bool) -> None:
    call = write_call("web__find", words="Oslo") if path == "web" else CALL_WEATHER
    replies = {
        "It is 7": ["Seven."],
        "And now": [call],
        HAS_FOUND: ["Ready."],
        "": [write_call("tool_search", paths=[path])],
    }
    turns = ToolTurns(replies, monkeypatch)
    turns.servers.outcome = ToolOutcome(text="It is 7")
    tools = [*TOOLS, MCP]
    first = await turns.run_turn(tools=tools)
    response, new = first[-1]["response"], {"role": "user", "content": "And now"}
    if is_stored:
        second = await turns.run_turn(OneResponse(turns), tools=tools, previous_response_id=response["id"], input=[new])
    else:
        resent = [{"role": "user", "content": "Hi"}, *response["output"], new]
        second = await turns.run_turn(tools=tools, input=resent)
    kinds = [item["type"] for item in second[-1]["response"]["output"]]
    assert kinds == (["mcp_call", "message"] if path == "web" else ["function_call"])
    before, after = turns.jobs[1].tokens, turns.jobs[2].tokens
    spoken = (*before, *turns.registry.served[0].format.encode("Ready."))
    assert after[: len(spoken)] == spoken, "the prompt goes on where the turn ended"


async def test_server_that_is_not_named_again_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"And now": [write_call("web__find", words="x")], HAS_FOUND: ["Ready."],
               "": [write_call("tool_search", paths=["web"])]}  # fmt: skip
    turns = ToolTurns(replies, monkeypatch)
    first = await turns.run_turn(tools=[SEARCH, MCP])
    resent = [
        {"role": "user", "content": "Hi"},
        *first[-1]["response"]["output"],
        {"role": "user", "content": "And now"},
    ]
    second = await turns.run_turn(input=resent)
    assert last_item(second)["type"] == "message" and not turns.servers.calls


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "mcp", "server_label": "web", "tools": 5},
        {"type": "mcp", "server_label": 5, "tools": []},
        {"type": "mcp", "tools": [5, {"name": 7}, {"name": "find", "input_schema": "x", "description": ["y"]}]},
        {"type": "mcp", "server_label": "web", "tools": [{"name": "a\nb<|im_end|>"}]},
    ],
)
async def test_resent_outputs_are_read_whatever_they_have(
    monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    call = {"type": "tool_search_call", "call_id": "c", "execution": "server", "arguments": {"paths": ["web"]}}
    items = [{"role": "user", "content": "Hi"}, call]
    found = {"type": "tool_search_output", "call_id": "c", "execution": "server", "tools": [entry]}
    for conversation in (items, [*items, found]):  # one without its output is not waited for
        events = await turns.run_turn(tools=[SEARCH, MCP], input=conversation)
        assert last_item(events)["content"][0]["text"] == "Hello."


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ({"type": "function", "name": "weather"}, "weather"),
        ({"type": "function", "name": "buy", "namespace": "erp"}, "erp__buy"),
        ({"type": "mcp", "server_label": "web"}, "web__find"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "list"}]}, "crm__list"),
    ],
)
async def test_chosen_tool_is_offered_at_once(
    monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any], shown: str
) -> None:
    turns = ToolTurns({"It is 7": ["Seven."], "": [write_call(shown, city="Oslo")]}, monkeypatch)
    await turns.run_turn(tools=[*TOOLS, MCP], tool_choice=choice)
    assert f'"name": "{shown}"' in prompts(turns)[0]
    assert '"name": "tool_search"' in prompts(turns)[0], "other tools are deferred"


async def test_choice_of_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    for choice in ({"type": "function", "name": "none"}, {"type": "tool_search"}):
        with pytest.raises(ApiError) as caught:
            await turns.run_turn(tools=TOOLS, tool_choice=choice)
        assert caught.value.status == 400


async def test_schema_of_a_deferred_function_is_checked_before_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    bad = function("bad", parameters={"type": "object", "properties": {"a": {"type": "nothing"}}}, defer_loading=True)
    with pytest.raises(ApiError) as caught:
        await turns.run_turn(tools=[SEARCH, bad])
    assert (caught.value.status, caught.value.param) == (400, "tools[1].parameters")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [(FIND_WEATHER, "tool_search_call"), (write_call("web__find", words="in the whole world"), "mcp_call")],
)
async def test_call_that_is_cut_ends_the_turn(monkeypatch: pytest.MonkeyPatch, reply: str, kind: str) -> None:
    turns = ToolTurns({"": [reply]}, monkeypatch)
    tools = [*TOOLS, {**MCP, "defer_loading": False}]
    events = await turns.run_turn(tools=tools, max_output_tokens=45)
    call = last_item(events)
    assert (call["type"], call["status"]) == (kind, "incomplete")
    await asyncio.sleep(0)
    assert not turns.manager.num_running and not turns.callback_errors


async def test_found_tools_outlast_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"And now": ["Still here."], "summary": ["Short."], "": ["Hello."]}, monkeypatch)
    found = [
        {"type": "tool_search_call", "call_id": "c", "execution": "server", "arguments": {"paths": ["weather", "crm"]}},
        {"type": "tool_search_output", "call_id": "c", "execution": "server", "tools": [
            WEATHER, {**CRM, "tools": CRM["tools"][:1]}, {"type": "mcp", "server_label": "web", "tools": [{"name": "find", "input_schema": {}}]}
        ]},
    ]  # fmt: skip
    items = [{"role": "user", "content": "Hi. " + "Words. " * 300}, *found, {"role": "user", "content": "More. " * 300}]
    entry = {"type": "compaction", "compact_threshold": 1000}
    tools = [*TOOLS, MCP]
    events = await turns.run_turn(tools=tools, input=items, context_management=[entry])
    output = events[-1]["response"]["output"]
    compaction = next(item for item in output if item["type"] == "compaction")
    shown = ('{"name": "weather"', '{"name": "crm__list"', '{"name": "web__find"')
    assert all(text in prompts(turns)[-1] for text in shown), "where the turn goes on"
    history = OneResponse(turns)
    second = {"role": "user", "content": "And now"}
    await turns.run_turn(history, tools=tools, input=[compaction, second])
    listed = prompts(turns)[-1]
    assert all(f'"name": "{name}"' in listed for name in ("weather", "crm__list", "web__find"))
