"""Lines of streams: the same for every source, chunking and choice of ids."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai._models import construct_type  # as the SDK does, without validation
from openai.types.responses import ResponseStreamEvent

from antiphon.kit.snapshot.sources import parse_sse, read_events, split_streams
from antiphon.kit.snapshot.stream_text import format_stream
from tests.clients.sdk_helpers import chat_body, get, make_case_registry, open_sdk, parse_events, post, responses_body
from tests.serving import RunningServer, serve
from tests.snapshots.cases import CASES, Case

CASE_NAMES = ("reasoning_text_and_two_calls", "log_probabilities", "commentary_then_final", "refusal")
PLAYED = [case for case in CASES if case.name in CASE_NAMES and not case.cancel]


SERVER = partial(serve, partial(make_case_registry, PLAYED))


def record(server: RunningServer, case: Case, path: str = "responses") -> bytes:
    body = responses_body(case) if path == "responses" else chat_body(case)
    reply = post(f"{server.url}/{path}", json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    return reply.content


TEXT_STREAM: list[dict[str, Any]] = [
    {"type": "response.created", "sequence_number": 0, "response": {"object": "response", "id": "resp_a", "status": "in_progress", "output": [], "created_at": 17}},
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {"type": "message", "id": "msg_a", "status": "in_progress", "role": "assistant", "content": []}},
    {"type": "response.output_text.delta", "sequence_number": 2, "output_index": 0, "content_index": 0, "item_id": "msg_a", "delta": "call_me, m"},
    {"type": "response.output_text.delta", "sequence_number": 3, "output_index": 0, "content_index": 0, "item_id": "msg_a", "delta": "sg_a"},
    {"type": "response.output_text.done", "sequence_number": 4, "output_index": 0, "content_index": 0, "item_id": "msg_a", "text": "call_me, msg_a"},
    {"type": "response.completed", "sequence_number": 5, "response": {"object": "response", "id": "resp_a", "status": "completed", "created_at": 17, "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        "output": [{"type": "message", "id": "msg_a", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "call_me, msg_a", "annotations": []}]}]}},
]  # fmt: skip
TEXT_LINES = """\
created                         in_progress
output_item.added               [0] message msg_1 in_progress
output_text.delta               [0.0] msg_1 "call_me, msg_a"
output_text.done                [0.0] msg_1 "call_me, msg_a"
completed                       completed
     - message msg_1 completed output_text "call_me, msg_a"
