"""Random requests of hosted tools: never a fault of the server, never a hang, and every stream is legal."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from antiphon.kit.checker.stream import StreamChecker
from tests.clients.hosted.tool_servers import (
    LABEL,
    Json,
    ToolTraffic,
    list_kinds,
    read_events,
    send,
    serve_hosted,
    serve_tools,
    text_result,
    tool,
    write_call,
)
from tests.counts import FULL_COUNTS
from tests.invariants import MODEL_FAULTS
from tests.serving import RunningServer

NUM_BODIES = 2000 if FULL_COUNTS else 150
NUM_SEEDS = 8 if FULL_COUNTS else 2
KEYS = ("sk-one", "sk-two")
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
FUNCTION_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
OUTPUTS = [
    [write_call("read", {"text": "a"})],
    [write_call("read", {}), "\n", write_call("write", {"a": [1]})],
    ["Let me see.", write_call("read", {"text": "a"}), "And?"],
    ["<think>\nHm.\n</think>\n\n", write_call("write", "nope")],
    [write_call("read", {}), FUNCTION_CALL],
    [write_call("read", {"text": "a"})[:-25]],
    [write_call("nothing", {}), write_call("read", {}, "other")],
    ["Yes."],
]
SCRIPT: list[Json] = [
    {"name": "again", "when": ["The result of", "[again]"], "output": OUTPUTS[1]},
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "failed", "when": ["The tool failed"], "output": ["It failed."]},
    {"name": "not called", "when": ["the tool was not called"], "output": ["It was not called."]},
    *({"name": f"s{n}", "when": [f"[reply {n}]"], "output": output} for n, output in enumerate(OUTPUTS)),
    {"name": "any", "output": ["Yes."]},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
OPTIONS: list[Json] = [
    {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}},
    {"truncation": "auto"},
    {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2},
    {"background": True, "store": True},
    {"prompt_cache_options": {"prewarm": True}},
    {"temperature": 0, "reasoning": {"effort": "low", "summary": "auto"}},
    {"instructions": "Be short. " * 300},
]
STRANGE: list[Any] = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    "x",
    "é" * 300,
    "\ud800",
    [],
    [None],
    {},
    {"a": 1},
    "mcpr_1",
    LABEL,
    2**70,
]


@pytest.fixture(scope="module")
def traffic() -> Iterator[ToolTraffic]:
    def answer(name: str, arguments: Json) -> Json:
        del arguments
        return text_result(f"The result of {name}.", isError=name == "write")

    with serve_tools(answer=answer) as traffic:
        yield traffic


SERVER = partial(serve_hosted, SCRIPT, api_keys=KEYS)


class BodyWriter:
    """Writes bodies out of valid parts, of which some are changed. `past` has the items of earlier responses."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.past: list[Json] = []
        self.response_ids: list[str] = []
        self.lengths: dict[str, int] = {}
        """Number of turns of the conversation that ends with a response. Long ones take long and show nothing new."""

    def write_body(self) -> Json:
        rng = self._random
        body: Json = {"input": self._write_input(), "stream": rng.random() < 0.8}
        if rng.random() < 0.9:
            made = [self._write_tool() for _ in range(rng.choice((1, 1, 2, 3)))]
            body["tools"] = list({str(each.get("server_label", each.get("name"))): each for each in made}.values())
        if rng.random() < 0.3:
            body["tool_choice"] = self._write_choice()
        if rng.random() < 0.2:
            body["max_tool_calls"] = rng.choice((1, 2, 5, 0, "1"))
        if rng.random() < 0.2:
            body["parallel_tool_calls"] = False
        if rng.random() < 0.15:
            body["max_output_tokens"] = rng.choice((16, 60, 100, 1000))
        if rng.random() < 0.3:
            body["store"] = rng.random() < 0.5
        if self.response_ids and rng.random() < 0.3:
            body["previous_response_id"] = rng.choice(self.response_ids)
        if rng.random() < 0.4:
            body |= rng.choice(OPTIONS)
        return self._mutate(body) if rng.random() < 0.1 else body

    def _write_input(self) -> Any:
        rng = self._random
        text = f"[reply {rng.randrange(len(OUTPUTS))}]" + ("[again]" if rng.random() < 0.1 else "")
        if rng.random() < 0.3:
            return text
        items: list[Any] = [{"role": "user", "content": text}]
        items += rng.sample(self.past, min(len(self.past), rng.randrange(6))) if rng.random() < 0.5 else []
        requests = [item for item in self.past if item.get("type") == "mcp_approval_request"]
        if requests and rng.random() < 0.7:
            request = rng.choice(requests)
            items += [request] if rng.random() < 0.7 and request not in items else []
            answer = {
                "type": "mcp_approval_response",
                "approval_request_id": request["id"],
                "approve": rng.random() < 0.8,
            }
            items.append(answer)
        return [self._mutate(item) if rng.random() < 0.07 else item for item in items]

    def _write_tool(self) -> Json:
        rng = self._random
        if rng.random() < 0.25:
            return FUNCTION
        rules: list[Any] = [
            "never",
            "always",
            None,
            {"never": {"tool_names": ["read"]}},
            {"always": {"read_only": True}},
        ]
        made = tool(rng.choice((LABEL, LABEL, LABEL, "mine")), approval=rng.choice(rules))
        if made["server_label"] == "mine":
            made["connector_id"] = LABEL
        if rng.random() < 0.2:
            made["allowed_tools"] = rng.choice((["read"], [], {"read_only": True}, ["read", "write"]))
        return self._mutate(made) if rng.random() < 0.07 else made

    def _write_choice(self) -> Any:
        mcp: Json = {"type": "mcp", "server_label": LABEL}
        choices: list[Any] = [
            "auto", "none", "required", mcp, {**mcp, "name": "read"}, {"type": "function", "name": "f"},
            {"type": "allowed_tools", "mode": self._random.choice(("auto", "required")), "tools": [mcp]},
        ]  # fmt: skip
        choice = self._random.choice(choices)
        return self._mutate(choice) if isinstance(choice, dict) and self._random.random() < 0.2 else choice

    def _mutate(self, value: Json) -> Json:
        """Returns an object in which one key is changed, removed or added, here or deeper."""
        rng, changed = self._random, dict(value)
        key = rng.choice([*changed, "server_url"])
        inner = changed.get(key)
        if isinstance(inner, dict) and inner and rng.random() < 0.6:
            changed[key] = self._mutate(inner)
        elif rng.random() < 0.2:
            changed.pop(key, None)
        else:
            changed[key] = rng.choice(STRANGE)
        return changed


