"""Conversations with hosted tools that a client sends again, and turns that end before their calls do."""

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

CALL = write_call("read", {"text": "a"})
SCRIPT: list[Json] = [
    {"name": "more", "when": ["More?"], "output": ["Yes."]},
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "refused", "when": ["did not approve"], "output": ["Then not."]},
    {"name": "call", "when": ["[read]"], "output": [CALL]},
    {"name": "cut", "when": ["[cut]"], "output": [CALL[:-20]], "finish": "length"},
    {"name": "any", "output": ["Yes."]},
]
QUESTION = {"role": "user", "content": "[read]"}
MORE = {"role": "user", "content": "More?"}
ASKING = tool(approval="always")


SERVER = partial(serve_hosted, SCRIPT)


def ask(server: RunningServer) -> list[Any]:
    """Returns a conversation that ends with a request for approval."""
    asked = run(server, {"input": [QUESTION], "tools": [ASKING]})
    assert list_kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
    return [QUESTION, *asked["output"]]


def answer(conversation: list[Any], *, approve: bool = True) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": conversation[-1]["id"], "approve": approve}


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("tools", [[ASKING], []], ids=["with the tool", "without it"])
def test_settled_approval_can_be_sent_again(
    server: RunningServer, traffic: ToolTraffic, tools: list[Json], *, approve: bool
) -> None:
    """Agents that store nothing send all items again in every turn."""
    conversation = ask(server)
    conversation.append(answer(conversation, approve=approve))
    done = run(server, {"input": conversation, "tools": [ASKING], "store": False})
    assert list_kinds(done) == (["mcp_call", "message"] if approve else ["message"])
    traffic.calls.clear()
    conversation += [*done["output"], MORE]
    assert list_kinds(run(server, {"input": conversation, "tools": tools})) == ["message"]
    assert list_kinds(run(server, {"input": conversation, "tools": tools, "store": False})) == ["message"]
    assert not traffic.calls


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "due"])
def test_conversation_with_an_approval_can_be_compacted(
    server: RunningServer, traffic: ToolTraffic, *, is_settled: bool
) -> None:
    conversation = ask(server)
    conversation.append(answer(conversation))
    if is_settled:
        conversation += run(server, {"input": conversation, "tools": [ASKING]})["output"]
    traffic.calls.clear()
    assert send(server, {"input": conversation}, path="responses/compact").status_code == 200
    trigger = {"type": "compaction_trigger"}
    assert list_kinds(run(server, {"input": [*conversation, trigger], "tools": [ASKING]})) == ["compaction"]
    assert not traffic.calls


def test_foreign_conversation_is_read(server: RunningServer, traffic: ToolTraffic) -> None:
    """Items of another server, whose ids this one did not sign, are history."""
    call = {"name": "read", "arguments": "{}", "server_label": "kit"}
    foreign = [
        QUESTION,
        {"type": "mcp_approval_request", "id": "mcpr_1", **call},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "output": "The result of read.", **call},
        MORE,
    ]
    traffic.calls.clear()
    assert list_kinds(run(server, {"input": foreign, "tools": [ASKING]})) == ["mcp_list_tools", "message"]
    assert not traffic.calls


def test_prewarm_runs_nothing(server: RunningServer, traffic: ToolTraffic) -> None:
    """It does not use the approval either, so the request after it runs the call."""
    conversation = ask(server)
    conversation.append(answer(conversation))
    traffic.calls.clear()
    body = {"input": conversation, "tools": [ASKING]}
    warm = send(server, {**body, "prompt_cache_options": {"prewarm": True}}).json()
    assert (warm["status"], warm["output"], traffic.calls) == ("completed", [], [])
    assert list_kinds(run(server, body)) == ["mcp_call", "message"]
    assert len(traffic.calls) == 1


def test_call_that_is_cut_is_not_run(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    cut = run(server, {"input": "[cut]", "tools": [tool()]})
    assert cut["status"] == "incomplete" and find_items(cut, "mcp_call")[0]["status"] == "incomplete"
    after = run(server, {"previous_response_id": cut["id"], "input": [MORE], "tools": [tool()]})
    assert after["status"] == "completed"
    again = run(server, {"input": [{"role": "user", "content": "[cut]"}, *cut["output"], MORE], "tools": [tool()]})
    assert again["status"] == "completed" and not traffic.calls


def test_input_tokens_count_the_tools_of_the_server(server: RunningServer, traffic: ToolTraffic) -> None:
    def count(**fields: Any) -> int:
        reply = send(server, {"input": "Hi", **fields}, path="responses/input_tokens")
        return int(reply.json()["input_tokens"])

    assert count(tools=[tool()]) > count() + 100
    conversation = ask(server)
    conversation.append(answer(conversation))
    traffic.calls.clear()
    assert count(input=conversation, tools=[ASKING]) == count(input=conversation, tools=[ASKING])
    unknown = send(server, {"tools": [tool("nobody")]}, path="responses/input_tokens")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "mcp_server_not_allowed")
    assert not traffic.calls
