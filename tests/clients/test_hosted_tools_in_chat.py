"""Tools that the server runs in chat completions: the openai SDK, streams, stored completions, refusals."""

from contextlib import AbstractContextManager
from typing import Any

import httpx
import openai
import pytest

from antiphon.app.tools.call_rules import MAX_ROUNDS
from tests.clients.hosted_tools_script import HOSTED, SCRIPT, WEATHER_SCHEMA
from tests.clients.tool_thread import ToolThread
from tests.serving import RunningServer, serve

SECRET = "marked-token-0815"  # not a real one
KEY = "sk-chat-tools"
NOTES = {"type": "mcp", "server_label": "notes", "require_approval": "never"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}
TOOLS = [NOTES, {"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}, WEATHER]


def serve_notes(tools: ToolThread) -> AbstractContextManager[RunningServer]:
    servers = (f"notes={tools.url}", f"asking={tools.url}")
    settings: dict[str, Any] = {"mcp_allowed_hosts": ("127.0.0.1:1",), "tool_approvals": ("asking",)}
    return serve(SCRIPT, api_keys=(KEY,), tool_servers=servers, hosted_tools=HOSTED, **settings)


SERVER = serve_notes


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], "tools": TOOLS, **more}


@pytest.mark.parametrize("text", ["[add]", "[two]", "[both]", "[fail]", "[search]", "[page]", "[code]", "[raise]"])
def test_streamed_completion_equals_the_whole_one(client: openai.OpenAI, text: str) -> None:
    whole = client.chat.completions.create(**ask(text))
    message: dict[str, Any] = {"content": "", "executed_tools": [], "annotations": []}
    finish = usage = None
    for chunk in client.chat.completions.create(**ask(text), stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            delta = choice.delta.model_dump(exclude_unset=True)
            message["content"] += delta.get("content") or ""
            for key in ("executed_tools", "annotations"):
                message[key] += delta.get(key, [])
    (choice,) = whole.choices
    said = choice.message.model_dump(exclude_unset=True)
    assert (said["content"] or "") == message["content"]
    assert said["executed_tools"] == message["executed_tools"] != []
    assert [tool["index"] for tool in said["executed_tools"]] == list(range(len(said["executed_tools"])))
    assert said["annotations"] == message["annotations"]
    assert choice.finish_reason == finish == ("tool_calls" if text == "[both]" else "stop")
    assert whole.usage is not None and usage is not None and whole.usage.total_tokens == usage.total_tokens


def run(client: openai.OpenAI, text: str, **more: Any) -> dict[str, Any]:
    choice = client.chat.completions.create(**ask(text, **more)).choices[0]
    return choice.message.model_dump(exclude_unset=True)


def test_executed_tools_tell_what_was_run(client: openai.OpenAI) -> None:
    said = run(client, "[add]")
    assert said["content"] == "I add.\n\nIt is 5." and "tool_calls" not in said
    assert said["executed_tools"] == [
        {
            "index": 0,
            "type": "mcp",
            "name": "add",
            "server_label": "notes",
            "arguments": '{"a": 2, "b": 3}',
            "output": "the sum is 5",
        }
    ]
    (failed,) = run(client, "[fail]")["executed_tools"]
    assert failed["output"] is None and "Error executing tool fail" in failed["error"]
    (page,) = run(client, "[page]")["executed_tools"]
    assert (page["type"], page["name"], page["output"]) == ("web_search", "open_page", None)
    (code,) = run(client, "[code]")["executed_tools"]
    assert (code["name"], code["output"]) == ("code_interpreter", "forty-two\n")
    assert code["arguments"] == '{"code": "print(\'forty-\' + \\"two\\")"}' and "error" not in code
    (raised,) = run(client, "[raise]")["executed_tools"]
    assert "error" not in raised and "ZeroDivisionError" in raised["output"]
    assert "executed_tools" not in run(client, "hello")


def test_citations_are_placed_in_the_whole_content(client: openai.OpenAI) -> None:
    said = run(client, "[search]")
    (annotation,) = said["annotations"]
    citation = annotation["url_citation"]
    cited = said["content"][citation["start_index"] : citation["end_index"]]
    assert cited == "[Oslo](https://example.com/oslo)"
    assert (annotation["type"], citation["url"], citation["title"]) == (
        "url_citation",
        "https://example.com/oslo",
        "About Oslo",
    )
    (search,) = said["executed_tools"]
    assert search["search_results"] == {"results": [{"url": "https://example.com/oslo"}]}
    messages = [
        {"role": "user", "content": "[search]"},
        {"role": "assistant", "content": "Well: "},
    ]
    echoed = client.chat.completions.create(
        model="scripted",
        messages=messages,  # type: ignore[arg-type]
        tools=TOOLS,  # type: ignore[arg-type]
        extra_body={"echo": True},
    ).choices[0]
    content = echoed.message.content or ""
    (annotation,) = echoed.message.model_dump()["annotations"]
    citation = annotation["url_citation"]
    assert content.startswith("Well: ")
    assert content[citation["start_index"] : citation["end_index"]] == "[Oslo](https://example.com/oslo)"


def test_client_runs_its_own_call_only(client: openai.OpenAI) -> None:
    said = run(client, "[both]")
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["get_weather"]
    assert [tool["name"] for tool in said["executed_tools"]] == ["add"]


def test_web_search_options_offer_the_search(client: openai.OpenAI) -> None:
    place = {"type": "approximate", "approximate": {"city": "Oslo", "country": "NO"}}
    options = {"search_context_size": "low", "user_location": place}
    said = run(client, "[search]", tools=[], web_search_options=options)
    assert [tool["type"] for tool in said["executed_tools"]] == ["web_search"]


def test_each_choice_runs_its_own_calls(client: openai.OpenAI, tools: ToolThread) -> None:
    before = tools.num_calls
    choices = client.chat.completions.create(**ask("[add]", n=3)).choices
    assert [choice.message.content for choice in choices] == ["I add.\n\nIt is 5."] * 3
    assert tools.num_calls - before == 3


def test_choice_of_a_hosted_tool_is_forced_once(client: openai.OpenAI) -> None:
    said = run(client, "[add]", tool_choice={"type": "mcp", "server_label": "notes"})
    assert said["content"].endswith("It is 5.")
    allowed = {"mode": "auto", "tools": [{"type": "mcp", "server_label": "notes"}]}
    said = run(client, "[add]", tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert len(said["executed_tools"]) == 1


def test_stored_completion_has_the_calls_and_no_secret(server: RunningServer, client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ask("[search]", store=True))
    read = client.chat.completions.retrieve(made.id)
    assert read.choices[0].message.model_dump() == made.choices[0].message.model_dump()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**NOTES, "require_approval": "always"}]}, "tools[0].require_approval"),
        ({"tools": [WEATHER, {"type": "mcp", "server_label": "notes"}]}, "tools[1].require_approval"),
        ({"tools": [{**NOTES, "server_label": "asking"}]}, "tools[0].require_approval"),
        ({"tools": [NOTES, NOTES]}, "tools[1].server_label"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs"]}]}, "tools[0].type"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcpx"}]}, "tools[0].type"),
        ({"tools": [{**NOTES, "server_url": "https://elsewhere.invalid/mcp"}]}, "tools[0].server_url"),
        ({"tools": [{**NOTES, "authorization": SECRET}]}, "tools[0].headers"),
        ({"tools": [{**NOTES, "authorization": [SECRET]}]}, "tools[0].authorization"),
        ({"tool_choice": {"type": "mcp", "server_label": "other"}}, "tool_choice"),
        ({"best_of": 2}, "best_of"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"web_search_options": {"search_context_size": "huge"}}, "web_search_options.search_context_size"),
    ],
)
def test_refused_requests(server: RunningServer, tools: ToolThread, fields: dict[str, Any], param: str) -> None:
    before = tools.num_calls
    headers = {"authorization": f"Bearer {KEY}"}
    for stream in (False, True):
        if stream and param == "best_of":
            continue
        body = ask("[add]", stream=stream) | fields
        reply = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers, timeout=30)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param
        assert SECRET not in reply.text
    assert tools.num_calls == before


def test_server_that_cannot_be_listed_is_a_424(server: RunningServer) -> None:
    tool = {**NOTES, "server_label": "gone", "server_url": "http://127.0.0.1:1/mcp"}
    headers = {"authorization": f"Bearer {KEY}"}
    body = ask("[add]", tools=[tool])
    reply = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers, timeout=30)
    assert reply.status_code == 424 and reply.json()["error"]["type"] == "external_connector_error"


def test_model_that_calls_without_end_is_stopped(client: openai.OpenAI, tools: ToolThread) -> None:
    """The scripted engine cannot be kept from calls by a grammar, and the client has a tool of its own."""
    before = tools.num_calls
    said = run(client, "[endless]")
    assert tools.num_calls - before == len(said["executed_tools"]) == MAX_ROUNDS
