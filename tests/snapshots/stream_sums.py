"""The bodies that the streams of the APIs add up to, as their SDKs build them. Shares no code with the server."""

import json
from typing import Any

from tests.invariants import check_stream

Json = dict[str, Any]


def sum_responses_events(events: list[Json]) -> Json:
    """Returns the response that a stream ends with, after a check that its events build it up."""
    return check_stream(events)


def sum_chat_chunks(chunks: list[Json]) -> Json:
    """Returns the completion that chat chunks add up to. A chunk with an error adds nothing."""
    chunks = [chunk for chunk in chunks if "error" not in chunk]
    constant = {key: value for key, value in chunks[0].items() if key not in ("choices", "usage", "object")}
    choices: dict[int, Json] = {}
    usage = None
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert {key: chunk[key] for key in constant} == constant, "id, time and model are the same in every chunk"
        assert usage is None, "nothing follows the usage"
        usage = chunk.get("usage")
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"], "message": {}, "finish_reason": None})
            assert choice["finish_reason"] is None, "nothing follows the finish reason"
            _add_chat_part(choice, part)
    return constant | {
        "object": "chat.completion",
        "choices": [choices[key] for key in sorted(choices)],
        "usage": usage,
    }


def _add_chat_part(choice: Json, part: Json) -> None:
    for key, value in part.items():
        if key == "delta":
            _add_chat_delta(choice["message"], value)
        elif isinstance(value, list):
            choice[key] = choice.get(key, []) + value
        elif key == "logprobs" and value is not None:
            choice[key] = {name: (choice.get(key) or {}).get(name, []) + (value[name] or []) for name in value}
        elif value is not None:
            choice[key] = value


def _add_chat_delta(message: Json, delta: Json) -> None:
    """Adds a delta: texts and lists are joined, and call fragments by their index."""
    for key, value in delta.items():
        if key == "tool_calls":
            for fragment in value:
                _add_call_fragment(message.setdefault(key, []), fragment)
        elif key == "role":
            assert key not in message, "the role is sent once"
            message[key] = value
        elif isinstance(value, dict):
            _join_texts(message.setdefault(key, {}), value)
        elif isinstance(value, str | list) and key in message:
            message[key] += value
        elif value is not None:
            message[key] = value


def _add_call_fragment(calls: list[Json], fragment: Json) -> None:
    if "id" in fragment:
        assert fragment["index"] == len(calls), "indices count from 0 by 1"
        calls.append({key: value for key, value in fragment.items() if key != "index"})
        return
    for kind in fragment.keys() & {"function", "custom"}:
        _join_texts(calls[fragment["index"]][kind], fragment[kind])


def _join_texts(target: Json, fragment: Json) -> None:
    for key, text in fragment.items():
        target[key] = target.get(key, "") + text


def drop_empty(value: Any) -> Any:
    """Returns a body without keys whose values say nothing: a sum cannot tell null, "" and [] apart."""
    if isinstance(value, dict):
        pairs = {key: drop_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in pairs.items() if inner not in (None, "", [], {})}
    return [drop_empty(inner) for inner in value] if isinstance(value, list) else value


MESSAGE_DELTA_KEYS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("partial_json", "input"),
}
"""Key of a delta, and of the block that it adds to, by the delta's type."""


CALL_BLOCKS = ("tool_use", "mcp_tool_use", "server_tool_use")


def sum_message_events(events: list[Json]) -> tuple[Json, list[int]]:
    """Returns the message that a stream adds up to, and the indices of its unfinished blocks.

    The input of an unfinished call is its JSON text.
    """
    assert events[0]["type"] == "message_start"
    message: Json = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    open_blocks: list[int] = []
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert not open_blocks and event["index"] == len(message["content"]), "blocks follow one another"
                message["content"].append(event["content_block"])
                if event["content_block"]["type"] in CALL_BLOCKS:
                    assert event["content_block"]["input"] == {}
                    event["content_block"]["input"] = ""
                open_blocks.append(event["index"])
            case "content_block_delta":
                assert open_blocks == [event["index"]]
                _add_message_delta(message["content"][event["index"]], event["delta"])
            case "content_block_stop":
                assert open_blocks.pop() == event["index"]
                block = message["content"][event["index"]]
                if block["type"] in CALL_BLOCKS:
                    block["input"] = json.loads(block["input"])
            case "message_delta":
                message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
    return message, open_blocks


def _add_message_delta(block: Json, delta: Json) -> None:
    if delta["type"] == "signature_delta":
        block["signature"] = delta["signature"]
    elif delta["type"] == "citations_delta":
        block.setdefault("citations", []).append(delta["citation"])
    else:
        source, target = MESSAGE_DELTA_KEYS[delta["type"]]
        block[target] += delta[source]


def sum_completion_chunks(chunks: list[Json]) -> dict[int, Json]:
    """Returns the choices that the chunks of a text completion add up to, by index."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk.get("choices", ()):
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "finish_reason": None})
            assert choice["finish_reason"] is None, "nothing follows the finish reason"
            choice["text"] += part["text"]
            for key in ("token_ids", "prompt_token_ids"):
                choice[key] = choice.get(key, []) + part.get(key, [])
            if part["logprobs"] is not None:
                columns = choice["logprobs"] or {key: [] for key in part["logprobs"]}
                choice["logprobs"] = {key: columns[key] + part["logprobs"][key] for key in columns}
            choice |= {key: part[key] for key in ("index", "finish_reason", "stop_reason")}
    return choices
