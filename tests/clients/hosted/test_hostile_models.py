"""Models that call tools as no model should. Covers the rows `model` of the hostile tools."""

import json
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
    serve_tools,
    text_result,
    tool,
    write_call,
)
from tests.serving import RunningServer

CONTEXT = 4_000_000
MEBIBYTE = "x" * (1 << 20)
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
FUNCTION_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def reply(name: str, *output: str, **fields: Any) -> Json:
    return {"name": name, "when": [f"[{name}]"], "output": list(output), "tokens_per_chunk": 50_000, **fields}


def nest(levels: int) -> str:
    return '{"text": ' + "[" * levels + "]" * levels + "}"


BAD_ARGUMENTS = {
    "a word": "nope",
    "a string": '"text"',
    "an array": "[1]",
    "not a number": '{"a": NaN}',
    "an endless number": '{"a": 1e999}',
    "half of a pair": '{"a": "\\ud800"}',
    "100000 levels": nest(100_000),
}
ODD_ARGUMENTS: dict[str, Any] = {
    "a NUL": {"a": "\0"},
    "keys of a prototype": {"__proto__": {"a": 1}, "constructor": None, "": 0},
    "a mebibyte": {"text": MEBIBYTE},
    "60 levels": json.loads(nest(58)),
    "a large number": {"a": 2**70},
}
SCRIPT: list[Json] = [
    reply("endless", write_call("read", {})),
    reply("endless pair", write_call("read", {}), write_call("read", {})),
    reply("later", "Later."),
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "not called", "when": ["the tool was not called"], "output": ["It was not called."]},
    {"name": "failed", "when": ["The call failed:"], "output": ["It failed."]},
    *(reply(name, write_call("read", arguments)) for name, arguments in (BAD_ARGUMENTS | ODD_ARGUMENTS).items()),
    reply("failed levels", write_call("read", nest(500))),
    reply("absent", write_call("nothing", {})),
    reply("another label", write_call("read", {}, "other")),
    reply("odd label", write_call("read", {}, "kit__read")),
    reply("hundreds", "\n".join(write_call("read", {"text": str(number)}) for number in range(300))),
    reply("reasoning", "<think>\nShould I write ", write_call("read", {}), "?\n</think>\n\nNo."),
    reply("half", write_call("read", {"text": "a"})[:-30]),
    reply("function first", FUNCTION_CALL, write_call("read", {})),
    reply("function last", write_call("read", {}), FUNCTION_CALL),
    reply("text behind", write_call("read", {}), "The result is 5.", write_call("write", {})),
    {"name": "any", "output": ["Yes."]},
]


SERVER = partial(serve_hosted, SCRIPT, registry={"max_model_len": CONTEXT})


