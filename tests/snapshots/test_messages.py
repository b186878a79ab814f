"""Anthropic messages of every case: the unstreamed message is the sum of its events, and agrees with the response."""

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from tests.snapshots.cases import CASES, Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, MessageResult, read_chat, read_message, read_responses

READ_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused]
DELTA_KEYS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("partial_json", "input"),
}
"""Key of a delta, and of the block that it adds to, by the delta's type."""
STEPS = (0, 1, 3)
"""Tokens of a chunk of the engine; 0: as the case has it."""


async def read_case(case: Case) -> CaseResult:
    return await (read_responses if "responses" in case.faces else read_chat)(case)


def sum_events(events: list[dict[str, Any]]) -> tuple[dict[str, Any], list[int]]:
    """Returns the message that the anthropic SDK builds from a stream, and the indices of its unfinished blocks."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    open_blocks: list[int] = []
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert not open_blocks and event["index"] == len(message["content"]), "blocks follow one another"
                message["content"].append(event["content_block"])
                if event["content_block"]["type"] == "tool_use":
                    assert event["content_block"]["input"] == {}
                    event["content_block"]["input"] = ""
                open_blocks.append(event["index"])
            case "content_block_delta":
                assert open_blocks == [event["index"]]
                add_delta(message["content"][event["index"]], event["delta"])
            case "content_block_stop":
                assert open_blocks.pop() == event["index"]
                block = message["content"][event["index"]]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["input"])
            case "message_delta":
                message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
    return message, open_blocks


def add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta["type"] == "signature_delta":
        block["signature"] = delta["signature"]
    elif delta["type"] == "citations_delta":
        block.setdefault("citations", []).append(delta["citation"])
    else:
        source, target = DELTA_KEYS[delta["type"]]
        block[target] += delta[source]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", READ_CASES, ids=lambda case: case.name)
async def test_message_is_the_sum_of_its_events(case: Case, step: int) -> None:
    result = await read_message(await read_case(replace(case, step=step or case.step)))
    types = [event["type"] for event in result.events]
    if isinstance(result.reply, ApiError):
        assert types[-1] == "error" and "message_stop" not in types
        assert result.events[-1]["error"]["message"] == result.reply.message
        return
    assert types[-2:] == ["message_delta", "message_stop"] and types.count("message_start") == 1
    message, unfinished = sum_events(result.events)
    complete = [block for index, block in enumerate(message["content"]) if index not in unfinished]
    assert all(message["content"][index]["type"] == "tool_use" for index in unfinished), "only a call stays open"
    assert result.reply == message | {"content": complete}


STOP_REASONS = {"completed": ("end_turn", "tool_use", "stop_sequence", "refusal"), "incomplete": ("max_tokens",)}


@pytest.mark.parametrize("case", [case for case in READ_CASES if not case.fails], ids=lambda case: case.name)
async def test_message_agrees_with_the_response(case: Case) -> None:
    result = await read_case(case)
    assert result.log is not None
    response, message = result.log.response, (await read_message(result)).reply
    assert not isinstance(message, ApiError)
    expected = [block for item in response.output for block in expected_blocks(item)]
    assert [comparable(block) for block in message["content"]] == expected
    reasons = STOP_REASONS["completed" if response.status == "completed" else "incomplete"]
    assert message["stop_reason"] in reasons
    if message["stop_reason"] in ("end_turn", "tool_use"):
        assert (message["stop_reason"] == "tool_use") == any(block[0] == "tool_use" for block in expected)
    usage = response.usage
    assert usage is not None
    sent = message["usage"]
    assert sent["input_tokens"] + sent["cache_read_input_tokens"] == usage.input_tokens
    assert sent["cache_read_input_tokens"] == usage.input_tokens_details.cached_tokens
    assert sent["output_tokens"] == usage.output_tokens
    assert message["id"].partition("_")[2] == response.id.partition("_")[2]


def expected_blocks(item: Any) -> list[tuple[Any, ...]]:
    """Returns the blocks of an output item, without what Responses does not have."""
    match item.__struct_config__.tag:
        case "message":
            return [("text", getattr(part, "text", None) or getattr(part, "refusal", "")) for part in item.content]
        case "reasoning":
            parts = item.content or item.summary
            return [("thinking", "".join(part.text for part in parts))] if parts else []
        case "function_call" if item.status == "completed":
            return [("tool_use", item.call_id, item.name, json.loads(item.arguments))]
        case "custom_tool_call" if item.status == "completed":
            return [("tool_use", item.call_id, item.name, {"input": item.input})]
    return []


def comparable(block: dict[str, Any]) -> tuple[Any, ...]:
    match block["type"]:
        case "tool_use":
            return "tool_use", block["id"], block["name"], block["input"]
        case kind:
            return kind, block[kind]


async def test_omitted_thinking_leaves_only_its_signature() -> None:
    [case] = [case for case in READ_CASES if case.name == "sealed_reasoning"]
    result = await read_message(await read_case(case), show_thinking=False)
    assert not isinstance(result.reply, ApiError)
    thinking, text = result.reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "")
    assert thinking["signature"] == "<reasoning: A greeting is due.>" and text["text"] == "Hello."
    assert sum_events(result.events)[0] == result.reply


def test_frames_have_one_line_of_data() -> None:
    result = MessageResult(b'event: ping\ndata: {"type": "ping"}\n\n', {})
    assert result.events == [{"type": "ping"}]
