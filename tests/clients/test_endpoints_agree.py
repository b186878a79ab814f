"""One conversation sent in four ways gives one prompt, and a stream of 300 events resumes after each of them."""

import json
from functools import partial
from typing import Any

import pytest
from websockets.sync.client import connect

from antiphon.engine.protocol import Job
from tests.clients.sdk_helpers import get, post
from tests.conftest import fresh_server
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
PATCH: Any = {"type": "custom", "name": "patch"}
BODY: dict[str, Any] = {"model": "scripted", "tools": [TOOL, PATCH], "instructions": "Be brief."}
SCRIPT: list[dict[str, Any]] = [
    {"name": "last", "when": ["Thank you"], "output": ["<think>\nPolite.\n</think>\n\nYou are welcome."]},
    {"name": "patched", "when": ["Success"], "output": ["It is sunny, and noted."]},
    {
        "name": "note",
        "when": ["Sunny"],
        "output": ["Noting.\n<tool_call>\n<custom=patch>\n+sunny\n</custom>\n</tool_call>"],
    },
    {
        "name": "ask",
        "when": ["weather in Oslo"],
        "output": [
            "<think>\nAsk.\n</think>\n\n",
            *['<tool_call>\n{"name": "weather", "arguments":  {"city":"Oslo"}}\n</tool_call>\n'] * 2,
        ],
    },
    {"name": "long", "output": ["<think>\n", "thinking " * 40, "\n</think>\n\n", "word " * 120], "tokens_per_chunk": 3},
]
SERVER = partial(serve, SCRIPT)
server = fresh_server


class PromptRecorder:
    """Runs a conversation, and records the prompt tokens of each turn in `prompts`."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.prompts = server, list[tuple[int, ...]]()
        generate = server.engine.generate

        async def generate_recorded(job: Job, on_chunk: Any) -> None:
            self.prompts.append(job.tokens)
            await generate(job, on_chunk)

        monkeypatch.setattr(server.engine, "generate", generate_recorded)

    def run_conversation(self, turn: Any) -> list[tuple[int, ...]]:
        """Runs four turns and returns their prompts. `turn` sends new items and returns the response's output."""
        output = turn([{"role": "user", "content": "What is the weather in Oslo?"}])
        output = turn([_make_output_item(call, "Sunny") for call in output if call["type"] == "function_call"])
        output = turn([_make_output_item(call, "Success") for call in output if call["type"] == "custom_tool_call"])
        assert output[-1]["content"][0]["text"] == "It is sunny, and noted."
        turn([{"role": "user", "content": "Thank you."}])
        prompts, self.prompts = self.prompts, []
        return prompts

    def post(self, **body: Any) -> dict[str, Any]:
        reply = post(f"{self.server.url}/responses", json={**BODY, **body})
        assert reply.status_code == 200, reply.text
        response: dict[str, Any] = reply.json()
        assert response["status"] == "completed"
        return response


def _make_output_item(call: Any, output: str) -> dict[str, Any]:
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}


def test_four_ways_to_send_a_history_give_one_prompt(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = PromptRecorder(server, monkeypatch)
    last_id: list[str | None] = [None]

    def send_by_previous_id(items: list[Any]) -> Any:
        response = recorder.post(input=items, previous_response_id=last_id[0])
        last_id[0] = response["id"]
        return response["output"]

    history: list[Any] = []

    def send_full_history(items: list[Any]) -> Any:
        history.extend(items)
        response = recorder.post(input=history, store=False)
        history.extend(response["output"])
        return response["output"]

    conversation_id = post(f"{server.url}/conversations", json={}).json()["id"]

    def send_in_conversation(items: list[Any]) -> Any:
        return recorder.post(input=items, conversation=conversation_id)["output"]

    prompts_by_way = {
        name: recorder.run_conversation(send)
        for name, send in (
            ("chain", send_by_previous_id),
            ("resent", send_full_history),
            ("conversation", send_in_conversation),
        )
    }
    with connect(server.url.replace("http", "ws") + "/responses", max_size=None) as websocket:
        last_id[0] = None

        def send_over_websocket(items: list[Any]) -> Any:
            previous = {"previous_response_id": last_id[0]} if last_id[0] else {}
            websocket.send(json.dumps({"type": "response.create", **BODY, "input": items, "store": False, **previous}))
            event: dict[str, Any] = {"type": ""}
            while event["type"] != "response.completed":
                event = json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))
                assert event["type"] != "error", event
            last_id[0] = event["response"]["id"]
            return event["response"]["output"]

        prompts_by_way["socket"] = recorder.run_conversation(send_over_websocket)
    assert [len(prompts) for prompts in prompts_by_way.values()] == [4] * 4
    for turn in range(4):
        prompts = {name: prompts[turn] for name, prompts in prompts_by_way.items()}
        assert len(set(prompts.values())) == 1, {name: len(prompt) for name, prompt in prompts.items()}


def test_stream_of_300_events_resumes_after_every_event(server: RunningServer) -> None:
    body = post(f"{server.url}/responses", json={"model": "scripted", "input": "At length", "stream": True}).content
    frames = body.split(b"\n\n")[:-2]
    assert len(frames) >= 300
    check_stream([json.loads(frame.partition(b"data: ")[2]) for frame in frames])
    response_id = json.loads(frames[0].partition(b"data: ")[2])["response"]["id"]
    url = f"{server.url}/responses/{response_id}?stream=true&starting_after="
    for number in range(-1, len(frames)):
        assert get(f"{url}{number}").content == b"\n\n".join([*frames[number + 1 :], b"data: [DONE]\n\n"])
