"""A tool that cannot be offered costs none of the others, and the client and the operator are told of it."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.kit.checker.stream import check_sse
from tests.clients.hosted.tool_servers import (
    READ,
    Json,
    find_items,
    list_kinds,
    run,
    send,
    serve_hosted,
    serve_tools,
    tool,
    write_call,
)

SCRIPT: list[Json] = [
    {"name": "hello", "when": ["Hi"], "output": ["Hello."]},
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "read", "output": [write_call("read", {"text": "a"})]},
]
ODD = {"name": "odd", "inputSchema": {"type": "object", "required": "x"}}
MANY = [READ, ODD, *({**READ, "name": f"tool{number}"} for number in range(48)), {**READ, "name": "two words"}]


def test_one_odd_tool_among_fifty() -> None:
    with serve_tools(tools=MANY) as traffic, capture_logs() as logs, serve_hosted(SCRIPT, traffic) as server:
        response = run(server, {"input": "[read]", "tools": [tool()]})
        again = run(server, {"input": [*response["output"], {"role": "user", "content": "[read]"}], "tools": [tool()]})
        reply = send(server, {"input": "[read]", "tools": [tool()], "stream": True})
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"] and again["status"] == "completed"
    [listed] = find_items(response, "mcp_list_tools")
    assert len(listed["tools"]) == 49 and listed.get("error") is None
    assert [each["name"] for each in listed["left_out"]] == ["odd", "two words"]
    assert listed["left_out"][0]["reason"] == "its inputSchema.required is no list of names"
    told = [(each["label"], each["tool"]) for each in logs if each["event"] == "a tool is not offered"]
    assert told == [("kit", "odd"), ("kit", "two words")], "once, as long as it stays the same"
    assert not [finding for finding in check_sse(reply.content) if finding.level == "error"]


LISTED = "the server lists no tool of this name"
READ_ONLY = {"annotations": {"readOnlyHint": True}}
LONG = "x" * 200


@pytest.mark.parametrize(
    ("allowed", "offered", "left_out"),
    [
        (None, ["read"], ["odd", "two words", "peek", "tool 5", LONG[:128]]),
        (["read"], ["read"], []),
        (["read", "odd"], ["read"], ["odd"]),
        (["odd", LONG], [], ["odd", LONG[:128]]),
        ([], [], []),
        ({"read_only": True}, ["read"], ["two words", "peek", LONG[:128]]),
        ({"tool_names": ["odd", "peek"], "read_only": True}, [], ["peek"]),
        (["read", "tool 5"], ["read"], ["tool 5"]),
        (["tool", "read", "a"], ["read"], ["a", "tool"]),
    ],
    ids=str,
)
def test_only_tools_that_the_client_allows_are_told(allowed: Any, offered: list[str], left_out: list[str]) -> None:
    tools = [READ, ODD, {**READ, "name": "two words"}, {**ODD, "name": "peek", **READ_ONLY}, {"inputSchema": {}}]
    with serve_tools(tools=[*tools, {**READ, "name": LONG}]) as traffic, serve_hosted(SCRIPT, traffic) as server:
        response = run(server, {"input": "Hi", "tools": [tool(allowed_tools=allowed)]})
    [listed] = find_items(response, "mcp_list_tools")
    assert [each["name"] for each in listed["tools"]] == offered
    assert [each["name"] for each in listed.get("left_out", [])] == left_out
    unlisted = {each["name"] for each in listed.get("left_out", []) if each["reason"] == LISTED}
    assert unlisted == ({"a", "tool", "tool 5"} & set(left_out) if allowed else set())
