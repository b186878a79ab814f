"""Tools that the server runs in Anthropic messages: the anthropic SDK, streams, blocks sent back, refusals."""

from contextlib import AbstractContextManager
from typing import Any

import anthropic
import httpx
import pytest

from tests.clients.conftest import anthropic_client
from tests.clients.hosted_tools_script import HOSTED, SCRIPT, WEATHER_SCHEMA
from tests.clients.tool_thread import ToolThread
from tests.serving import RunningServer, serve

SECRET = "marked-token-0816"  # not a real one
KEY = "sk-messages-tools"
TOOLS: list[dict[str, Any]] = [
    {"type": "web_search_20250305", "name": "web_search", "user_location": {"type": "approximate", "city": "Oslo"}},
    {"type": "code_execution_20250522", "name": "code_execution"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"name": "get_weather", "input_schema": WEATHER_SCHEMA},
]
CASES = ["[add]", "[two]", "[both]", "[fail]", "[search]", "[page]", "[code]", "[raise]", "hello"]


def serve_notes(tools: ToolThread) -> AbstractContextManager[RunningServer]:
    return serve(
        SCRIPT,
        api_keys=(KEY,),
        tool_servers=(f"own={tools.url}", f"asking={tools.url}?asking"),
        hosted_tools=tuple(option.replace("notes/", "own/") for option in HOSTED),
        tool_approvals=("asking",),
    )


SERVER = serve_notes
client = anthropic_client


@pytest.fixture
def notes(tools: ToolThread) -> dict[str, Any]:
    return {"type": "url", "url": tools.url, "name": "notes"}


def ask(text: str, notes: dict[str, Any], **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    base = {"model": "scripted", "max_tokens": 4000, "messages": messages, "tools": TOOLS, "mcp_servers": [notes]}
    return {**base, "betas": ["mcp-client-2025-04-04"], **more}


def run(client: anthropic.Anthropic, text: str, notes: dict[str, Any], **more: Any) -> Any:
    return client.beta.messages.create(**ask(text, notes, **more))


def normalize(message: Any) -> dict[str, Any]:
    data: dict[str, Any] = message.model_dump(exclude_none=True)
    data.pop("id")
    for block in data["content"]:
        for key in ("id", "tool_use_id", "signature", "parsed_output"):
            block.pop(key, None)
    return data


@pytest.mark.parametrize("text", CASES)
def test_streamed_message_equals_the_whole_one(client: anthropic.Anthropic, notes: dict[str, Any], text: str) -> None:
    whole = run(client, text, notes)
    with client.beta.messages.stream(**ask(text, notes)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert normalize(final) == normalize(whole)
    assert whole.stop_reason == ("tool_use" if text == "[both]" else "end_turn")
    calls = {block.id: block.type for block in whole.content if block.type in ("mcp_tool_use", "server_tool_use")}
    results = [block.tool_use_id for block in whole.content if block.type.endswith("_tool_result")]
    assert results == list(calls)
    for call_id, kind in calls.items():
        assert call_id.startswith("mcptoolu_" if kind == "mcp_tool_use" else "srvtoolu_")
    assert bool(calls) == (text != "hello")


def test_blocks_tell_what_was_run(client: anthropic.Anthropic, notes: dict[str, Any]) -> None:
    message = run(client, "[add]", notes)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "mcp_tool_use", "mcp_tool_result", "thinking", "text"]
    call, result = message.content[2:4]
    assert (call.name, call.server_name, call.input) == ("add", "notes", {"a": 2, "b": 3})
    assert not result.is_error and [block.text for block in result.content] == ["the sum is 5"]
    assert message.usage.server_tool_use is None
    failed = run(client, "[fail]", notes).content[1]
    assert failed.is_error and "Error executing tool fail" in failed.content[0].text
    message = run(client, "[search]", notes)
    call, result, text = message.content[1:]
    assert (call.name, call.input) == ("web_search", {"query": "Oslo"})
    assert [page.url for page in result.content] == ["https://example.com/oslo"]
    (citation,) = text.citations
    assert (citation.type, citation.url, citation.title) == (
        "web_search_result_location",
        "https://example.com/oslo",
        "About Oslo",
    )
    assert message.usage.server_tool_use.web_search_requests == 1
    message = run(client, "[page]", notes)
    call, result, _ = message.content
    assert (call.name, call.input) == ("web_fetch", {"url": "https://example.com/a"})
    assert result.content.url == "https://example.com/a"
    assert message.usage.server_tool_use.web_fetch_requests == 1
    call, result, _ = run(client, "[code]", notes).content
    assert (call.name, call.input) == ("code_execution", {"code": "print('forty-' + \"two\")"})
    assert (result.content.stdout, result.content.stderr, result.content.return_code) == ("forty-two\n", "", 0)


@pytest.mark.parametrize(
    ("text", "answer"), [("[add]", "Still 5."), ("[code]", "Still forty-two."), ("[search]", "See [it]")]
)
def test_blocks_that_come_back_are_shown_to_the_model(
    client: anthropic.Anthropic, notes: dict[str, Any], text: str, answer: str
) -> None:
    first = run(client, text, notes)
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": "[again]"},
    ]
    message = run(client, text, notes, messages=messages)
    assert message.content[-1].text.startswith(answer)
    assert bool(message.content[-1].citations) == (text == "[search]")