def check_stream(events: list[Json]) -> Json:
    """Returns the last response. The scripted engine ignores grammars, so the model calls what it must not."""
    checker = StreamChecker(None)
    for event in events:
        checker.check_event(event)
    findings = [
        each for each in checker.finish() if each.code not in MODEL_FAULTS and not each.code.startswith("tool-")
    ]
    assert not findings and checker.final_response is not None, "\n".join(map(str, findings))
    return dict(checker.final_response)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_random_requests(server: RunningServer, seed: int) -> None:
    writer, statuses = BodyWriter(seed), dict[Any, int]()
    rng = random.Random(-seed)
    kinds, refusals = set[str](), list[str]()
    for _ in range(NUM_BODIES // NUM_SEEDS):
        body = writer.write_body()
        key = rng.choice((KEYS[0], KEYS[0], KEYS[0], KEYS[1]))
        reply = send(server, body, key)
        statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
        if reply.status_code != 200:
            refusals.append(reply.json()["error"]["message"][:100])
            continue
        response = check_stream(read_events(reply)) if body.get("stream") is True else reply.json()
        if body.get("background") is True and body.get("stream") is not True:
            assert response["status"] in ("queued", "in_progress", "completed")
        else:
            is_failed = response["status"] not in ("completed", "incomplete")
            assert not is_failed or response["error"]["code"] == "server_error", body
        kinds.update(list_kinds(response))
        writer.past += [item for item in response["output"] if item["type"] != "function_call"]
        length = writer.lengths.get(str(body.get("previous_response_id")), 0) + 1
        if body.get("store") is not False and key == KEYS[0] and length < 5:
            writer.response_ids.append(response["id"])
            writer.lengths[response["id"]] = length
        del writer.past[:-30], writer.response_ids[:-10]
    print(statuses, kinds, *refusals[:20], sep="\n")
    assert statuses[200] > NUM_BODIES // NUM_SEEDS // 4
    assert kinds >= {"mcp_list_tools", "mcp_call", "mcp_approval_request", "message"}
