"""One conversation, told in four ways, is one prompt, token for token. And a long stream, resumed everywhere."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from antiphon.engine.protocol import Job
from tests.clients.sdk_helpers import get, post
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

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


@pytest.fixture
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry(SCRIPT)) as running:
        yield running


class Told:
    """What was asked in one of the ways; `prompts` are the tokens that the engine was given, turn by turn."""

    def __init__(self, served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served, self.prompts = served, list[tuple[int, ...]]()
        generate = served.engine.generate

        async def heard(job: Job, hear: Any) -> None:
            self.prompts.append(job.tokens)
            await generate(job, hear)

        monkeypatch.setattr(served.engine, "generate", heard)

    def talk(self, turn: Any) -> list[tuple[int, ...]]:
        """Four turns; `turn` makes one of its new items."""
        output = turn([{"role": "user", "content": "What is the weather in Oslo?"}])
        output = turn([_answer(call, "Sunny") for call in output if call["type"] == "function_call"])
        output = turn([_answer(call, "Success") for call in output if call["type"] == "custom_tool_call"])
        assert output[-1]["content"][0]["text"] == "It is sunny, and noted."
        turn([{"role": "user", "content": "Thank you."}])
        told, self.prompts = self.prompts, []
        return told

    def post(self, **body: Any) -> dict[str, Any]:
        reply = post(f"{self.served.url}/responses", json={**BODY, **body})
        assert reply.status_code == 200, reply.text
        made: dict[str, Any] = reply.json()
        assert made["status"] == "completed"
        return made


def _answer(call: Any, output: str) -> dict[str, Any]:
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}


def test_four_ways_are_one_prompt(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(served, monkeypatch)
    last: list[str | None] = [None]

    def chained(new: list[Any]) -> Any:
        made = told.post(input=new, previous_response_id=last[0])
        last[0] = made["id"]
        return made["output"]

    history: list[Any] = []

    def resent(new: list[Any]) -> Any:
        history.extend(new)
        made = told.post(input=history, store=False)
        history.extend(made["output"])
        return made["output"]

    talk = post(f"{served.url}/conversations", json={}).json()["id"]

    def conversed(new: list[Any]) -> Any:
        return told.post(input=new, conversation=talk)["output"]

    ways = {name: told.talk(way) for name, way in (("chain", chained), ("resent", resent), ("conversation", conversed))}
    with connect(served.url.replace("http", "ws") + "/responses", max_size=None) as line:
        last[0] = None

        def wired(new: list[Any]) -> Any:
            more = {"previous_response_id": last[0]} if last[0] else {}
            line.send(json.dumps({"type": "response.create", **BODY, "input": new, "store": False, **more}))
            event: dict[str, Any] = {"type": ""}
            while event["type"] != "response.completed":
                event = json.loads(line.recv(timeout=10))
                assert event["type"] != "error", event
            last[0] = event["response"]["id"]
            return event["response"]["output"]

        ways["socket"] = told.talk(wired)
    assert [len(prompts) for prompts in ways.values()] == [4] * 4
    for turn in range(4):
        prompts = {name: prompts[turn] for name, prompts in ways.items()}
        assert len(set(prompts.values())) == 1, {name: len(prompt) for name, prompt in prompts.items()}


def test_a_stream_of_three_hundred_events_is_resumed_at_every_one(served: RunningServer) -> None:
    made = post(f"{served.url}/responses", json={"model": "scripted", "input": "At length", "stream": True}).content
    frames = made.split(b"\n\n")[:-2]
    assert len(frames) >= 300
    check([json.loads(frame.partition(b"data: ")[2]) for frame in frames])
    response_id = json.loads(frames[0].partition(b"data: ")[2])["response"]["id"]
    address = f"{served.url}/responses/{response_id}?stream=true&starting_after="
    for number in range(-1, len(frames)):
        assert get(f"{address}{number}").content == b"\n\n".join([*frames[number + 1 :], b"data: [DONE]\n\n"])
