"""Writes streams from the grammar of the Responses API. The writer shares no code with the server."""

import copy
import json
from typing import Any

Event = dict[str, Any]

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [{**WEATHER, "name": "spawn"}]}
MCP_TOOL = {"type": "mcp", "server_label": "s", "headers": None, "require_approval": "never"}
HOSTED_TOOLS = [MCP_TOOL, *({"type": kind} for kind in ("web_search", "file_search", "code_interpreter"))]
HOSTED_TOOLS.append({"type": "image_generation"})
LOGPROBS = [
    {
        "token": "He",
        "bytes": [72, 101],
        "logprob": -0.25,
        "top_logprobs": [
            {"token": "He", "bytes": [72, 101], "logprob": -0.25},
            {"token": "Hi", "bytes": [72, 105], "logprob": -1.5},
        ],
    },
    {"token": "llo", "bytes": [108, 108, 111], "logprob": -0.5, "top_logprobs": []},
]
CITATION = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
TEXT = ("output_text", ["Hel", "lo"])
ARGUMENTS = ('{"city": ', '"Oslo"}')


class StreamText:
    """Writes one stream, event by event."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[Event] = []
        self.items: list[Event] = []
        self.settings = settings

    def build_response(self, status: str, **changes: Any) -> Event:
        """Returns a snapshot of the response."""
        response = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": "m",
            "previous_response_id": None,
            "instructions": None,
            "output": [],
            "error": None,
            "tools": [
                WEATHER,
                PATCH,
                AGENTS,
                {"type": "shell"},
                {"type": "apply_patch"},
                {"type": "local_shell"},
                *HOSTED_TOOLS,
            ],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": {"type": "text"}},
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "temperature": 1.0,
            "reasoning": None,
            "usage": None,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "store": True,
            "background": False,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }
        return copy.deepcopy(response | self.settings | changes)

    def emit(self, kind: str, **fields: Any) -> None:
        """Appends an event; `kind` is its type without `response.`."""
        event_type = kind if kind == "error" else f"response.{kind}"
        self.events.append(copy.deepcopy({"type": event_type, "sequence_number": len(self.events), **fields}))

    def begin(self, *, queued: bool = False, keepalives: int = 0) -> "StreamText":
        self.emit("created", response=self.build_response("queued" if queued else "in_progress"))
        if queued:
            self.emit("queued", response=self.build_response("queued"))
        for _ in range(1 + keepalives):
            self.emit("in_progress", response=self.build_response("in_progress"))
        return self

    def end(self, status: str = "completed", open_item: Event | None = None, **changes: Any) -> list[Event]:
        """Appends the terminal event. Returns the events."""
        has_reasoning = any(item["type"] == "reasoning" for item in self.items)
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 3 if has_reasoning else 0},
            "total_tokens": 18,
        }
        fields: dict[str, Any] = {"output": [*self.items, *([open_item] if open_item else [])], "usage": usage}
        kind = {"cancelled": "incomplete"}.get(status, status)
        if status == "completed":
            fields["completed_at"] = 1_700_000_001
        if status == "incomplete":
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        if status == "failed":
            error = {"code": "server_error", "message": "It broke."}
            self.emit("error", **error, param=None, error={"type": "server_error", **error, "param": None})
            fields |= {"error": error, "usage": None}
        self.emit(kind, response=self.build_response(status, **fields | changes))
        return self.events

    @property
    def index(self) -> int:
        """The output index of the next item."""
        return len(self.items)

    def add(self, item: Event) -> dict[str, Any]:
        """Appends `output_item.added`. Returns the fields that say which item an event belongs to."""
        self.emit("output_item.added", output_index=self.index, item=item)
        return {"item_id": item["id"], "output_index": self.index}

    def finish(self, item: Event) -> "StreamText":
        self.emit("output_item.done", output_index=self.index, item=item)
        self.items.append(item)
        return self

    def message(
        self,
        *parts: tuple[str, list[str]],
        status: str = "completed",
        logprobs: list[Any] | None = None,
        annotations: tuple[Any, ...] = (),
        **keys: Any,
    ) -> "StreamText":
        """Appends a message with parts such as `("output_text", ["Hel", "lo"])`."""
        head = {"type": "message", "id": f"msg_{self.index}", "role": "assistant", **keys}
        place = self.add(head | {"status": "in_progress", "content": []})
        content = [
            self.part(place, number, kind, deltas, logprobs or [], annotations)
            for number, (kind, deltas) in enumerate(parts)
        ]
        return self.finish(head | {"status": status, "content": content})

    def part(
        self, place: Event, number: int, kind: str, deltas: list[str], logprobs: list[Any], annotations: tuple[Any, ...]
    ) -> Event:
        """Appends the events of a part. Returns the part."""
        place = place | {"content_index": number}
        if kind == "refusal":
            part: Event = {"type": "refusal", "refusal": ""}
            self.emit("content_part.added", **place, part=part)
            for delta in deltas:
                self.emit("refusal.delta", **place, delta=delta)
            self.emit("refusal.done", **place, refusal="".join(deltas))
            part = part | {"refusal": "".join(deltas)}
        elif kind == "reasoning_text":
            part = {"type": "reasoning_text", "text": ""}
            self.emit("content_part.added", **place, part=part)
            for delta in deltas:
                self.emit("reasoning_text.delta", **place, delta=delta)
            self.emit("reasoning_text.done", **place, text="".join(deltas))
            part = part | {"text": "".join(deltas)}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.emit("content_part.added", **place, part=part)
            for position, delta in enumerate(deltas):
                self.emit("output_text.delta", **place, delta=delta, logprobs=logprobs[position : position + 1])
            for position, annotation in enumerate(annotations):
                self.emit("output_text.annotation.added", **place, annotation_index=position, annotation=annotation)
            self.emit("output_text.done", **place, text="".join(deltas), logprobs=logprobs)
            part = part | {"text": "".join(deltas), "annotations": list(annotations), "logprobs": logprobs}
        self.emit("content_part.done", **place, part=part)
        return part

    def reasoning(
        self, content: tuple[list[str], ...] = (), summary: tuple[list[str], ...] = (), **keys: Any
    ) -> "StreamText":
        """Appends a reasoning item with raw parts, summary parts, or both."""
        head: Event = {"type": "reasoning", "id": f"rs_{self.index}"}
        place = self.add(head | {"summary": [], "status": "in_progress"})
        done: Event = head | {"summary": []}
        parts = [self.part(place, number, "reasoning_text", deltas, [], ()) for number, deltas in enumerate(content)]
        for number, deltas in enumerate(summary):
            spot = place | {"summary_index": number}
            self.emit("reasoning_summary_part.added", **spot, part={"type": "summary_text", "text": ""})
            for delta in deltas:
                self.emit("reasoning_summary_text.delta", **spot, delta=delta)
            self.emit("reasoning_summary_text.done", **spot, text="".join(deltas))
            part = {"type": "summary_text", "text": "".join(deltas)}
            self.emit("reasoning_summary_part.done", **spot, part=part)
            done["summary"].append(part)
        if parts:
            done["content"] = parts
        return self.finish(done | {"status": "completed"} | keys)

    def call(self, *deltas: str, **keys: Any) -> "StreamText":
        """Appends a call of the function `get_weather`."""
        head = {
            "type": "function_call",
            "id": f"fc_{self.index}",
            "call_id": f"call_{self.index}",
            "name": "get_weather",
            **keys,
        }
        place = self.add(head | {"arguments": "", "status": "in_progress"})
        for delta in deltas:
            self.emit("function_call_arguments.delta", **place, delta=delta)
        self.emit("function_call_arguments.done", **place, arguments="".join(deltas))
        return self.finish(head | {"arguments": "".join(deltas), "status": "completed"})

    def custom_call(self, *deltas: str) -> "StreamText":
        """Appends a call of the custom tool `apply_patch`."""
        head = {
            "type": "custom_tool_call",
            "id": f"ctc_{self.index}",
            "call_id": f"call_{self.index}",
            "name": "apply_patch",
        }
        place = self.add(head | {"input": "", "status": "in_progress"})
        for delta in deltas:
            self.emit("custom_tool_call_input.delta", **place, delta=delta)
        self.emit("custom_tool_call_input.done", **place, input="".join(deltas))
        return self.finish(head | {"input": "".join(deltas), "status": "completed"})

    def hosted(self, item: Event, *steps: str | tuple[str, dict[str, Any]], done: Event | None = None) -> "StreamText":
        """Appends an item of a hosted tool with the events `steps`. `done`: keys that the done item has besides."""
        item = {"id": f"x_{self.index}", **item}
        place = self.add(item)
        for step in steps:
            kind, fields = (step, {}) if isinstance(step, str) else step
            self.emit(kind, **place, **fields)
        return self.finish(item | (done or {}))

    def shell_call(self) -> "StreamText":
        """Appends a shell call, whose command events have no item id."""
        head = {"type": "shell_call", "id": f"sh_{self.index}", "call_id": "call_s", "status": "in_progress"}
        place = {"output_index": self.add(head | {"action": {"commands": []}})["output_index"]}
        for number, command in enumerate(("ls", "pwd")):
            spot = place | {"command_index": number}
            self.emit("shell_call_command.added", **spot, command="")
            self.emit("shell_call_command.delta", **spot, delta=command)
            self.emit("shell_call_command.done", **spot, command=command)
        return self.finish(head | {"action": {"commands": ["ls", "pwd"]}, "status": "completed"})

    def patch(self, *deltas: str, path: str = "a.md") -> "StreamText":
        """Appends the creation of a file. Its diff is streamed if it has deltas."""
        head = {"type": "apply_patch_call", "id": f"apc_{self.index}", "call_id": f"call_{self.index}"}
        operation = {"type": "create_file", "path": path, "diff": ""}
        place = self.add(head | {"operation": operation, "status": "in_progress"})
        for delta in deltas:
            self.emit("apply_patch_call_operation_diff.delta", **place, delta=delta)
        diff = "".join(deltas) or "+x\n"
        if deltas:
            self.emit("apply_patch_call_operation_diff.done", **place, diff=diff)
        return self.finish(head | {"operation": operation | {"diff": diff}, "status": "completed"})


def begin_stream(**settings: Any) -> StreamText:
    """Returns the beginning of a stream whose response has these settings."""
    return StreamText(**settings).begin()


def encode_sse(events: list[Event], *, done: bool = True) -> bytes:
    """Returns the events as frames."""
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return ("".join(frames) + ("data: [DONE]\n\n" if done else "")).encode()