"""


def change(position: int, **fields: Any) -> list[dict[str, Any]]:
    return [event | (fields if number == position else {}) for number, event in enumerate(TEXT_STREAM)]


def frames(events: list[dict[str, Any]]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def test_ids_are_numbered_and_texts_that_look_like_ids_stay() -> None:
    assert format_stream(TEXT_STREAM) == TEXT_LINES


def test_ids_without_a_known_prefix_are_numbered_by_kind() -> None:
    renamed = json.loads(json.dumps(TEXT_STREAM).replace('"msg_a"', '"0b9c-77"').replace('"resp_a"', '"x"'))
    assert format_stream(renamed) == TEXT_LINES


@pytest.mark.parametrize(
    ("position", "fields", "line"),
    [
        (3, {"delta": "SG_a"}, '"call_me, mSG_a"'),
        (3, {"item_id": "msg_b"}, 'msg_2 "sg_a"'),
        (3, {"content_index": 1}, '[0.1] msg_1 "sg_a"'),
        (4, {"text": "no"}, '"no"'),
        (4, {"type": "response.refusal.done"}, "refusal.done"),
        (2, {"delta": None}, "null"),
        (1, {"item": None}, "output_item.added"),
        (5, {"response": {"status": "failed", "error": {"message": "resp_a is gone", "code": "x"}}}, "resp_1 is gone"),
    ],
)
def test_a_changed_event_changes_the_lines(position: int, fields: dict[str, Any], line: str) -> None:
    text = format_stream(change(position, **fields))
    assert text != TEXT_LINES and line in text


def test_a_moved_or_missing_event_changes_the_lines() -> None:
    for position in range(len(TEXT_STREAM)):
        assert format_stream([*TEXT_STREAM[:position], *TEXT_STREAM[position + 1 :]]) != TEXT_LINES
    late_delta = [*TEXT_STREAM[:3], TEXT_STREAM[4], TEXT_STREAM[3], TEXT_STREAM[5]]
    assert format_stream(late_delta).count("output_text.delta") == 2


def test_times_sequence_numbers_and_keepalives_are_left_out() -> None:
    other = json.loads(json.dumps(TEXT_STREAM).replace('"created_at": 17', '"created_at": 99'))
    for event in other:
        event["sequence_number"] += 7
    other.insert(3, {"type": "keepalive", "sequence_number": 99})
    assert format_stream(other) == TEXT_LINES
    unmerged = format_stream(TEXT_STREAM, merge=False)
    assert unmerged.splitlines()[2] == '  2  output_text.delta               [0.0] msg_1 "call_me, m"'


def test_repeated_stages_of_a_tool_are_left_out() -> None:
    def lines(*kinds: str, items: str = "a") -> str:
        ids = items * len(kinds) if len(items) == 1 else items
        events = [
            {"type": f"response.{kind}", "item_id": f"mcp_{item}", "output_index": 0}
            for kind, item in zip(kinds, ids, strict=True)
        ]
        return format_stream(events)

    stage, end = "mcp_call.in_progress", "mcp_call.completed"
    assert lines(stage, stage, stage, end) == lines(stage, end)
    assert lines(stage, end, stage).count(stage) == 2, "not in a row"
    assert lines(stage, stage, items="ab").count(stage) == 2, "another item"


def test_usage_is_shown_on_request() -> None:
    assert "tokens" not in format_stream(TEXT_STREAM)
    assert "completed  tokens 3 (cached -) + 2 = 5" in format_stream(TEXT_STREAM, usage=True)


def test_encrypted_texts_are_left_out() -> None:
    def lines(secret: str) -> str:
        item = {"type": "reasoning", "id": "rs_a", "encrypted_content": secret, "summary": []}
        return format_stream([{"type": "response.output_item.done", "output_index": 0, "item": item}])

    assert lines("gAAAA") == lines("gBBBB") == 'output_item.done                [0] reasoning rs_1 - encrypted="…"\n'


def test_unreadable_and_cut_frames_are_shown() -> None:
    data = frames(TEXT_STREAM[:2]) + b"data: {oops\n\n" + b"event: response.out\ndata: {"
    lines = format_stream(data).splitlines()
    assert lines[2:] == [
        '(unreadable)                    "{oops"',
        '(unreadable)                    "event: response.out\\ndata: {"',
    ]
    assert format_stream(frames(TEXT_STREAM) + b": keep alive\n\ndata: [DONE]\n\n") == TEXT_LINES


def test_sources_without_events_are_refused() -> None:
    async def stream() -> Any:
        yield TEXT_STREAM[0]

    with pytest.raises(TypeError, match=r"\[event async for event in stream\]"):
        format_stream(stream())
    with pytest.raises(TypeError, match="cannot read events from int"):
        format_stream(3)
    with pytest.raises(TypeError, match="object is no event"):
        format_stream([object()])


def test_every_source_gives_the_same_lines(tmp_path: Path) -> None:
    raw = frames(TEXT_STREAM)
    recorded = tmp_path / "stream.sse"
    recorded.write_bytes(raw)
    lines = tmp_path / "stream.jsonl"
    lines.write_text("\n".join(map(json.dumps, TEXT_STREAM)))
    array = tmp_path / "stream.json"
    array.write_text(json.dumps(TEXT_STREAM, indent=1))
    models = [construct_type(type_=ResponseStreamEvent, value=event) for event in TEXT_STREAM]
    agent_events = [type("Raw", (), {"type": "raw_response_event", "data": model}) for model in models]
    other = type("Derived", (), {"type": "run_item_stream_event"})
    sources: list[Any] = [
        *(raw, raw.decode(), raw.replace(b"\n", b"\r\n"), recorded, lines, array, httpx.Response(200, content=raw)),
        *(iter(TEXT_STREAM), tuple(TEXT_STREAM), models, [*agent_events, other], raw.decode().splitlines()),
        [raw[start : start + 7] for start in range(0, len(raw), 7)],
    ]
    for source in sources:
        assert format_stream(source) == TEXT_LINES


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.name)
def test_sdk_and_wire_give_the_same_lines(server: RunningServer, case: Case) -> None:
    body = responses_body(case)
    with open_sdk(server) as (client, replies):
        helper = {key: body[key] for key in ("model", "input", "tools")}
        with client.responses.stream(**helper, extra_body={k: v for k, v in body.items() if k not in helper}) as stream:
            events = list(stream)
        assert format_stream(events) == format_stream(replies.last())
        final = format_stream(stream.get_final_response())
    tail = format_stream(replies.last()).split("\ncompleted ")[1].split("\n", 1)[1]
    assert final.split("\n", 1)[1] == tail


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.name)
@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_chunking_does_not_change_the_lines(server: RunningServer, case: Case, path: str) -> None:
    events = parse_events(record(server, case, path))
    expected = format_stream(events)
    for seed in range(20):
        generator = random.Random(seed)
        split = [piece for event in events for piece in split_event(event, generator)]
        assert len(split) > len(events) or case.name == "log_probabilities"
        assert format_stream(split) == expected


def split_event(event: dict[str, Any], generator: random.Random) -> list[dict[str, Any]]:
    """Splits the text of an event at random places, some of them at its ends."""
    text = event.get("delta")
    if isinstance(text, str) and not event.get("logprobs"):
        return [event | {"delta": piece} for piece in split_text(text, generator)]
    (choice,) = event.get("choices") or [{}]
    delta = choice.get("delta") or {}
    for key in ("content", "reasoning_content"):
        if isinstance(delta.get(key), str) and not choice.get("logprobs"):
            first, *others = split_text(delta[key], generator)
            deltas = [delta | {key: first}, *({key: piece} for piece in others)]
            return [event | {"choices": [choice | {"delta": piece}]} for piece in deltas]
    return [event]


def split_text(text: str, generator: random.Random) -> list[str]:
    cuts = sorted(generator.randint(0, len(text)) for _ in range(3))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_chat_lines() -> None:
    def chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
        return {
            "object": "chat.completion.chunk",
            "id": "chatcmpl-1",
            "choices": [{"index": 0, "delta": delta, **choice}],
        }

    def call(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
        return {
            "tool_calls": [
                {"index": index, "function": {"arguments": arguments, **fields.pop("function", {})}, **fields}
            ]
        }

    chunks = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in ("He", "", "llo")),
        chunk(call(0, "", id="call_x", type="function", function={"name": "run"})),
        chunk(call(1, "{", id="call_y", type="function", function={"name": "go"})),
        *(chunk(call(index, piece)) for index, piece in ((0, "{"), (1, "}"), (0, "}"))),
        chunk({}, finish_reason="tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 3}},
    ]
    assert format_stream(chunks) == (
        '  [0]  {"role": "assistant"}\n'
        '  [0]  {"content": "Hello"}\n'
        '  [0]  {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "run", "arguments": "{}"}}]}\n'
        '  [0]  {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "go", "arguments": "{}"}}]}\n'
        "  [0]  {}  finish_reason=tool_calls\n"
    )
    assert 'usage  {"prompt_tokens": 3}' in format_stream(chunks, usage=True)
    assert chunks[4]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == "", (
        "the events are not changed"
    )


def test_chat_stream_of_the_sdk(server: RunningServer) -> None:
    body = chat_body(PLAYED[0])
    with open_sdk(server) as (client, replies):
        fields = {key: body[key] for key in ("model", "messages", "tools")}
        chunks = list(client.chat.completions.create(**fields, stream=True))
        expected = format_stream(replies.last())
        assert format_stream(chunks) == expected
        with client.chat.completions.stream(**fields) as stream:
            assert format_stream(list(stream)) == expected


def test_whole_replies_have_lines(server: RunningServer) -> None:
    body = responses_body(PLAYED[0])
    response = post(f"{server.url}/responses", json=body).json()
    assert format_stream(response).startswith("response  completed\n     - ")
    completion = post(f"{server.url}/chat/completions", json=chat_body(PLAYED[0])).json()
    assert "finish_reason=tool_calls" in format_stream(completion)
    with OpenAI(base_url=server.url, api_key="none") as client:
        assert format_stream(client.responses.retrieve(response["id"])) == format_stream(response)
    assert format_stream(get(f"{server.url}/responses/{response['id']}")) == format_stream(response)


def test_an_agents_stream_is_split_into_its_responses() -> None:
    assert split_streams([*TEXT_STREAM, *TEXT_STREAM]) == [TEXT_STREAM, TEXT_STREAM]
    assert format_stream([*TEXT_STREAM, *TEXT_STREAM]) == f"{TEXT_LINES}\n{TEXT_LINES}"


def test_reading_keeps_the_events() -> None:
    assert parse_sse(frames(TEXT_STREAM)) == read_events(TEXT_STREAM) == TEXT_STREAM
