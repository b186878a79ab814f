"""Web searches, code and searches in files, run inside one response: events, citations, refusals and later turns."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.tools.hosted_options import read_hosted_options
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.events.hosted import McpHttpError
from tests.app.tools.tool_turns import ToolTurns, last_item, list_types, write_call

SEARCH = {"type": "web_search"}


async def test_web_search_tells_its_sources_and_links_become_citations(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It is [7 degrees](https://weather.example/oslo) and [not](https://elsewhere.example/)."
    replies = {"weather.example": [text], "": [write_call("web_search", query="Oslo")]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find",))
    events = await turns.run_turn(tools=[SEARCH])
    assert turns.servers.calls == [("web", "find", {"words": "Oslo"})], "the only string that the schema requires"
    assert list_types(events, "web_search_call") == [
        "output_item.added", "web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed",
        "output_item.done",
    ]  # fmt: skip
    search = events[-1]["response"]["output"][0]
    urls = [source["url"] for source in search["action"]["sources"]]
    assert (search["status"], urls) == ("completed", ["https://weather.example/oslo", "https://other.example/a"])
    (part,) = last_item(events)["content"]
    (citation,) = part["annotations"]
    link = part["text"][citation["start_index"] : citation["end_index"]]
    assert link == "[7 degrees](https://weather.example/oslo)" and citation["title"] == "Oslo weather"


async def test_failed_search_is_shown_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"is broken": ["It failed."], "": [write_call("web_search", query="Oslo")]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find?query=q",))
    turns.servers.outcome = ToolOutcome(text="The search is broken.", error=McpHttpError(code=502, message="x"))
    events = await turns.run_turn(tools=[SEARCH])
    assert turns.servers.calls == [("web", "find", {"q": "Oslo"})]
    assert "web_search_call.completed" not in list_types(events, "web_search_call")
    assert events[-1]["response"]["output"][0]["status"] == "failed"
    assert last_item(events)["content"][0]["text"] == "It failed."


async def test_search_server_that_is_down_does_not_refuse_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch, hosted_tools=("web_search=web/find",))
    turns.servers.is_down = True
    assert last_item(await turns.run_turn(tools=[SEARCH]))["content"][0]["text"] == "Hello."


async def test_page_is_opened_by_the_tool_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"Page text": ["Done."], "": [write_call("open_page", url="https://x.example/")]}
    hosted = ("web_search=web/find", "open_page=web/read")
    turns = ToolTurns(replies, monkeypatch, hosted_tools=hosted)
    turns.servers.outcome = ToolOutcome(text="Page text")
    events = await turns.run_turn(tools=[SEARCH])
    assert turns.servers.calls == [("web", "read", {"url": "https://x.example/"})], "two strings are required"
    assert events[-1]["response"]["output"][0]["action"] == {"type": "open_page", "url": "https://x.example/"}


@pytest.mark.parametrize(("offline", "is_offered"), [((), False), (("web_search",), True)])
async def test_search_that_may_not_read_the_web(
    monkeypatch: pytest.MonkeyPatch, offline: tuple[str, ...], *, is_offered: bool
) -> None:
    replies = {"weather.example": ["Done."], "web_search": [write_call("web_search", query="Oslo")], "": ["No tool."]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find",), hosted_offline=offline)
    events = await turns.run_turn(tools=[{**SEARCH, "external_web_access": False}])
    assert bool(turns.servers.calls) is is_offered
    assert last_item(events)["content"][0]["text"] == ("Done." if is_offered else "No tool.")


async def test_code_runs_in_the_sandbox_and_keeps_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_monty")
    first, second = (
        write_call("code_interpreter", code="x = 6\nprint(x * 7)"),
        write_call("code_interpreter", code="x + 1"),
    )
    replies = {'"x + 1"': ["Seven."], "42": [second], "": [first]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=monty",))
    events = await turns.run_turn(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}])
    await turns.manager.drain(0)
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "code_interpreter_call"]
    assert [(call["code"], call["outputs"][0]["logs"]) for call in calls] == [
        ("x = 6\nprint(x * 7)", "42\n"),
        ("x + 1", "7\n"),
    ]
    (container_id,) = {call["container_id"] for call in calls}
    assert container_id.startswith("cntr_") and int(container_id[5:], 16) >= 0
    types = list_types(events, "code_interpreter_call")
    assert types.count("code_interpreter_call_code.delta") > 3, "token by token"
    assert types[-4:] == [
        "code_interpreter_call_code.done", "code_interpreter_call.interpreting", "code_interpreter_call.completed",
        "output_item.done",
    ]  # fmt: skip


async def test_code_runs_by_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"is 42": ["Done."], "": [write_call("code_interpreter", code="6 * 7")]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=web/find",))
    turns.servers.outcome = ToolOutcome(text="It is 42")
    events = await turns.run_turn(tools=[{"type": "code_interpreter", "container": "cntr_mine"}])
    assert turns.servers.calls == [("web", "find", {"words": "6 * 7"})]
    call = events[-1]["response"]["output"][0]
    assert (call["container_id"], call["outputs"]) == ("cntr_mine", [{"type": "logs", "logs": "It is 42"}])


async def test_files_of_a_folder_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cat.md").write_text("The cat is called Mimi.", encoding="utf-8")
    replies = {"called Mimi": ["Mimi."], "": [write_call("file_search", query="name of the cat")]}
    turns = ToolTurns(replies, monkeypatch, vector_stores=(f"vs_docs={tmp_path}",))
    events = await turns.run_turn(tools=[{"type": "file_search", "vector_store_ids": ["vs_docs"]}])
    await turns.manager.drain(0)
    call = events[-1]["response"]["output"][0]
    (result,) = call["results"]
    assert (call["queries"], result["filename"], result["text"]) == (
        ["name of the cat"], "cat.md", "The cat is called Mimi."
    )  # fmt: skip
    assert last_item(events)["content"][0]["text"] == "Mimi."


async def test_later_turn_shows_the_search_and_knows_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {
        "And now": ["Still [7](https://weather.example/oslo)."],
        "weather.example": ["7."],
        "": [write_call("web_search", query="Oslo")],
    }
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find",))
    first = await turns.run_turn(tools=[SEARCH])
    resent = [
        {"role": "user", "content": "Hi"},
        *first[-1]["response"]["output"],
        {"role": "user", "content": "And now"},
    ]
    second = await turns.run_turn(tools=[SEARCH], input=resent)
    assert last_item(second)["content"][0]["annotations"][0]["url"] == "https://weather.example/oslo"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**SEARCH, "filters": {"allowed_domains": ["a.example"]}}, "tools[0].filters"),
    ({**SEARCH, "search_context_size": "huge"}, "tools[0].search_context_size"),
    ({**SEARCH, "user_location": {"city": 1}}, "tools[0].user_location.city"),
    ({"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}, "tools[0].container.file_ids"),
    ({"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "64g"}}, "tools[0].container.memory_limit"),
    ({"type": "code_interpreter", "container": 5}, "tools[0].container"),
    ({"type": "file_search", "vector_store_ids": ["vs_other"]}, "tools[0].vector_store_ids"),
    ({"type": "file_search", "vector_store_ids": []}, "tools[0].vector_store_ids"),
    ({"type": "file_search"}, "tools[0].vector_store_ids"),
    ({"type": "file_search", "vector_store_ids": ["vs"], "max_num_results": 51}, "tools[0].max_num_results"),
    ({"type": "file_search", "vector_store_ids": ["vs"], "filters": {"type": "near"}}, "tools[0].filters"),
    ({"type": "file_search", "vector_store_ids": ["vs"], "ranking_options": {"hybrid_search": {}}},
     "tools[0].ranking_options.hybrid_search"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "param"), REFUSED)
async def test_what_is_not_done_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: dict[str, Any], param: str
) -> None:
    hosted = ("web_search=web/find", "code_interpreter=web/find")
    turns = ToolTurns({"": ["Hello."]}, monkeypatch, hosted_tools=hosted, vector_stores=(f"vs={tmp_path}",))
    with pytest.raises(ApiError) as caught:
        await turns.run_turn(tools=[tool])
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("tool", [tool for tool, _ in REFUSED])
async def test_type_that_is_not_mapped_is_accepted_and_not_offered(
    monkeypatch: pytest.MonkeyPatch, tool: dict[str, Any]
) -> None:
    turns = ToolTurns({"": ["Hello."]}, monkeypatch)
    events = await turns.run_turn(tools=[tool])
    assert events[-1]["response"]["tools"] == [tool]
    assert last_item(events)["content"][0]["text"] == "Hello."


@pytest.mark.parametrize(
    ("hosted", "offline"),
    [
        (("web_search",), ()),
        (("web_search=web",), ()),
        (("web_search=other/find",), ()),
        (("telepathy=web/find",), ()),
        (("web_search=web/find?q=x",), ()),
        (("web_search=web/find", "web_search=web/find"), ()),
        (("open_page=web/read",), ()),
        (("web_search=monty",), ()),
        ((), ("web_search",)),
        (("code_interpreter=monty",), ("code_interpreter",)),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(hosted: tuple[str, ...], offline: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^--hosted") as caught:
        read_hosted_options(hosted, offline, (), {"web"})
    assert "\n" not in str(caught.value)


async def test_compacted_conversation_continues_with_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {
        "about to be cut short": ["The word was zebra."],
        "weather.example": ["Zebra."],
        "The word was zebra.": [write_call("web_search", query="zebra")],
        "": ["Not compacted."],
    }
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find",))
    items = [
        {"role": role, "content": f"{role}. " + "Nothing but words. " * 200} for role in ("user", "assistant", "user")
    ]
    manage = [{"type": "compaction", "compact_threshold": 1000}]
    events = await turns.run_turn(tools=[SEARCH], input=items, context_management=manage)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["compaction", "web_search_call", "message"]
    assert output[-1]["content"][0]["text"] == "Zebra."
    usage = events[-1]["response"]["usage"]
    assert usage["output_tokens"] > len("The word was zebra.") + len("Zebra."), "the sum of three jobs"
