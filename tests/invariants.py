"""The one checker: what must hold of every stream of this server, wherever it was read.

`check(events)` takes decoded events as plain dictionaries, in order, and raises `AssertionError` naming the rule. It
goes by the contract alone and shares no code with the machine: it would find fault with any server.
"""

import json
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

TERMINAL = {
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
CONSTANT = RESPONSE_KEYS - {"status", "completed_at", "incomplete_details", "output", "error", "usage"}
NEVER_NULL = ("phase", "encrypted_content", "content", "status", "namespace")
DONE_OF = {
    "response.output_text.done": "text",
    "response.refusal.done": "refusal",
    "response.reasoning_text.done": "text",
    "response.reasoning_summary_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
ITEM_OF = {
    "output_text": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "reasoning_summary_text": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
}


def check(events: Sequence[Event]) -> Event:
    """Check a whole stream, from `response.created` to its terminal event. Returns the terminal response."""
    assert events, "a stream has events"
    for number, event in enumerate(events):
        assert event["sequence_number"] == number, f"sequence_number {event['sequence_number']} at {number}"
        event_text = json.dumps(event)
        event_text.encode("utf-8")
    lifecycle = _check_lifecycle(events)
    walker = _Walker()
    for event in events:
        walker.step(event)
    response: Event = lifecycle[-1]
    _check_output(response, walker)
    return response


def _check_lifecycle(events: Sequence[Event]) -> list[Event]:
    types = [event["type"] for event in events]
    assert types[0] == "response.created", types[0]
    assert types.count("response.created") == 1
    terminal = [t for t in types if t in TERMINAL]
    assert len(terminal) == 1 and types[-1] == terminal[0], f"one terminal event, last: {terminal} {types[-1]}"
    first_item = types.index("response.output_item.added") if "response.output_item.added" in types else len(types)
    for number, kind in enumerate(types):
        if kind in ("response.queued", "response.in_progress"):
            assert number < first_item, "reminders come before the first item only"
        if kind == "error":
            assert types[number + 1 :] == ["response.failed"], "an error is followed by response.failed"
            error = events[number]
            assert {k: error[k] for k in ("code", "message", "param")} == {
                k: error["error"][k] for k in ("code", "message", "param")
            }
    if types[-1] == "response.failed":
        assert types[-2] == "error"
    snapshots = [event["response"] for event in events if "response" in event]
    for snapshot in snapshots:
        assert snapshot.keys() >= RESPONSE_KEYS, RESPONSE_KEYS - snapshot.keys()
        assert {k: snapshot[k] for k in CONSTANT} == {k: snapshots[0][k] for k in CONSTANT}, "an echoed setting changed"
    for snapshot in snapshots[:-1]:
        assert snapshot["output"] == [] and snapshot["usage"] is None and snapshot["error"] is None
        assert snapshot["status"] in ("queued", "in_progress")
    last = snapshots[-1]
    assert last["status"] in TERMINAL[types[-1]]
    assert (last["completed_at"] is not None) == (last["status"] == "completed")
    assert (last["error"] is not None) == (last["status"] == "failed")
    assert (last["incomplete_details"] is not None) == (last["status"] == "incomplete")
    return snapshots


class _Walker:
    """Goes through the events of the items, one item open at a time."""

    def __init__(self) -> None:
        self.done: list[Event] = []
        self.open: Event | None = None
        self.index = -1
        self.ids: set[str] = set()
        self.call_ids: set[str] = set()
        self.parts: list[Event] = []
        self.summaries: list[Event] = []
        self.part: Event | None = None
        self.said: list[str] = []
        self.scores: list[Any] = []
        self.text_done = False
        self.args_done = False
        self.annotations = 0
        self.frozen: Event | None = None

    def step(self, event: Event) -> None:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            self._added(event)
        elif kind == "output_item.done":
            self._item_done(event)
        elif "item_id" in event:
            assert self.open is not None, f"{kind} outside an item"
            assert event["item_id"] == self.open["id"], f"{kind} of another item"
            assert event["output_index"] == self.index
            self._inside(kind, event)

    def _added(self, event: Event) -> None:
        assert self.open is None, "items never interleave"
        assert not any(item.get("status") == "incomplete" for item in self.done), "nothing follows a cut item"
        item = event["item"]
        self.index += 1
        assert event["output_index"] == self.index, "output_index counts from 0 by 1"
        assert item["id"] and item["id"] not in self.ids, "ids are minted once"
        self.ids.add(item["id"])
        if "call_id" in item:
            assert item["call_id"] and item["call_id"] not in self.call_ids and item["call_id"] != item["id"]
            self.call_ids.add(item["call_id"])
            assert item["name"]
        for key in ("content", "summary"):
            assert not item.get(key), f"{key} of an added item is empty"
        for key in ("arguments", "input"):
            assert item.get(key, "") == "", f"{key} of an added item is empty"
        assert item.get("status", "in_progress") == "in_progress"
        _no_nulls(item)
        self.open, self.parts, self.summaries, self.part = item, [], [], None
        self.said, self.args_done = [], False

    def _inside(self, kind: str, event: Event) -> None:
        noun = kind.split(".", maxsplit=1)[0]
        assert self.open is not None
        if noun in ITEM_OF:
            assert self.open["type"] == ITEM_OF[noun], f"{kind} inside a {self.open['type']}"
        match kind:
            case "content_part.added" | "reasoning_summary_part.added":
                self._part_added(kind, event)
            case "content_part.done" | "reasoning_summary_part.done":
                self._part_done(kind, event)
            case "output_text.annotation.added":
                assert self.part is not None
                assert event["annotation_index"] == self.annotations
                self.annotations += 1
            case _ if kind.endswith(".delta"):
                assert event["delta"] != "", "empty deltas say nothing"
                assert not self.text_done or noun in ("function_call_arguments", "custom_tool_call_input")
                assert not self.args_done
                if noun not in ("function_call_arguments", "custom_tool_call_input"):
                    self._in_part(event)
                self.said.append(event["delta"])
                self.scores.extend(event.get("logprobs", []))
            case _ if event["type"] in DONE_OF:
                assert event[DONE_OF[event["type"]]] == "".join(self.said), "done is the sum of the deltas"
                assert event.get("logprobs", self.scores) == self.scores
                if noun in ("function_call_arguments", "custom_tool_call_input"):
                    self.args_done = True
                else:
                    self._in_part(event)
                    self.text_done = True
            case _:
                raise AssertionError(f"unknown {kind}")

    def _in_part(self, event: Event) -> None:
        assert self.part is not None, "content stands in a part"
        index = event.get("content_index", event.get("summary_index"))
        assert index == len(self.parts if "content_index" in event else self.summaries)

    def _part_added(self, kind: str, event: Event) -> None:
        assert self.part is None, "parts never interleave"
        self._place(event)
        part = event["part"]
        assert part.get("text", "") == "" and part.get("refusal", "") == "" and not part.get("annotations")
        self.part, self.said, self.scores, self.text_done, self.annotations = part, [], [], False, 0

    def _place(self, event: Event) -> None:
        done = self.parts if "content_index" in event else self.summaries
        index = event.get("content_index", event.get("summary_index"))
        assert index == len(done), "part indices count from 0 by 1"

    def _part_done(self, kind: str, event: Event) -> None:
        assert self.part is not None and self.text_done, "a part is done after its text"
        self._place(event)
        part = event["part"]
        assert part["type"] == self.part["type"]
        assert part.get("text", part.get("refusal")) == "".join(self.said)
        assert len(part.get("annotations", [])) == self.annotations
        assert part.get("logprobs", []) == (self.scores if "logprobs" in part else [])
        (self.parts if "content_index" in event else self.summaries).append(part)
        self.part = None

    def _item_done(self, event: Event) -> None:
        item = event["item"]
        assert self.open is not None and self.part is None, "an item is done after its parts"
        assert event["output_index"] == self.index
        for key in ("id", "type", "call_id", "name", "role", "namespace", "phase"):
            assert item.get(key) == self.open.get(key), f"{key} of an item never changes"
        assert item.get("status", "completed") in ("completed", "incomplete")
        assert item.get("content", []) == self.parts
        assert item.get("summary", []) == self.summaries
        if item["type"] == "message":
            assert self.parts, "a message has parts"
        if item["type"] in ("function_call", "custom_tool_call"):
            assert self.args_done and item["status"] == "completed", "only a whole call is done"
            assert item.get("arguments", item.get("input")) == "".join(self.said)
        _no_nulls(item)
        self.done.append(item)
        self.open = None

    def frozen_payload(self) -> str:
        return "".join(self.said)


def _no_nulls(item: Event) -> None:
    for key in NEVER_NULL:
        assert item.get(key, "") is not None, f"{key} is absent rather than null"


def _check_output(response: Event, walker: _Walker) -> None:
    output = response["output"]
    assert output[: len(walker.done)] == walker.done, "the output is the items that were done"
    rest = output[len(walker.done) :]
    if walker.open is None:
        assert rest == []
    else:
        assert response["status"] != "completed", "nothing is left open in a completed response"
        assert len(rest) == 1 and rest[0]["id"] == walker.open["id"] and rest[0]["status"] == "incomplete"
        if response["status"] == "incomplete":
            assert rest[0]["type"] in ("function_call", "custom_tool_call"), "only a call is left open by a limit"
        assert _payload(rest[0]).endswith(walker.frozen_payload())
    cut = [item for item in walker.done if item.get("status") == "incomplete"]
    assert not cut or response["status"] == "incomplete"
    assert not (response["status"] == "completed" and cut)
    for item in output:
        if item["type"] == "message":
            text = "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
            assert text.strip() or item is rest[-1:], "no message is made of blanks"
    usage = response["usage"]
    if usage is not None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


def _payload(item: Event) -> str:
    if item["type"] == "message":
        last = item["content"][-1]
        return str(last.get("text", last.get("refusal")))
    if item["type"] == "reasoning":
        return str((item.get("content") or item.get("summary"))[-1]["text"])
    return str(item.get("arguments", item.get("input")))
