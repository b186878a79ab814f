"""Legal chat streams, and ways to break them."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Chunk = dict[str, Any]
REQUEST = {"stream": True, "stream_options": {"include_usage": True}}


INTEGER_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"name": "answer", "strict": True, "schema": INTEGER_SCHEMA}
STRICT_TOOL = {
    "name": "get_weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def build_chunk(delta: Chunk | None = None, finish_reason: str | None = None, index: int = 0, **keys: Any) -> Chunk:
    """Returns a chunk with one choice, or with none if `delta` is None."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    choices = [] if delta is None else [choice]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return head | {"choices": choices} | keys


def build_usage() -> Chunk:
    return {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}


def build_text_chunks() -> list[Chunk]:
    """Returns the chunks of an answer."""
    return [
        build_chunk({"role": "assistant", "content": ""}),
        build_chunk({"content": "Hel"}),
        build_chunk({"content": "lo"}),
        build_chunk({}, "stop"),
        build_chunk(usage=build_usage()),
    ]


def build_call_chunks() -> list[Chunk]:
    """Returns the chunks of two calls."""
    first = {"index": 0, "id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    second = {"index": 1, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    return [
        build_chunk({"role": "assistant", "content": None, "tool_calls": [first]}),
        build_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
        build_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}),
        build_chunk({"tool_calls": [second]}),
        build_chunk({}, "tool_calls"),
        build_chunk(usage=build_usage()),
    ]


def build_json_chunks() -> list[Chunk]:
    """Returns the chunks of an answer in JSON."""
    chunks = build_text_chunks()
    for chunk, text in zip(chunks[1:3], ('{"a": ', "1}"), strict=True):
        chunk["choices"][0]["delta"]["content"] = text
    return chunks


def build_choice_chunks() -> list[Chunk]:
    """Returns the chunks of two choices."""
    return [
        build_chunk({"role": "assistant", "content": "a"}),
        build_chunk({"role": "assistant", "content": "b"}, index=1),
        build_chunk({}, "stop"),
        build_chunk({}, "length", index=1),
        build_chunk(usage=build_usage()),
    ]


LEGAL_CHATS: dict[str, tuple[Callable[[], list[Chunk]], dict[str, Any]]] = {
    "text": (build_text_chunks, REQUEST),
    "calls": (build_call_chunks, REQUEST),
    "choices": (build_choice_chunks, REQUEST | {"n": 2}),
    "json": (build_json_chunks, REQUEST | {"response_format": {"type": "json_schema", "json_schema": JSON_SCHEMA}}),
    "strict_calls": (build_call_chunks, REQUEST | {"tools": [{"type": "function", "function": STRICT_TOOL}]}),
    "loose_calls": (
        build_call_chunks,
        REQUEST | {"tools": [{"type": "function", "function": STRICT_TOOL | {"strict": False}}]},
    ),
    "error": (lambda: [*build_text_chunks()[:2], {"error": {"message": "It broke.", "type": "server_error"}}], REQUEST),
}


def encode_chat(chunks: list[Chunk]) -> bytes:
    """Returns the chunks as frames."""
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatMutant:
    """A change of a legal chat stream: of its chunks, or of its bytes."""

    name: str
    base: str
    code: str
    change: Callable[[list[Chunk]], Any] = lambda chunks: None
    change_bytes: Callable[[bytes], bytes] = lambda data: data

    def build(self) -> bytes:
        """Returns the bytes of the broken stream."""
        chunks = copy.deepcopy(LEGAL_CHATS[self.base][0]())
        changed = self.change(chunks)
        chunks = changed if isinstance(changed, list) else chunks
        return self.change_bytes(encode_chat(chunks))


def choice(chunks: list[Chunk], number: int) -> Chunk:
    found: Chunk = chunks[number]["choices"][0]
    return found


def call(chunks: list[Chunk], number: int) -> Chunk:
    found: Chunk = choice(chunks, number)["delta"]["tool_calls"][0]
    return found


