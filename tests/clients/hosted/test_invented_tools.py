"""Calls of tools that nothing has: the server answers those in the namespaces of its tools, and the model continues."""

from functools import partial

import pytest

from tests.clients.hosted.tool_servers import (
    LABEL,
    Json,
    ToolTraffic,
    find_items,
    list_kinds,
    run,
    serve_hosted,
    tool,
    write_call,
)
from tests.clients.sdk_helpers import post
from tests.serving import RunningServer


def write_name(name: str) -> str:
    return write_call(name, {"text": "a"}).replace(f"{LABEL}__", "", 1)


SCRIPT: list[Json] = [
    {"name": "end", "when": ["has no tool"], "output": ["I see."]},
    {"name": "done", "when": ["The result of"], "output": ["Done."]},
    {"name": "none", "when": ["[none]"], "output": [write_name("kit__nothing")]},
    {"name": "dot", "when": ["[dot]"], "output": [write_name("kit.nothing")]},
    {"name": "bare", "when": ["[bare]"], "output": [write_name("nothing")]},
    {"name": "write", "when": ["[write]"], "output": [write_call("write", {})]},
    {
        "name": "both",
        "when": ["[both]"],
        "output": [write_call("nothing", {}) + "\n" + write_call("read", {"text": "a"})],
    },
    {"name": "again", "when": ["[again]"], "output": [write_name("kit__nothing")]},
]
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


SERVER = partial(serve_hosted, SCRIPT, hosted_tools=("web_search=kit/read", "code_interpreter=kit/write"))


@pytest.fixture(autouse=True)
def _start_again(traffic: ToolTraffic) -> None:
    traffic.calls.clear()


def check_failed(response: Json, name: str = "nothing") -> None:
    assert list_kinds(response)[-2:] == ["mcp_call", "message"] and response["status"] == "completed"
    [call] = find_items(response, "mcp_call")
    assert (call["server_label"], call["name"], call["status"], call.get("output")) == (LABEL, name, "failed", None)
    assert (call["error"]["type"], call["error"]["code"]) == ("mcp_protocol_error", -32602)
    assert f"'{LABEL}' has no tool '{name}'" in call["error"]["message"]


@pytest.mark.parametrize("approval", ["never", "always"])
@pytest.mark.parametrize("text", ["[none]", "[dot]", "[bare]"])
def test_invented_name_fails(server: RunningServer, traffic: ToolTraffic, text: str, approval: str) -> None:
    """A client without functions gets no call of one, and the model reads why."""
    response = run(server, {"input": text, "tools": [tool(approval=approval)]})
    check_failed(response)
    later = run(server, {"previous_response_id": response["id"], "input": "More.", "tools": [tool()]})
    assert later["output"][-1]["content"][0]["text"] == "I see.", "later turns show the same failure"
    assert not traffic.calls


def test_tool_that_is_not_allowed_is_none(server: RunningServer, traffic: ToolTraffic) -> None:
    """The server has it, so it must not be asked."""
    check_failed(run(server, {"input": "[write]", "tools": [tool(allowed_tools=["read"])]}), "write")
    assert not traffic.calls


def test_tool_that_is_not_loaded_is_none(server: RunningServer, traffic: ToolTraffic) -> None:
    tools = [{**tool(approval="always"), "defer_loading": True}, {"type": "tool_search"}]
    response = run(server, {"input": "[write]", "tools": tools})
    check_failed(response, "write")
    assert not traffic.calls


def test_invented_name_beside_a_real_one(server: RunningServer, traffic: ToolTraffic) -> None:
    response = run(server, {"input": "[both]", "tools": [tool()]})
    assert [call["status"] for call in find_items(response, "mcp_call")] == ["failed", "completed"]
    assert [name for name, _ in traffic.calls] == ["read"]


@pytest.mark.parametrize(("text", "kind"), [("[none]", "mcp_call"), ("[bare]", "function_call")])
def test_client_with_functions_gets_names_without_a_namespace(server: RunningServer, text: str, kind: str) -> None:
    response = run(server, {"input": text, "tools": [tool(), FUNCTION]})
    assert kind in list_kinds(response)


@pytest.mark.parametrize("kind", ["web_search", "code_interpreter"])
def test_name_without_any_server_is_text(server: RunningServer, kind: str) -> None:
    """No item could hold the call, and a client without functions must not get one."""
    fields: Json = {"container": {"type": "auto"}} if kind == "code_interpreter" else {}
    response = run(server, {"input": "[bare]", "tools": [{"type": kind, **fields}]})
    assert list_kinds(response) == ["message"] and "nothing" in response["output"][0]["content"][0]["text"]


def test_model_that_invents_for_ever_ends(server: RunningServer, traffic: ToolTraffic) -> None:
    response = run(server, {"input": "[none]", "max_tool_calls": 1, "tools": [tool()]})
    check_failed(response)
    assert not traffic.calls


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_other_apis_tell_the_failure(server: RunningServer, traffic: ToolTraffic, path: str) -> None:
    body: Json = {"model": "scripted", "messages": [{"role": "user", "content": "[none]"}], "max_tokens": 99}
    if path == "messages":
        body["mcp_servers"] = [{"type": "url", "name": LABEL, "url": traffic.url}]
    else:
        body["tools"] = [tool()]
    reply = post(f"{server.url}/{path}", json=body)
    assert reply.status_code == 200 and "has no tool" in reply.text and "I see." in reply.text
    message = reply.json() if path == "messages" else reply.json()["choices"][0]["message"]
    assert not message.get("tool_calls") and "tool_use" not in [
        part["type"] for part in message.get("content") or () if path == "messages"
    ]
    assert not traffic.calls
