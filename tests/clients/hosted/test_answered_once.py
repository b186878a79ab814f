"""Each request for approval is answered once, whichever way: an approval and a denial exclude each other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
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
from tests.clients.sdk_helpers import post
from tests.serving import RunningServer

SCRIPT: list[Json] = [
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "busy", "when": ["[busy]", "did not approve"], "output": [{"refuse": "the queue is full"}]},
    {"name": "refused", "when": ["did not approve"], "output": ["Then not."]},
    {"name": "read", "when": ["[read]"], "output": [write_call("read", {"text": "a"})]},
    {"name": "any", "output": ["Yes."]},
]
ASKING = tool(approval="always")
FIRST_AND_SECOND = list(product([True, False], repeat=2))
QUESTION: Json = {"role": "user", "content": "[read]"}
MORE: Json = {"role": "user", "content": "Go on."}


SERVER = partial(serve_hosted, SCRIPT)


@pytest.fixture(autouse=True)
def _start_again(traffic: ToolTraffic) -> None:
    traffic.calls.clear()


def add_items(server: RunningServer, path: str, items: list[Json]) -> httpx.Response:
    return post(f"{server.url}/{path}", json={"items": items})


class Asked:
    """A response that asks for an approval, and requests that answer it in each way that the API has."""

    def __init__(self, server: RunningServer, **fields: Any) -> None:
        self.server = server
        self.response = run(server, {"input": [QUESTION], "tools": [ASKING], **fields})
        [self.request] = find_items(self.response, "mcp_approval_request")

    def answer(self, *, approve: bool) -> Json:
        return {"type": "mcp_approval_response", "approval_request_id": self.request["id"], "approve": approve}

    def chain(self, *, approve: bool) -> Json:
        return {"previous_response_id": self.response["id"], "input": [self.answer(approve=approve)]}

    def resend(self, *, approve: bool) -> Json:
        return {"input": [QUESTION, *self.response["output"], self.answer(approve=approve)]}

    def resend_unstored(self, *, approve: bool) -> Json:
        return {**self.resend(approve=approve), "store": False}

    def fork(self, *, approve: bool) -> Json:
        """Answers in a branch: another message comes before the answer, and another one after it."""
        return {"previous_response_id": self.response["id"], "input": [MORE, self.answer(approve=approve), MORE]}

    def in_conversation(self, *, approve: bool) -> Json:
        created = add_items(self.server, "conversations", [QUESTION, *self.response["output"]]).json()
        return {"conversation": created["id"], "input": [self.answer(approve=approve)]}

    def in_background(self, *, approve: bool) -> Json:
        return {**self.chain(approve=approve), "background": True}


WAYS: list[Callable[..., Json]] = [
    Asked.chain, Asked.resend, Asked.resend_unstored, Asked.fork, Asked.in_conversation, Asked.in_background,
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), FIRST_AND_SECOND)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("other_way", [Asked.chain, Asked.resend_unstored], ids=lambda way: way.__name__)
def test_second_answer_is_refused(
    server: RunningServer,
    traffic: ToolTraffic,
    way: Callable[..., Json],
    other_way: Callable[..., Json],
    *,
    first: bool,
    second: bool,
) -> None:
    asked = Asked(server)
    answered = run(server, {**way(asked, approve=first), "tools": [ASKING]})
    assert list_kinds(answered)[-2:] == (["mcp_call", "message"] if first else ["message"])
    for again in (other_way, way):
        refused = send(server, {**again(asked, approve=second), "tools": [ASKING], "stream": True})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "input") and asked.request["id"] in error["message"]
    assert len(traffic.calls) == first
    gone_on = run(server, {"previous_response_id": asked.response["id"], "input": [MORE], "tools": [ASKING]})
    assert gone_on["status"] == "completed", "a branch without an answer goes on"


def test_denial_without_tools_counts(server: RunningServer, traffic: ToolTraffic) -> None:
    asked = Asked(server)
    assert list_kinds(run(server, asked.chain(approve=False))) == ["message"]
    for again in (asked.chain(approve=True), asked.resend(approve=True)):
        assert send(server, {**again, "tools": [ASKING]}).status_code == 400
    assert not traffic.calls


def test_denied_request_stays_in_the_conversation(server: RunningServer, traffic: ToolTraffic) -> None:
    """Agents send the denial again in each later turn."""
    asked = Asked(server)
    denied = run(server, {**asked.resend(approve=False), "tools": [ASKING]})
    items = [QUESTION, *asked.response["output"], asked.answer(approve=False), *denied["output"], MORE]
    for body in ({"input": items}, {"previous_response_id": denied["id"], "input": [MORE]}):
        assert list_kinds(run(server, {**body, "tools": [ASKING]})) == ["message"]
    assert not traffic.calls


def test_answer_of_a_refused_turn_can_be_sent_again(server: RunningServer, traffic: ToolTraffic) -> None:
    """Clients repeat a request that was refused for a moment."""
    asked = Asked(server, input=[QUESTION, {"role": "user", "content": "[busy]"}])
    body = {**asked.chain(approve=False), "tools": [ASKING]}
    for _ in range(2):
        reply = post(f"{server.url}/responses", json={"model": "scripted", **body})
        assert (reply.status_code, reply.json()["error"]["message"]) == (500, "the queue is full")
    answered = run(server, {**asked.chain(approve=True), "tools": [ASKING]})
    assert list_kinds(answered) == ["mcp_call", "message"] and len(traffic.calls) == 1


def test_one_of_many_answers_at_once_counts(server: RunningServer, traffic: ToolTraffic) -> None:
    for _ in range(4):
        traffic.calls.clear()
        asked, barrier = Asked(server), threading.Barrier(6)

        def answer(number: int, asked: Asked = asked, barrier: threading.Barrier = barrier) -> tuple[int, bool]:
            way, approve = WAYS[number % 3], number % 2 == 0
            barrier.wait()
            return send(server, {**way(asked, approve=approve), "tools": [ASKING]}).status_code, approve

        with ThreadPoolExecutor(max_workers=6) as pool:
            results = list(pool.map(answer, range(6)))
        [winner] = [approve for status, approve in results if status == 200]
        assert sorted(status for status, _ in results) == [200] + [400] * 5
        assert len(traffic.calls) == winner


@pytest.mark.parametrize(("first", "second"), FIRST_AND_SECOND)
def test_another_server_and_a_restart_know_the_answer(
    traffic: ToolTraffic, tmp_path: Path, *, first: bool, second: bool
) -> None:
    place: Json = {"store_file": tmp_path / "responses.db", "file_store": False}
    with serve_hosted(SCRIPT, traffic, **place) as one, serve_hosted(SCRIPT, traffic, **place) as two:
        asked = Asked(one)
        run(two, {**asked.resend(approve=first), "tools": [ASKING]})
        assert send(one, {**asked.chain(approve=second), "tools": [ASKING]}).status_code == 400
    with serve_hosted(SCRIPT, traffic, **place) as three:
        assert send(three, {**asked.chain(approve=second), "tools": [ASKING]}).status_code == 400
    assert len(traffic.calls) == first


def test_answer_is_no_item_to_add_to_a_conversation(server: RunningServer, traffic: ToolTraffic) -> None:
    """There it would be answered by no response. In a whole conversation that is copied, it is history."""
    asked = Asked(server)
    history, answer = [QUESTION, *asked.response["output"]], asked.answer(approve=True)
    conversation = add_items(server, "conversations", history).json()["id"]
    for path, items in (("conversations", [*history, answer]), (f"conversations/{conversation}/items", [answer])):
        reply = add_items(server, path, items)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "items")
    said: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "As you like."}]}
    copy = [*history, asked.answer(approve=False), said]
    assert add_items(server, "conversations", copy).status_code == 200
    assert not traffic.calls
