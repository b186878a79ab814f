"""Lists of tools that are meant to break the request that names their server, end to end."""

from functools import partial
from typing import Any

import pytest

from tests.clients.hosted.tool_servers import (
    Json,
    ToolTraffic,
    find_items,
    list_kinds,
    run,
    send,
    serve_hosted,
    tool,
    write_call,
)
from tests.serving import RunningServer

SCRIPT: list[Json] = [
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "call", "when": ["[call]"], "output": [write_call("t", {})]},
    {"name": "any", "output": ["Yes."]},
]


SERVER = partial(serve_hosted, SCRIPT)


def nest(levels: int) -> Json:
    schema: Json = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def with_property(**schema: Any) -> Json:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


SCHEMAS: dict[str, Json] = {
    "empty": {},
    "deep": nest(30),
    "recursive": with_property(**{"$ref": "#"}),
    "a reference to a file": {"type": "object", "$ref": "file:///etc/passwd"},
    "a reference to nothing": with_property(**{"$ref": "#/$defs/nothing"}),
    "a reference to a page": with_property(**{"$ref": "http://127.0.0.1:1/schema"}),
    "a pattern that looks ahead": with_property(type="string", pattern="^(?=a)(?!b).*$"),
    "a pattern that is none": with_property(type="string", pattern="("),
    "a pattern that explodes": with_property(type="string", pattern="^(a{1,1000}){1,1000}$"),
    "lengths that nothing has": with_property(type="string", minLength=5, maxLength=2),
    "a length of 10^9": with_property(type="string", minLength=10**9),
    "10 000 values": with_property(enum=[f"v{n}" for n in range(10_000)]),
    "nothing": {"type": "object", "not": {}},
    "another type": {"type": "string"},
    "false": with_property(anyOf=[False]),
    "properties of a prototype": {"type": "object", "properties": {"__proto__": {}, "constructor": {"type": "string"}}},
    "half of a pair": with_property(description="\ud800"),
}


NO_LISTS = ("half of a pair",)
LEFT_OUT = ("empty", "another type")
"""MCP forbids these. The SDK refuses the list that has one."""


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "mcp", "server_label": "kit", "name": "t"}], ids=str)
def test_schema_of_a_server(server: RunningServer, traffic: ToolTraffic, name: str, choice: Any) -> None:
    """One that no grammar can hold costs its tool the promise of a schema, and the request nothing."""
    traffic.calls.clear()
    traffic.tools = [{"name": "t", "inputSchema": SCHEMAS[name]}]
    reply = send(server, {"input": "[call]", "tools": [tool()], "tool_choice": choice})
    if name in NO_LISTS:
        assert reply.status_code == 424
        return
    if name in LEFT_OUT:
        assert reply.status_code == (200 if choice == "auto" else 400), reply.text
        assert choice != "auto" or reply.json()["output"][0]["left_out"][0]["name"] == "t"
        return
    assert reply.status_code == 200, reply.text
    assert list_kinds(reply.json()) == ["mcp_list_tools", "mcp_call", "message"] and len(traffic.calls) == 1


NAMES = ["a.b", "a/b", "__proto__", "constructor", "x" * 128, "<|im_end|>", "é\u00a0", "functions.t", "kit__t", "../t"]


def test_names_of_tools(server: RunningServer, traffic: ToolTraffic) -> None:
    """All have names of their own for the model, and the server's own in items."""
    traffic.tools = [
        {"name": name, "inputSchema": {"type": "object"}} for name in (*NAMES, "t", "t", "two words", "\n", "")
    ]
    response = run(server, {"input": "[call]", "tools": [tool()]})
    listed = [each["name"] for each in find_items(response, "mcp_list_tools")[0]["tools"]]
    assert "t" in listed and len(listed) == len(set(listed)) and set(listed) <= {*NAMES, "t"}
    traffic.calls.clear()
    assert run(server, {"input": "[call]", "tools": [tool()]})["status"] == "completed"
    assert [name for name, _ in traffic.calls] == ["t"]


def test_too_many_tools_of_two_servers(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(65)]
    two = [tool(), tool("mine", connector_id="kit")]
    reply = send(server, {"tools": two})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
    two[1]["allowed_tools"] = ["t1"]
    assert send(server, {"tools": two}).json()["status"] == "completed"