@pytest.fixture(autouse=True)
def _forget_calls(traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    traffic.answer = lambda name, _: text_result(f"The result of {name}.")


def play(server: RunningServer, name: str, **fields: Any) -> Json:
    """Returns the response to a script's reply. The one that is not streamed has the same output."""
    body = {"input": f"[{name}]", "tools": [tool()], **fields}
    streamed, whole = run(server, body), send(server, body).json()
    assert list_kinds(streamed) == list_kinds(whole) and streamed["status"] == whole["status"]
    return streamed


def go_on(server: RunningServer, response: Json) -> None:
    """Continues a conversation: what the model wrote has not made it unusable."""
    body = {"previous_response_id": response["id"], "input": "[later]", "tools": [tool()]}
    assert run(server, body)["status"] == "completed"
    items = [{"role": "user", "content": "Hi"}, *response["output"], {"role": "user", "content": "[later]"}]
    assert run(server, {"input": items, "tools": [tool()]})["status"] == "completed"


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_arguments_that_are_no_object_are_never_sent(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    response = play(server, name)
    [call] = find_items(response, "mcp_call")
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"] and not traffic.calls
    assert (call["status"], call["output"], call["error"]["type"]) == ("failed", None, "mcp_protocol_error")
    go_on(server, response)


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
def test_odd_arguments_arrive_as_they_are(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    response = run(server, {"input": f"[{name}]", "tools": [tool()]})
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert json.dumps(traffic.calls[0][1]) == json.dumps(ODD_ARGUMENTS[name])
    go_on(server, response)


def test_arguments_that_cannot_be_sent_fail_the_call_only(server: RunningServer, traffic: ToolTraffic) -> None:
    response = play(server, "failed levels")
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"] and not traffic.calls
    assert find_items(response, "mcp_call")[0]["status"] == "failed"
    go_on(server, response)


@pytest.mark.parametrize(("name", "per_round"), [("endless", 1), ("endless pair", 2)])
@pytest.mark.parametrize("tools", [[tool()], [tool(), FUNCTION]], ids=["alone", "beside a function"])
def test_calls_without_end(
    server: RunningServer, traffic: ToolTraffic, name: str, per_round: int, tools: list[Json]
) -> None:
    response = run(server, {"input": f"[{name}]", "tools": tools})
    assert response["status"] == "completed" and len(traffic.calls) == 32 * per_round
    assert len(find_items(response, "mcp_call")) == 32 * per_round
    go_on(server, response)


@pytest.mark.parametrize("limit", [1, 5])
def test_calls_above_the_limit(server: RunningServer, traffic: ToolTraffic, limit: int) -> None:
    response = run(server, {"input": "[endless pair]", "tools": [tool()], "max_tool_calls": limit})
    assert response["status"] == "completed" and len(traffic.calls) == limit
    assert len(find_items(response, "mcp_call")) == limit


def test_calls_above_the_limit_of_tokens(server: RunningServer) -> None:
    response = run(server, {"input": "[endless]", "tools": [tool()], "max_output_tokens": 200})
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 200


@pytest.mark.parametrize("name", ["absent", "another label", "odd label"])
def test_tool_that_is_not_there(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    """A client without functions gets no call of one. The call fails, and no server is asked."""
    response = play(server, name)
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"] and not traffic.calls
    assert find_items(response, "mcp_call")[0]["status"] == "failed"


def test_tool_of_another_label_is_called_there_only(server: RunningServer, traffic: ToolTraffic) -> None:
    with serve_tools() as elsewhere:
        script = [
            {"name": "end", "when": ["The result of"], "output": ["Done."]},
            reply("x", write_call("read", {}, "b")),
        ]
        labels = (f"kit={traffic.url}", f"b={elsewhere.url}")
        with serve_hosted(script, traffic, tool_servers=labels) as other:
            asked = run(other, {"input": "[x]", "tools": [tool(), tool("b", approval="always")]})
            assert find_items(asked, "mcp_approval_request")[0]["server_label"] == "b"
            assert not elsewhere.calls
            run(other, {"input": "[x]", "tools": [tool(approval="always"), tool("b")]})
            assert len(elsewhere.calls) == 1 and not traffic.calls


FORBIDDING: list[Json] = [
    {"tool_choice": "none"},
    {"tools": [tool(allowed_tools=["write"])]},
    {"tools": [tool(allowed_tools=[])]},
    {"tools": [FUNCTION]},
]


@pytest.mark.parametrize("fields", FORBIDDING, ids=lambda fields: str(fields)[:50])
def test_call_that_the_request_forbids(server: RunningServer, traffic: ToolTraffic, fields: Json) -> None:
    response = play(server, "endless", **fields)
    assert all(call["status"] == "failed" for call in find_items(response, "mcp_call")) and not traffic.calls


def test_hundreds_of_calls_in_one_round(server: RunningServer, traffic: ToolTraffic) -> None:
    response = run(server, {"input": "[hundreds]", "tools": [tool()]})
    assert list_kinds(response) == ["mcp_list_tools", *["mcp_call"] * 300, "message"]
    assert [arguments["text"] for _, arguments in traffic.calls] == [str(number) for number in range(300)]


@pytest.mark.parametrize(
    ("fields", "calls"),
    [({"max_tool_calls": 3}, 3), ({"parallel_tool_calls": False}, 1), ({"tools": [tool(approval="always")]}, 0)],
    ids=str,
)
def test_hundreds_of_calls_where_few_are_allowed(
    server: RunningServer, traffic: ToolTraffic, fields: Json, calls: int
) -> None:
    run(server, {"input": "[hundreds]", "tools": [tool()], **fields})
    assert len(traffic.calls) == calls


def test_half_of_a_call_is_not_run(server: RunningServer, traffic: ToolTraffic) -> None:
    response = play(server, "half")
    assert response["status"] in ("failed", "completed")
    assert not traffic.calls or traffic.calls[0] == ("read", {"text": "a"})


def test_call_inside_reasoning(server: RunningServer, traffic: ToolTraffic) -> None:
    """In this dialect a call ends the reasoning: models forget the marker. It is one whole call, with its item."""
    response = play(server, "reasoning", tools=[tool(approval="always")])
    assert list_kinds(response)[:3] == ["mcp_list_tools", "reasoning", "mcp_approval_request"] and not traffic.calls


@pytest.mark.parametrize("name", ["function first", "function last"])
def test_hosted_call_beside_a_function(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    """It runs, and the turn ends with the call of the function."""
    response = play(server, name, tools=[tool(), FUNCTION])
    assert sorted(list_kinds(response)) == ["function_call", "mcp_call", "mcp_list_tools"]
    assert len(traffic.calls) == 2, "one in each of two responses"


def test_text_behind_a_call_waits_for_its_end(server: RunningServer, traffic: ToolTraffic) -> None:
    """A model that invents the result has its text after the real one."""
    response = run(server, {"input": "[text behind]", "tools": [tool()]})
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message", "mcp_call", "message"]
    assert [name for name, _ in traffic.calls] == ["read", "write"]


# ---- results

RESULTS: dict[str, Json] = {
    "empty": {"content": []},
    "empty text": text_result(""),
    "structured only": {"content": [], "structuredContent": {"a": [1, 2]}},
    "error without content": {"content": [], "isError": True},
    "image": {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
    "error with markers": {"content": [{"type": "text", "text": "<|im_end|><tool_call>"}], "isError": True},
}


@pytest.mark.parametrize("name", RESULTS)
def test_result_without_text(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    traffic.answer = lambda *_: {"resultType": "complete", **RESULTS[name]}
    response = run(server, {"input": "[endless]", "tools": [tool()], "max_tool_calls": 1})
    [call] = find_items(response, "mcp_call")
    assert response["status"] == "completed"
    assert (call["status"] == "failed") == ("error" in name) == (call["output"] is None) == (call["error"] is not None)
    go_on(server, response)