C = ChatMutant
CHAT_MUTANTS = [
    C("chat_with_event_names", "text", "chat-event-name", change_bytes=lambda data: b"event: chunk\n" + data),
    C("chat_object_changed", "text", "chat-object", lambda chunks: chunks[1].update(object="chat.completion")),
    C("chat_model_missing", "text", "chat-key-missing", lambda chunks: chunks[1].pop("model")),
    C("chat_created_missing", "text", "chat-key-missing", lambda chunks: chunks[0].pop("created")),
    C("chat_id_changed", "text", "chat-key-changed", lambda chunks: chunks[1].update(id="chatcmpl-2")),
    C("chat_created_changed", "text", "chat-key-changed", lambda chunks: chunks[3].update(created=5)),
    C("chat_index_above_n", "text", "chat-choice-index", lambda chunks: choice(chunks, 1).update(index=1)),
    C("chat_index_missing", "text", "chat-choice-index", lambda chunks: choice(chunks, 1).pop("index")),
    C("chat_second_choice_first", "choices", "chat-choice-order", lambda chunks: chunks.insert(0, chunks.pop(1))),
    C("chat_delta_missing", "text", "chat-delta-missing", lambda chunks: choice(chunks, 1).pop("delta")),
    C("chat_delta_null", "text", "chat-delta-missing", lambda chunks: choice(chunks, 3).update(delta=None)),
    C("chat_delta_after_finish", "text", "chat-delta-after-finish", lambda chunks: chunks.insert(2, chunks.pop(3))),
    C("chat_without_role", "text", "chat-role-missing", lambda chunks: choice(chunks, 0)["delta"].pop("role")),
    C("chat_role_late", "text", "chat-role-missing", lambda chunks: chunks.insert(1, chunks.pop(0))),
    C("chat_role_repeated", "text", "chat-role-repeated", lambda chunks: choice(chunks, 2)["delta"].update(role="assistant")),
    C("chat_call_index_gap", "calls", "chat-call-index", lambda chunks: call(chunks, 3).update(index=2)),
    C("chat_call_index_missing", "calls", "chat-call-index", lambda chunks: call(chunks, 1).pop("index")),
    C("chat_call_without_id", "calls", "chat-call-start", lambda chunks: call(chunks, 0).pop("id")),
    C("chat_call_without_type", "calls", "chat-call-start", lambda chunks: call(chunks, 3).pop("type")),
    C("chat_call_without_name", "calls", "chat-call-start", lambda chunks: call(chunks, 0)["function"].pop("name")),
    C("chat_call_name_repeated", "calls", "chat-call-key-repeated", lambda chunks: call(chunks, 1)["function"].update(name="get_weather")),
    C("chat_arguments_break_their_schema", "strict_calls", "arguments-schema", lambda chunks: call(chunks, 2)["function"].update(arguments="7}")),
    C("chat_arguments_break_a_loose_schema", "loose_calls", "arguments-schema-not-strict", lambda chunks: call(chunks, 2)["function"].update(arguments="7}")),
    C("chat_arguments_are_cut", "strict_calls", "arguments-not-json", lambda chunks: call(chunks, 2)["function"].update(arguments="7")),
    C("chat_text_breaks_its_schema", "json", "text-schema", lambda chunks: choice(chunks, 2)["delta"].update(content='"one"}')),
    C("chat_text_is_no_json", "json", "text-not-json", lambda chunks: choice(chunks, 2)["delta"].update(content="1")),
    C("chat_call_id_repeated", "calls", "chat-call-key-repeated", lambda chunks: call(chunks, 2).update(id="call_0")),
    C("chat_finish_missing", "text", "chat-finish-missing", lambda chunks: chunks.pop(3)),
    C("chat_finish_twice", "text", "chat-finish-repeated", lambda chunks: chunks.insert(3, chunks[3])),
    C("chat_finish_unknown", "text", "chat-finish-reason", lambda chunks: choice(chunks, 3).update(finish_reason="eos")),
    C("chat_calls_stop", "calls", "chat-finish-reason", lambda chunks: choice(chunks, 4).update(finish_reason="stop")),
    C("chat_text_ends_with_calls", "text", "chat-finish-reason", lambda chunks: choice(chunks, 3).update(finish_reason="tool_calls")),
    C("chat_usage_missing", "text", "chat-usage-missing", lambda chunks: chunks.pop()),
    C("chat_usage_first", "text", "chat-usage-not-last", lambda chunks: chunks.insert(0, chunks.pop())),
    C("chat_usage_with_choices", "text", "chat-usage-choices", lambda chunks: [*chunks[:3], chunks[3] | {"usage": build_usage()}]),
    C("chat_usage_total_wrong", "text", "usage-total", lambda chunks: chunks[4]["usage"].update(total_tokens=1)),
    C("chat_usage_is_text", "text", "usage-field", lambda chunks: chunks[4]["usage"].update(total_tokens="18")),
    C("chat_chunk_after_an_error", "error", "chat-chunk-after-error", lambda chunks: chunks.append(chunks[1])),
    C("chat_without_end_marker", "text", "chat-done-marker-missing", change_bytes=lambda data: data.replace(b"data: [DONE]\n\n", b"")),
    C("chat_chunk_after_end_marker", "text", "frame-after-done-marker", change_bytes=lambda data: data + b"data: {}\n\n"),
    C("chat_chunk_is_no_json", "text", "data-not-json", change_bytes=lambda data: data.replace(b'"choices"', b"choices", 1)),
]  # fmt: skip