def test_call_of_the_client_continues_with_its_result(client: anthropic.Anthropic, notes: dict[str, Any]) -> None:
    first = run(client, "[both]", notes)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees [again]"}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    assert run(client, "", notes, messages=messages).content[0].text == "Still 5."


def test_max_uses_ends_the_searches(client: anthropic.Anthropic, notes: dict[str, Any], tools: ToolThread) -> None:
    before = tools.num_calls
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    message = run(client, "[max]", notes, tools=[search])
    results = [block.content for block in message.content if block.type == "web_search_tool_result"]
    assert len(results) == 2 and results[1].error_code == "unavailable"
    assert tools.num_calls - before == 1 == message.usage.server_tool_use.web_search_requests


def test_named_hosted_tool_is_called(client: anthropic.Anthropic, notes: dict[str, Any]) -> None:
    message = run(client, "[search]", notes, tool_choice={"type": "tool", "name": "web_search"})
    assert message.content[1].name == "web_search"


def test_toolset_chooses_tools(server: RunningServer, client: anthropic.Anthropic, notes: dict[str, Any]) -> None:
    """The tokens of the prompt tell which tools it offers."""

    def count(*chosen: dict[str, Any], **configuration: Any) -> int:
        sent = {**notes, **configuration}
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "tools": list(chosen)}
        return client.beta.messages.count_tokens(**body, mcp_servers=[sent]).input_tokens  # type: ignore[arg-type]

    toolset = {"type": "mcp_toolset", "mcp_server_name": "notes"}
    everything = count()
    assert count(toolset) == everything == count({**toolset, "configs": {"add": {"enabled": True}}})
    without_add = count({**toolset, "configs": {"add": {"enabled": False}}})
    only_add = count({**toolset, "default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}})
    nothing = count(tool_configuration={"enabled": False})
    assert nothing < only_add < without_add < everything
    assert only_add == count(tool_configuration={"allowed_tools": ["add"]})
    assert nothing == count({**toolset, "default_config": {"enabled": False}})


def test_server_is_found_by_its_name_alone(client: anthropic.Anthropic) -> None:
    message = run(client, "hello", {"type": "url", "name": "own"})
    assert message.content[0].text == "Hello."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"url": "https://elsewhere.invalid/mcp"}, "mcp_servers[0].url"),
        ({"url": None}, "mcp_servers[0].url"),
        ({"authorization_token": SECRET}, "mcp_servers[0].authorization_token"),
        ({"authorization_token": [SECRET]}, "mcp_servers[0].authorization_token"),
        ({"name": "a b"}, "mcp_servers[0].name"),
        ({"name": "asking", "url": None}, "mcp_servers[0].name"),
        ({"type": "command"}, "mcp_servers[0].type"),
    ],
)
def test_refused_servers(server: RunningServer, notes: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    body = ask("[add]", {**notes, **fields})
    assert_refused(server, body, param)


@pytest.mark.parametrize(
    ("chosen", "param"),
    [
        ([{"type": "mcp_toolset", "mcp_server_name": "other"}], "tools[0].mcp_server_name"),
        ([{"type": "mcp_toolset", "mcp_server_name": "notes"}] * 2, "tools[1].mcp_server_name"),
        ([{"type": "mcp_toolset", "mcp_server_name": "notes", "tools": []}], "tools[0].tools"),
        ([{**TOOLS[0], "allowed_domains": ["a.example"]}], "tools[0].allowed_domains"),
        ([{**TOOLS[0], "allowed_callers": ["code_execution_20250825"]}], "tools[0].allowed_callers"),
        ([{**TOOLS[0], "max_uses": 0}], "tools[0].max_uses"),
    ],
)
def test_refused_tools(server: RunningServer, notes: dict[str, Any], chosen: list[dict[str, Any]], param: str) -> None:
    assert_refused(server, ask("[add]", notes, tools=chosen), param)


def assert_refused(server: RunningServer, body: dict[str, Any], param: str) -> None:
    del body["betas"]
    for stream in (False, True):
        reply = httpx.post(
            f"{server.url}/messages", json={**body, "stream": stream}, headers={"x-api-key": KEY}, timeout=30
        )
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert param in reply.json()["error"]["message"], reply.text
        assert SECRET not in reply.text
