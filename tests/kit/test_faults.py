"""Faults on demand: what each kind makes of a stream, and what the checker says about it."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import httpx
import pytest

from antiphon.kit import faults
from antiphon.kit.chat.stream import read_chat_sse
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.faults import (
    CloseConnection,
    CountedFault,
    FaultError,
    FaultInjector,
    PauseWriting,
    ResetConnection,
    WireFault,
    WriteBytes,
    apply_fault,
    break_json_reply,
    parse_fault,
    split_frames,
)
from antiphon.kit.faults.fault import FaultKind
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

CALL = '<tool_call>\n{"name": "run", "arguments": %s}\n</tool_call>'
OUTPUT = [
    "<think>\nBoth.\n</think>\n\n",
    "Let me",
    " look.\n\n",
    CALL % '{"cmd": "ls -la"}',
    "\n",
    CALL % '{"cmd":"pwd"}',
]
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}
SERVER = partial(serve, [{"name": "turn", "output": OUTPUT}])
TEXT_DELTA = "response.output_text.delta"

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/responses", {"input": "Go.", "tools": [RUN]}),
    "chat": (
        "/chat/completions",
        {
            "messages": [{"role": "user", "content": "Go."}],
            "tools": [{"type": "function", "function": {key: RUN[key] for key in ("name", "parameters")}}],
        },
    ),
    "messages": (
        "/messages",
        {
            "messages": [{"role": "user", "content": "Go."}],
            "max_tokens": 500,
            "tools": [{"name": "run", "input_schema": RUN["parameters"]}],
        },
    ),
    "completions": ("/completions", {"prompt": "Go."}),
}


def read_reply(server: RunningServer, api: str, *, stream: bool = True) -> bytes:
    path, body = REQUESTS[api]
    reply = httpx.post(server.url + path, json={"model": "scripted", "stream": stream, **body}, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.content


def join_writes(actions: Sequence[faults.WireAction]) -> bytes:
    return b"".join(action.data for action in actions if isinstance(action, WriteBytes))


def break_stream(server: RunningServer, api: str = "responses", **fault: Any) -> list[faults.WireAction]:
    return apply_fault(WireFault(**fault), split_frames(read_reply(server, api)))


def find_codes(data: bytes) -> set[str]:
    return {finding.code for finding in check_sse(data) if finding.level == "error"}


def read_events(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("api", REQUESTS)
def test_frames_of_a_stream_join_to_its_bytes(server: RunningServer, api: str) -> None:
    data = read_reply(server, api)
    frames = split_frames(data)
    assert b"".join(frames) == data and len(frames) > 5
    assert split_frames(data[:-1]) == [*frames[:-1], frames[-1][:-1]]
    assert split_frames(b"data: a\r\n\r\ndata: b\n\n") == [b"data: a\r\n\r\n", b"data: b\n\n"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "cut"}, {"terminal-missing", "item-never-done"}),
        ({"kind": "reset"}, {"terminal-missing", "item-never-done"}),
        ({"kind": "stall"}, {"terminal-missing", "item-never-done"}),
        ({"kind": "stall", "seconds": 0.1}, set()),
        ({"kind": "failed", "code": "rate_limit_exceeded", "message": "Slow down."}, set()),
        ({"kind": "split_frame"}, set()),
        ({"kind": "broken_arguments"}, {"arguments-not-json"}),
        ({"kind": "broken_arguments", "number": 2}, {"arguments-not-json"}),
        ({"kind": "duplicate_id"}, {"item-id-repeated", "item-id-prefix"}),
        ({"kind": "duplicate_id", "number": 3}, {"item-id-repeated"}),
        ({"kind": "id_changed"}, {"output-id-changed"}),
        ({"kind": "id_changed", "number": 4}, {"output-id-changed"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else " ".join(sorted(value)),
)
def test_checker_finds_exactly_the_fault(server: RunningServer, fault: dict[str, Any], expected: set[str]) -> None:
    assert find_codes(join_writes(break_stream(server, **fault))) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "wrong_order"}, {"sequence-gap", "sequence-repeated"}),
        ({"kind": "duplicate_event"}, {"sequence-repeated"}),
        ({"kind": "drop_event"}, {"sequence-gap"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else " ".join(sorted(value)),
)
@pytest.mark.parametrize("at", [None, TEXT_DELTA, "response.output_item.done", "response.in_progress"])
def test_checker_finds_a_fault_at_any_event(
    server: RunningServer, fault: dict[str, Any], expected: set[str], at: str | None
) -> None:
    assert expected <= find_codes(join_writes(break_stream(server, at=at, **fault)))


@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("at", [None, "response.output_item.added", "response.content_part.done"])
def test_failure_after_any_event_is_a_legal_stream(server: RunningServer, at: str | None, number: int) -> None:
    frames = split_frames(read_reply(server, "responses"))
    injector = FaultInjector(WireFault(kind="failed", at=at, number=number, code="rate_limit_exceeded", message="No."))
    data = join_writes([action for frame in frames for action in injector.feed(frame)])
    allowed = {"message-blank"} if at == "response.output_item.added" else set()  # a message before its first text
    assert {finding.code for finding in check_sse(data)} <= allowed
    if injector.is_applied:
        failed = read_events(data)[-1]
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"] == {"code": "rate_limit_exceeded", "message": "No."}


def test_wrong_order_swaps_two_neighbours(server: RunningServer) -> None:
    data = join_writes(break_stream(server, kind="wrong_order", at=TEXT_DELTA))
    numbers = [event["sequence_number"] for event in read_events(data)]
    place = next(index for index, number in enumerate(numbers) if number != index)
    assert numbers[place : place + 2] == [place + 1, place] and sorted(numbers) == list(range(len(numbers)))


def test_last_event_has_no_neighbour_to_swap_with(server: RunningServer) -> None:
    data = read_reply(server, "responses")
    assert join_writes(apply_fault(WireFault(kind="wrong_order", at="[DONE]"), split_frames(data))) == data


@pytest.mark.parametrize(("kind", "end"), [("cut", CloseConnection()), ("reset", ResetConnection())])
@pytest.mark.parametrize("number", [1, 2])
def test_stream_ends_after_the_marked_event(
    server: RunningServer, kind: FaultKind, end: faults.WireAction, number: int
) -> None:
    actions = break_stream(server, kind=kind, at=TEXT_DELTA, number=number)
    kinds = [event["type"] for event in read_events(join_writes(actions))]
    assert kinds.count(TEXT_DELTA) == number and kinds[-1] == TEXT_DELTA and actions[-1] == end


def test_stall_pauses_after_the_marked_event_and_may_continue(server: RunningServer) -> None:
    data = read_reply(server, "responses")
    for_ever = apply_fault(WireFault(kind="stall"), split_frames(data))
    assert for_ever[-1] == PauseWriting(math.inf) and data.startswith(join_writes(for_ever))
    actions = apply_fault(WireFault(kind="stall", seconds=2), split_frames(data))
    assert PauseWriting(2) in actions and join_writes(actions) == data


def test_split_frame_is_two_writes_with_a_pause(server: RunningServer) -> None:
    data = read_reply(server, "responses")
    actions = apply_fault(WireFault(kind="split_frame", seconds=0.5), split_frames(data))
    place = actions.index(PauseWriting(0.5))
    before, after = actions[place - 1], actions[place + 1]
    assert isinstance(before, WriteBytes) and isinstance(after, WriteBytes)
    assert before.data + after.data in split_frames(data) and join_writes(actions) == data


def test_comments_are_no_events(server: RunningServer) -> None:
    data = read_reply(server, "responses").replace(b"\n\n", b"\n\n: ping\n\n")
    kinds = set(get_args(FaultKind)) - {"status"}
    for kind in sorted(kinds):
        actions = apply_fault(WireFault(kind=kind), split_frames(data))  # type: ignore[arg-type]  # it is a FaultKind
        plain = apply_fault(WireFault(kind=kind), split_frames(data.replace(b": ping\n\n", b"")))  # type: ignore[arg-type]
        assert join_writes(actions).replace(b": ping\n\n", b"") == join_writes(plain), kind


def test_broken_arguments_are_the_same_everywhere(server: RunningServer) -> None:
    events = read_events(join_writes(break_stream(server, kind="broken_arguments", number=2)))
    item = next(
        event["item"]
        for event in events
        if event["type"] == "response.output_item.done" and event["item"].get("arguments", "").startswith('{"cmd":"pwd')
    )
    deltas = [event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event]
    done = next(
        event for event in events if event["type"].endswith("arguments.done") and event["item_id"] == item["id"]
    )
    assert "".join(deltas) == item["arguments"] == done["arguments"] == '{"cmd":"pwd"'
    assert events[-1]["response"]["output"][-1] == item
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_broken_arguments_of_a_chat_stream(server: RunningServer) -> None:
    data = join_writes(break_stream(server, "chat", kind="broken_arguments", number=2))
    checker = read_chat_sse(data)
    assert not checker.finish()
    assert [call.arguments for call in checker.choices[0].calls] == ['{"cmd": "ls -la"}', '{"cmd":"pwd"']


def test_broken_arguments_of_a_message_stream(server: RunningServer) -> None:
    events = read_events(join_writes(break_stream(server, "messages", kind="broken_arguments")))
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
    assert [*inputs.values()] == ['{"cmd": "ls -la"', '{"cmd":"pwd"}']


def test_broken_arguments_of_a_reply_in_one_piece(server: RunningServer) -> None:
    fault = WireFault(kind="broken_arguments", number=2)
    response = json.loads(break_json_reply(fault, read_reply(server, "responses", stream=False)))
    assert [item["arguments"] for item in response["output"] if "arguments" in item] == [
        '{"cmd": "ls -la"}',
        '{"cmd":"pwd"',
    ]
    completion = json.loads(break_json_reply(fault, read_reply(server, "chat", stream=False)))
    [choice] = completion["choices"]
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [
        '{"cmd": "ls -la"}',
        '{"cmd":"pwd"',
    ]


@pytest.mark.parametrize("api", ["chat", "completions", "messages"])
def test_failure_of_other_apis_is_their_own_error(server: RunningServer, api: str) -> None:
    actions = break_stream(server, api, kind="failed", code="boom", message="No.")
    data = join_writes(actions)
    error = read_events(data)[-1]["error"]
    assert error["message"] == "No." and "boom" in (error.get("code"), error["type"])
    assert data.endswith(b"data: [DONE]\n\n") == (api != "messages")


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize(
    "kind", ["cut", "reset", "stall", "split_frame", "duplicate_event", "drop_event", "wrong_order"]
)
def test_positional_kinds_find_the_text_of_every_api(server: RunningServer, api: str, kind: FaultKind) -> None:
    injector = FaultInjector(WireFault(kind=kind, number=2))
    for frame in split_frames(read_reply(server, api)):
        injector.feed(frame)
    assert injector.is_applied


def test_fault_without_its_event_is_not_applied(server: RunningServer) -> None:
    data = read_reply(server, "responses")
    for fault in (WireFault(kind="cut", at="response.refusal.delta"), WireFault(kind="broken_arguments", number=9)):
        injector = FaultInjector(fault)
        actions = [action for frame in split_frames(data) for action in injector.feed(frame)]
        assert not injector.is_applied and join_writes([*actions, *injector.finish()]) == data


def test_counted_fault_ends_after_its_times() -> None:
    twice = CountedFault(WireFault(kind="cut", times=2))
    assert [twice.take_fault() is not None for _ in range(4)] == [True, True, False, False]
    always = CountedFault(WireFault(kind="cut"))
    assert all(always.take_fault() for _ in range(9))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "steam"}, "Invalid enum value 'steam'"),
        ({}, "missing required field `kind`"),
        ({"kind": "cut", "second": 1}, "unknown field `second`"),
        ({"kind": "cut", "seconds": 1}, "the kind cut has no seconds; seconds belongs to split_frame, stall"),
        ({"kind": "status", "at": "x"}, "the kind status has no at"),
        ({"kind": "cut", "number": 0}, "number must be at least 1"),
        ({"kind": "status", "status": 200}, "status must be from 400 to 599"),
        ({"kind": "stall", "seconds": -1}, "seconds must not be negative"),
    ],
    ids=str,
)
def test_unusable_fault_is_refused_in_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(table)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_kinds_that_do_not_apply_are_refused() -> None:
    with pytest.raises(FaultError, match="duplicate_id applies to responses only, not to chat"):
        WireFault(kind="duplicate_id").check_use("chat", streamed=True)
    with pytest.raises(FaultError, match="cut applies to streams only"):
        WireFault(kind="cut").check_use("responses", streamed=False)
    for kind in ("status", "reset", "stall", "broken_arguments"):
        WireFault(kind=kind).check_use("chat", streamed=False)  # type: ignore[arg-type]  # it is a FaultKind


def test_table_has_a_row_for_every_kind() -> None:
    assert faults.__doc__ is not None
    rows = [line.split("`")[1] for line in faults.__doc__.splitlines() if line.startswith("| `")]
    assert set(get_args(FaultKind)) <= set(rows)
