"""A server whose every field attacks the terminal of its client."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.kit.proxy.exchange import ServerExchange
from tests.kit.hostile_texts import HOSTILE_TEXTS, UNPAIRED_SURROGATE
from tests.kit.proxy.wire_servers import run_handler

Json = dict[str, Any]
JSON_HEADERS = [(b"content-type", b"application/json")]
SSE_HEADERS = [(b"content-type", b"text/event-stream")]
MAX_REPEATED_CHARS = 10_000
LONG_KEYS = ("delta", "content", "thinking", "reasoning_content", "name")
"""Keys of the texts that a long attack is in."""


def spoil(value: Any, text: str) -> Any:
    """Returns a JSON value in which every text that no client compares with a constant ends in `text`.

    A long text is in few places: a reply of a hundred megabytes is another subject.
    """
    kept = ("type", "object", "role", "status", "event", "finish_reason", "stop_reason")
    is_long = len(text) > MAX_REPEATED_CHARS
    if isinstance(value, dict):
        spoiled = {
            key: inside
            if key in kept or (is_long and isinstance(inside, str) and key not in LONG_KEYS)
            else spoil(inside, text)
            for key, inside in value.items()
        }
        return spoiled if is_long else spoiled | {f"key{text}": text}
    if isinstance(value, list):
        return [spoil(inside, text) for inside in value]
    return value + text if isinstance(value, str) else value


def list_responses_events(model: str) -> list[Json]:
    """Returns the events of a response with reasoning, a text and a call."""
    response: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": model}
    reasoning: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part: Json = {"type": "output_text", "text": "", "annotations": []}
    done_part = part | {"text": "answer"}
    done_message = message | {"status": "completed", "content": [done_part]}
    call: Json = {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "tool",
        "arguments": "",
        "status": "in_progress",
    }
    done_call = call | {"arguments": '{"place":"here"}', "status": "completed"}
    done_reasoning = reasoning | {"content": [{"type": "reasoning_text", "text": "thought"}]}
    output = [done_reasoning, done_message, done_call]
    text_place: Json = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    return [
        {"type": "response.created", "response": response | {"output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": reasoning},
        {"type": "response.reasoning_text.delta", "item_id": "rs_1", "output_index": 0, "content_index": 0, "delta": "thought"},
        {"type": "response.output_item.done", "output_index": 0, "item": done_reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.content_part.added", **text_place, "part": part},
        {"type": "response.output_text.delta", **text_place, "delta": "answer"},
        {"type": "response.content_part.done", **text_place, "part": done_part},
        {"type": "response.output_item.done", "output_index": 1, "item": done_message},
        {"type": "response.output_item.added", "output_index": 2, "item": call},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 2, "delta": '{"place":"here"}'},
        {"type": "response.output_item.done", "output_index": 2, "item": done_call},
        {"type": "response.completed", "response": response | {"status": "completed", "output": output}},
    ]  # fmt: skip


def list_chat_chunks(model: str) -> list[Json]:
    """Returns the chunks of a chat completion with reasoning, a text and a call."""
    head: Json = {"id": "chatcmpl_1", "object": "chat.completion.chunk", "created": 1, "model": model}
    call: Json = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "tool", "arguments": "{}"}}
    deltas: list[Json] = [
        {"role": "assistant"},
        {"reasoning_content": "thought"},
        {"content": "answer"},
        {"tool_calls": [call]},
    ]
    chunks = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return [*chunks, head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


def list_messages_events(model: str) -> list[Json]:
    """Returns the events of an Anthropic message with thinking, a text and a call."""
    blocks: list[tuple[Json, Json]] = [
        ({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "thought"}),
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "answer"}),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "tool", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a":"b"}'},
        ),
    ]
    events: list[Json] = [
        {
            "type": "message_start",
            "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []},
        }
    ]
    for index, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]


def encode_stream(events: list[Json], *, names: bool = True) -> bytes:
    """Returns server-sent events. ASCII, so that an unpaired surrogate is an escape of JSON as on a real wire."""
    frames = [(f"event: {each['type']}\n" if names else "") + f"data: {json.dumps(each)}\n\n" for each in events]
    return "".join(frames).encode()


ENDPOINTS = {
    "/v1/responses": lambda text: encode_stream(spoil(list_responses_events("m"), text)),
    "/v1/chat/completions": lambda text: encode_stream(spoil(list_chat_chunks("m"), text), names=False) + b"data: [DONE]\n\n",
    "/v1/messages": lambda text: encode_stream(spoil(list_messages_events("m"), text)),
}  # fmt: skip


@contextmanager
def run_hostile_server(text: str, *, is_refusing: bool = False) -> Iterator[str]:
    """Runs a server that puts a text into every field of its replies. Yields its URL without a path.

    `is_refusing`: every request but those for the list of models gets an error.
    """

    async def handle(exchange: ServerExchange) -> None:
        await exchange.read_body()
        path = exchange.request.path.partition("?")[0]
        if path == "/v1/models":
            status, headers, body = (
                200,
                JSON_HEADERS,
                json.dumps({"data": [{"id": f"m{text}", f"k{text}": text}]}).encode(),
            )
        elif is_refusing or path not in ENDPOINTS:
            error = {"error": {"message": f"no{text}", "type": text, "code": text, "param": text}}
            status, headers, body = 400, JSON_HEADERS, json.dumps(error).encode()
        else:
            status, headers, body = 200, SSE_HEADERS, ENDPOINTS[path](text)
        exchange.start_reply(status, headers)
        exchange.write_data(body)
        exchange.end_reply()

    with run_handler(handle) as url:
        yield url


ATTACKS = {"sequences": "".join(text for name, text in HOSTILE_TEXTS.items() if name != "long") + UNPAIRED_SURROGATE, "long": HOSTILE_TEXTS["long"]}  # fmt: skip
"""All attacks in one text, and one line of a megabyte."""
