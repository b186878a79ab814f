"""Randomly mutated request bodies: each is read, or rejected with an `ApiError` of status 400 or 404."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields import list_fields
from antiphon.app.requests.responses.body import ResponsesBody
from tests.app.requests.request_builders import read_chat_spec, read_responses_spec
from tests.counts import FULL_COUNTS

NUM_MUTATIONS = 40_000 if FULL_COUNTS else 2_000
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**70, -(10**400), 0.5, 1e308, "", "x", "\0", "a\nb", "é" * 70, "auto", "none", "function", "message",
    [], [[]], [None], [0], ["x"], [{}], {}, {"type": None}, {"type": "x"}, {"type": "function"}, {"type": ["x"]}, {"": ""}, {"id": 5},
    {"role": "user", "content": []}, {"type": "item_reference", "id": []}, {"type": "function", "name": "other"},
    {"format": {"type": "json_schema", "name": "n", "schema": {}}}, {"type": "function", "function": {"name": "weather"}},
]  # fmt: skip
TOOL = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": False}
GRAMMAR = {"syntax": "lark", "definition": "start: /a/"}
PART = {"type": "input_text", "text": "x"}
FULL_RESPONSES: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [PART, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, {"type": "input_file", "file_data": "QQ=="}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": [PART]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}, {"type": "refusal", "refusal": "n"}]},
        {"type": "additional_tools", "tools": [{"type": "function", **TOOL}]},
        {"type": "compaction", "encrypted_content": "sealed:x"},
        {"type": "web_search_call", "id": "ws_1"},
    ],
    "tools": [
        {"type": "function", **TOOL, "name": "other"},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", **GRAMMAR}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **TOOL}]},
        {"type": "web_search"},
    ],
    "tool_choice": "none", "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"],
    "stream": True, "stream_options": {"include_obfuscation": False}, "stop": ["x"], "logit_bias": {"5": 1}, "temperature": 1,
}  # fmt: skip
FULL_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "x", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "file", "file": {"file_data": "QQ=="}}]},
        {
            "role": "assistant", "content": [{"type": "text", "text": "x"}], "refusal": "n", "reasoning_content": "r",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "x"}]},
    ],
    "tools": [
        {"type": "function", "function": TOOL},
        {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": GRAMMAR}}},
    ],
    "tool_choice": "auto", "response_format": {"type": "text"}, "n": 2,
    "chat_template_kwargs": {"enable_thinking": True}, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True,
    "top_logprobs": 1, "stop": "x", "logit_bias": {"5": 1}, "modalities": ["text"],
}  # fmt: skip


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield (*path, key)
        yield from list_paths(child, (*path, key))


def mutate_body(body: dict[str, Any], dice: random.Random, names: list[str]) -> dict[str, Any]:
    """Returns a copy of the body with one or two values replaced, removed, or added at the top level."""
    changed = copy.deepcopy(body)
    for _ in range(dice.choice((1, 1, 2))):
        if dice.random() < 0.2:
            changed[dice.choice(names)] = dice.choice(ODD_VALUES)
            continue
        path = dice.choice(list(list_paths(changed)))
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        if dice.random() < 0.2:
            del parent[path[-1]]
        else:
            parent[path[-1]] = copy.deepcopy(dice.choice(ODD_VALUES))
    return changed


@pytest.mark.parametrize(
    ("reader", "table", "body"),
    [
        (read_responses_spec, list_fields(ResponsesBody), FULL_RESPONSES),
        (read_chat_spec, list_fields(ChatBody), FULL_CHAT),
    ],
    ids=["responses", "chat"],
)
def test_mutated_body_is_read_or_rejected(reader: Any, table: Any, body: dict[str, Any]) -> None:
    dice, names = random.Random(1), [field.name for field in table]
    statuses = set()
    for _ in range(NUM_MUTATIONS):
        statuses.add(read_status(reader, mutate_body(body, dice, names)))
    assert statuses <= {200, 400, 404}
    assert {200, 400} <= statuses


def read_status(reader: Any, body: dict[str, Any]) -> int:
    """Returns the status of the reply, or 0 for an empty or overlong message. Exceptions other than `ApiError` are raised."""
    try:
        reader(**body)
    except ApiError as error:
        message = msgspec.json.decode(error.encoded_body)["error"]["message"]
        return error.status if 0 < len(message) < 2000 else 0
    return 200


@pytest.mark.parametrize(
    ("reader", "body"), [(read_responses_spec, FULL_RESPONSES), (read_chat_spec, FULL_CHAT)], ids=["responses", "chat"]
)
def test_unmutated_body_is_accepted(reader: Any, body: dict[str, Any]) -> None:
    reader(**body)
