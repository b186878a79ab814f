"""Invariants of every Responses stream, checked by all tests that read one.

`check_stream(events)` takes the decoded events as dictionaries, in order, and raises an `AssertionError` that names the
violated rule. It implements the API contract and shares no code with the machine, so it can check any server's stream.
"""

import json
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

STATUS_OF_TERMINAL_EVENT = {
    "response.completed": {"completed"},
    "response.incomplete": {"incomplete", "cancelled"},
    "response.failed": {"failed"},
}
RESPONSE_KEYS = frozenset(
    """id object created_at completed_at status incomplete_details model previous_response_id instructions output error
    tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs
    temperature reasoning usage max_output_tokens max_tool_calls store background service_tier metadata
    safety_identifier prompt_cache_key""".split()
)
CONSTANT_KEYS = RESPONSE_KEYS - {"status", "completed_at", "incomplete_details", "output", "error", "usage"}
NEVER_NULL = ("phase", "encrypted_content", "content", "status", "namespace")
DONE_EVENT_TYPES = {
    "response.output_text.done": "text",
    "response.refusal.done": "refusal",
    "response.reasoning_text.done": "text",
    "response.reasoning_summary_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
ITEM_TYPE_OF_EVENT = {
    "output_text": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "reasoning_summary_text": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
}


def check_stream(events: Sequence[Event]) -> Event:
    """Checks a whole stream, from `response.created` to its terminal event. Returns the terminal response."""
    assert events, "a stream has at least one event"
    for number, event in enumerate(events):
        assert event["sequence_number"] == number, f"sequence_number {event['sequence_number']} at {number}"
        event_text = json.dumps(event)
        event_text.encode("utf-8")
    lifecycle = _check_lifecycle(events)
    checker = _ItemEventChecker()
    for event in events:
        checker.check_event(event)
    response: Event = lifecycle[-1]
    _check_output(response, checker)
    return response


def _check_lifecycle(events: Sequence[Event]) -> list[Event]:
    types = [event["type"] for event in events]
    assert types[0] == "response.created", types[0]
    assert types.count("response.created") == 1
    terminal_types = [event_type for event_type in types if event_type in STATUS_OF_TERMINAL_EVENT]
    assert len(terminal_types) == 1 and types[-1] == terminal_types[0], (
        f"one terminal event, last: {terminal_types} {types[-1]}"
    )
    first_item = types.index("response.output_item.added") if "response.output_item.added" in types else len(types)
    for number, event_type in enumerate(types):
        if event_type in ("response.queued", "response.in_progress"):
            assert number < first_item, "keepalives occur before the first item only"
        if event_type == "error":
            assert types[number + 1 :] == ["response.failed"], "an error is followed by response.failed"
            error = events[number]
            assert {key: error[key] for key in ("code", "message", "param")} == {
                key: error["error"][key] for key in ("code", "message", "param")
            }
    if types[-1] == "response.failed":
        assert types[-2] == "error"
    snapshots = [event["response"] for event in events if "response" in event]
    for snapshot in snapshots:
        assert snapshot.keys() >= RESPONSE_KEYS, RESPONSE_KEYS - snapshot.keys()
        assert {key: snapshot[key] for key in CONSTANT_KEYS} == {key: snapshots[0][key] for key in CONSTANT_KEYS}, (
            "an echoed setting changed"
        )
    for snapshot in snapshots[:-1]:
        assert snapshot["output"] == [] and snapshot["usage"] is None and snapshot["error"] is None
        assert snapshot["status"] in ("queued", "in_progress")
    final = snapshots[-1]
    assert final["status"] in STATUS_OF_TERMINAL_EVENT[types[-1]]
    assert (final["completed_at"] is not None) == (final["status"] == "completed")
    assert (final["error"] is not None) == (final["status"] == "failed")
    assert (final["incomplete_details"] is not None) == (final["status"] == "incomplete")
    return snapshots


class _ItemEventChecker:
    """Checks the item events of a stream. Only one item is open at a time."""

    def __init__(self) -> None:
        self.done_items: list[Event] = []
        self.open_item: Event | None = None
        self.output_index = -1
        self.item_ids: set[str] = set()
        self.call_ids: set[str] = set()
        self.content_parts: list[Event] = []
        self.summary_parts: list[Event] = []
        self.open_part: Event | None = None
        self.deltas: list[str] = []
        self.logprobs: list[Any] = []
        self.text_done = False
        self.arguments_done = False
        self.annotation_count = 0

    def check_event(self, event: Event) -> None:
        event_type = event["type"].removeprefix("response.")
        if event_type == "output_item.added":
            self._check_item_added(event)
        elif event_type == "output_item.done":
            self._check_item_done(event)
        elif "item_id" in event:
            assert self.open_item is not None, f"{event_type} outside an item"
            assert event["item_id"] == self.open_item["id"], f"{event_type} of another item"
            assert event["output_index"] == self.output_index
            self._check_item_event(event_type, event)

    def _check_item_added(self, event: Event) -> None:
        assert self.open_item is None, "items never interleave"
        assert not any(item.get("status") == "incomplete" for item in self.done_items), (
            "no item follows an incomplete item"
        )
        item = event["item"]
        self.output_index += 1
        assert event["output_index"] == self.output_index, "output_index counts from 0 by 1"
        assert item["id"] and item["id"] not in self.item_ids, "item ids are unique"
        self.item_ids.add(item["id"])
        if "call_id" in item:
            assert item["call_id"] and item["call_id"] not in self.call_ids and item["call_id"] != item["id"]
            self.call_ids.add(item["call_id"])
            assert item["name"]
        for key in ("content", "summary"):
            assert not item.get(key), f"{key} of an added item is empty"
        for key in ("arguments", "input"):
            assert item.get(key, "") == "", f"{key} of an added item is empty"
        assert item.get("status", "in_progress") == "in_progress"
        _check_no_nulls(item)
        self.open_item, self.content_parts, self.summary_parts, self.open_part = item, [], [], None
        self.deltas, self.arguments_done = [], False

    def _check_item_event(self, event_type: str, event: Event) -> None:
        payload = event_type.split(".", maxsplit=1)[0]
        assert self.open_item is not None
        if payload in ITEM_TYPE_OF_EVENT:
            assert self.open_item["type"] == ITEM_TYPE_OF_EVENT[payload], (
                f"{event_type} inside a {self.open_item['type']}"
            )
        match event_type:
            case "content_part.added" | "reasoning_summary_part.added":
                self._check_part_added(event_type, event)
            case "content_part.done" | "reasoning_summary_part.done":
                self._check_part_done(event_type, event)
            case "output_text.annotation.added":
                assert self.open_part is not None
                assert event["annotation_index"] == self.annotation_count
                self.annotation_count += 1
            case _ if event_type.endswith(".delta"):
                assert event["delta"] != "", "a delta is not empty"
                assert not self.text_done or payload in ("function_call_arguments", "custom_tool_call_input")
                assert not self.arguments_done
                if payload not in ("function_call_arguments", "custom_tool_call_input"):
                    self._check_inside_part(event)
                self.deltas.append(event["delta"])
                self.logprobs.extend(event.get("logprobs", []))
            case _ if event["type"] in DONE_EVENT_TYPES:
                assert event[DONE_EVENT_TYPES[event["type"]]] == "".join(self.deltas), (
                    "a done event holds the joined deltas"
                )
                assert event.get("logprobs", self.logprobs) == self.logprobs
                if payload in ("function_call_arguments", "custom_tool_call_input"):
                    self.arguments_done = True
                else:
                    self._check_inside_part(event)
                    self.text_done = True
            case _:
                raise AssertionError(f"unknown {event_type}")

    def _check_inside_part(self, event: Event) -> None:
        assert self.open_part is not None, "content belongs to a part"
        index = event.get("content_index", event.get("summary_index"))
        assert index == len(self.content_parts if "content_index" in event else self.summary_parts)

    def _check_part_added(self, event_type: str, event: Event) -> None:
        assert self.open_part is None, "parts never interleave"
        self._check_part_index(event)
        part = event["part"]
        assert part.get("text", "") == "" and part.get("refusal", "") == "" and not part.get("annotations")
        self.open_part, self.deltas, self.logprobs, self.text_done, self.annotation_count = part, [], [], False, 0

    def _check_part_index(self, event: Event) -> None:
        done_parts = self.content_parts if "content_index" in event else self.summary_parts
        index = event.get("content_index", event.get("summary_index"))
        assert index == len(done_parts), "part indices count from 0 by 1"

    def _check_part_done(self, event_type: str, event: Event) -> None:
        assert self.open_part is not None and self.text_done, "a part is done after its text"
        self._check_part_index(event)
        part = event["part"]
        assert part["type"] == self.open_part["type"]
        assert part.get("text", part.get("refusal")) == "".join(self.deltas)
        assert len(part.get("annotations", [])) == self.annotation_count
        assert part.get("logprobs", []) == (self.logprobs if "logprobs" in part else [])
        (self.content_parts if "content_index" in event else self.summary_parts).append(part)
        self.open_part = None

    def _check_item_done(self, event: Event) -> None:
        item = event["item"]
        assert self.open_item is not None and self.open_part is None, "an item is done after its parts"
        assert event["output_index"] == self.output_index
        for key in ("id", "type", "call_id", "name", "role", "namespace", "phase"):
            assert item.get(key) == self.open_item.get(key), f"{key} of an item never changes"
        assert item.get("status", "completed") in ("completed", "incomplete")
        assert item.get("content", []) == self.content_parts
        assert item.get("summary", []) == self.summary_parts
        if item["type"] == "message":
            assert self.content_parts, "a message has parts"
        if item["type"] in ("function_call", "custom_tool_call"):
            assert self.arguments_done and item["status"] == "completed", "only a complete call is done"
            assert item.get("arguments", item.get("input")) == "".join(self.deltas)
        _check_no_nulls(item)
        self.done_items.append(item)
        self.open_item = None

    def join_deltas(self) -> str:
        return "".join(self.deltas)


def _check_no_nulls(item: Event) -> None:
    for key in NEVER_NULL:
        assert item.get(key, "") is not None, f"{key} is absent rather than null"


def _check_output(response: Event, checker: _ItemEventChecker) -> None:
    output = response["output"]
    assert output[: len(checker.done_items)] == checker.done_items, "the output begins with the done items"
    open_items = output[len(checker.done_items) :]
    if checker.open_item is None:
        assert open_items == []
    else:
        assert response["status"] != "completed", "a completed response has no open item"
        assert (
            len(open_items) == 1
            and open_items[0]["id"] == checker.open_item["id"]
            and open_items[0]["status"] == "incomplete"
        )
        if response["status"] == "incomplete":
            assert open_items[0]["type"] in ("function_call", "custom_tool_call"), (
                "a token limit leaves only a call open"
            )
        assert _payload_text(open_items[0]).endswith(checker.join_deltas())
    incomplete_items = [item for item in checker.done_items if item.get("status") == "incomplete"]
    assert not incomplete_items or response["status"] == "incomplete"
    assert not (response["status"] == "completed" and incomplete_items)
    for item in output:
        if item["type"] == "message":
            text = "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
            assert text.strip(), "a message is not whitespace only"
    usage = response["usage"]
    if usage is not None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


def _payload_text(item: Event) -> str:
    if item["type"] == "message":
        part = item["content"][-1]
        return str(part.get("text", part.get("refusal")))
    if item["type"] == "reasoning":
        return str((item.get("content") or item.get("summary"))[-1]["text"])
    return str(item.get("arguments", item.get("input")))
