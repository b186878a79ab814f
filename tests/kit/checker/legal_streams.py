"""Legal streams, written from the grammar of the Responses API by a writer that shares no code with the server."""

import copy
import json
from collections.abc import Callable, Iterator
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
            "tools": [WEATHER, PATCH, AGENTS, {"type": "shell"}, {"type": "apply_patch"}, {"type": "local_shell"}],
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


TEXT = ("output_text", ["Hel", "lo"])
ARGUMENTS = ('{"city": ', '"Oslo"}')


def _begin(**settings: Any) -> StreamText:
    return StreamText(**settings).begin()


def _call_cut_open() -> list[Event]:
    stream = _begin()
    head = {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": "get_weather"}
    place = stream.add(head | {"arguments": "", "status": "in_progress"})
    stream.emit("function_call_arguments.delta", **place, delta='{"ci')
    return stream.end("incomplete", open_item=head | {"arguments": '{"ci', "status": "incomplete"})


def _shell_call_cut_open() -> list[Event]:
    stream = _begin()
    head = {"type": "shell_call", "id": "sh_0", "call_id": "call_s"}
    place = {"output_index": stream.add(head | {"action": {"commands": []}, "status": "in_progress"})["output_index"]}
    for number, command in enumerate(("ls", "pw")):
        spot = place | {"command_index": number}
        stream.emit("shell_call_command.added", **spot, command="")
        stream.emit("shell_call_command.delta", **spot, delta=command)
        if number == 0:
            stream.emit("shell_call_command.done", **spot, command=command)
    return stream.end("incomplete", open_item=head | {"action": {"commands": ["ls", "pw"]}, "status": "incomplete"})


def _patch_cut_open() -> list[Event]:
    stream = _begin()
    item = {"type": "apply_patch_call", "id": "apc_0", "call_id": "call_0", "status": "in_progress"}
    operation = {"type": "update_file", "path": "a.md", "diff": ""}
    place = stream.add(item | {"operation": operation})
    stream.emit("apply_patch_call_operation_diff.delta", **place, delta="@@\n")
    return stream.end("incomplete", open_item=item | {"operation": operation | {"diff": "@@\n"}})


def _message_open_at_failure(status: str = "failed") -> list[Event]:
    stream = _begin()
    head = {"type": "message", "id": "msg_0", "role": "assistant"}
    place = stream.add(head | {"status": "in_progress", "content": []}) | {"content_index": 0}
    part: Event = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    stream.emit("content_part.added", **place, part=part)
    stream.emit("output_text.delta", **place, delta="Hel", logprobs=[])
    return stream.end(status, open_item=head | {"status": "incomplete", "content": [part | {"text": "Hel"}]})


def _progress(kind: str, *names: str) -> list[str]:
    return [f"{kind}.{name}" for name in names]


def _code_interpreter() -> list[Event]:
    item = {"type": "code_interpreter_call", "container_id": "cntr_1", "code": "", "outputs": None}
    return (
        _begin()
        .hosted(
            item | {"status": "in_progress"},
            "code_interpreter_call.in_progress",
            ("code_interpreter_call_code.delta", {"delta": "1 + "}),
            ("code_interpreter_call_code.delta", {"delta": "1"}),
            ("code_interpreter_call_code.done", {"code": "1 + 1"}),
            "code_interpreter_call.interpreting",
            "code_interpreter_call.completed",
            done={"status": "completed", "code": "1 + 1"},
        )
        .end()
    )


def _mcp_call(ending: str = "completed") -> list[Event]:
    item = {"type": "mcp_call", "server_label": "s", "name": "search", "arguments": ""}
    return (
        _begin()
        .hosted(
            item,
            "mcp_call.in_progress",
            ("mcp_call_arguments.delta", {"delta": '{"q": 1}'}),
            ("mcp_call_arguments.done", {"arguments": '{"q": 1}'}),
            f"mcp_call.{ending}",
            done={"arguments": '{"q": 1}', "output": "found"},
        )
        .end()
    )


def _image() -> list[Event]:
    picture = ("image_generation_call.partial_image", {"partial_image_b64": "AA==", "partial_image_index": 0})
    return (
        _begin()
        .hosted(
            {"type": "image_generation_call", "status": "in_progress", "result": None},
            "image_generation_call.in_progress",
            "image_generation_call.generating",
            picture,
            "image_generation_call.completed",
            done={"status": "completed", "result": "AA=="},
        )
        .end()
    )


def _image_of_openai() -> list[Event]:
    """OpenAI sends no completed event for a picture, leaves it in the status generating, and ends with an empty message."""
    item = {"type": "image_generation_call", "result": None}
    steps = ("image_generation_call.in_progress", "image_generation_call.generating")
    stream = _begin().hosted(item | {"status": "in_progress"}, *steps, done={"status": "generating", "result": "AA=="})
    return stream.message(("output_text", [])).end()


def _shell_output() -> list[Event]:
    content = {"command_index": 0}
    return (
        _begin()
        .hosted(
            {"type": "shell_call_output", "call_id": "call_s", "output": [], "status": "completed"},
            ("shell_call_output_content.delta", {**content, "delta": {"stdout": "a"}}),
            ("shell_call_output_content.done", {**content, "output": [{"stdout": "a"}]}),
        )
        .end()
    )


def _hosted_search(kind: str, **keys: Any) -> list[Event]:
    steps = _progress(kind, "in_progress", "searching", "searching", "completed")
    item = {"type": kind, "status": "in_progress", **keys}
    return _begin().hosted(item, *steps, done={"status": "completed"}).end()


def _bare(kind: str, **keys: Any) -> list[Event]:
    return _begin().hosted({"type": kind, **keys}).end()


LEGAL: dict[str, Callable[[], list[Event]]] = {
    "nothing": lambda: _begin().end(),
    "queued": lambda: StreamText(background=True).begin(queued=True, keepalives=2).message(TEXT).end(),
    "text": lambda: _begin().message(TEXT).end(),
    "text_and_refusal": lambda: _begin().message(TEXT, ("refusal", ["I ", "cannot."])).end(),
    "refusal": lambda: _begin().message(("refusal", ["No."])).end(),
    "text_with_phase": lambda: _begin().message(TEXT, phase="final_answer").end(),
    "text_with_logprobs": lambda: (
        _begin(top_logprobs=2).message(("output_text", ["He", "llo"]), logprobs=LOGPROBS).end()
    ),
    "text_with_annotations": lambda: _begin().message(TEXT, annotations=(CITATION, CITATION)).end(),
    "text_without_deltas": lambda: _begin().message(("output_text", []), ("output_text", ["a"])).end(),
    "two_messages": lambda: _begin().message(TEXT, phase="commentary").message(TEXT, phase="final_answer").end(),
    "raw_reasoning": lambda: _begin().reasoning((["Hm", "."], ["So."])).message(TEXT).end(),
    "summarised_reasoning": lambda: _begin().reasoning((), (["A."], ["B", "."])).message(TEXT).end(),
    "both_kinds_of_reasoning": lambda: _begin().reasoning((["Hm."],), (["A."],)).message(TEXT).end(),
    "sealed_reasoning": lambda: _begin().reasoning((["Hm."],), encrypted_content="blob").message(TEXT).end(),
    "function_call": lambda: _begin().call(*ARGUMENTS).end(),
    "function_call_without_deltas": lambda: _begin().call("{}").end(),
    "function_call_in_namespace": lambda: _begin().call(*ARGUMENTS, name="spawn", namespace="agents").end(),
    "custom_tool_call": lambda: _begin().custom_call("*** Begin", " Patch").end(),
    "two_calls": lambda: _begin().call(*ARGUMENTS).custom_call("x").end(),
    "reasoning_text_and_calls": lambda: _begin().reasoning((["Hm."],)).message(TEXT).call(*ARGUMENTS).end(),
    "json_text": lambda: _begin(text={"format": {"type": "json_object"}}).message(("output_text", ["{", "}"])).end(),
    "required_call": lambda: _begin(tool_choice="required").call(*ARGUMENTS).end(),
    "named_call": lambda: _begin(tool_choice={"type": "function", "name": "get_weather"}).call(*ARGUMENTS).end(),
    "allowed_tools": lambda: (
        _begin(
            tool_choice={
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            }
        )
        .call(*ARGUMENTS)
        .end()
    ),
    "one_call_at_most": lambda: _begin(parallel_tool_calls=False).call(*ARGUMENTS).end(),
    "token_limit": lambda: _begin(max_output_tokens=8).message(TEXT, status="incomplete").end("incomplete"),
    "content_filter": lambda: (
        _begin().message(TEXT, status="incomplete").end("incomplete", incomplete_details={"reason": "content_filter"})
    ),
    "call_cut_open": _call_cut_open,
    "cancelled": lambda: _message_open_at_failure("cancelled"),
    "failed": lambda: _begin().message(TEXT).end("failed"),
    "failed_inside_a_message": _message_open_at_failure,
    "mcp_call": _mcp_call,
    "failed_mcp_call": lambda: _mcp_call("failed"),
    "mcp_list_tools": lambda: (
        _begin()
        .hosted(
            {"type": "mcp_list_tools", "server_label": "s", "tools": []},
            *_progress("mcp_list_tools", "in_progress", "completed"),
        )
        .end()
    ),
    "mcp_approval_request": lambda: _bare("mcp_approval_request", server_label="s", name="n", arguments="{}"),
    "web_search_call": lambda: _hosted_search("web_search_call", action={"type": "search", "query": "q"}),
    "file_search_call": lambda: _hosted_search("file_search_call", queries=["q"]),
    "code_interpreter_call": _code_interpreter,
    "image_generation_call": _image,
    "image_generation_call_of_openai": _image_of_openai,
    "compaction": lambda: (
        _begin()
        .hosted({"type": "compaction", "encrypted_content": "blob"}, "compaction.compacting", "compaction.compacting")
        .end()
    ),
    "shell_call": lambda: _begin().shell_call().end(),
    "shell_call_output": _shell_output,
    "function_call_output": lambda: _bare("function_call_output", call_id="call_1", output="ok"),
    "custom_tool_call_output": lambda: _bare("custom_tool_call_output", call_id="call_1", output="ok"),
    "computer_call": lambda: _bare("computer_call", call_id="call_1", action={}, status="completed"),
    "local_shell_call": lambda: _bare("local_shell_call", call_id="call_1", action={}, status="completed"),
    "apply_patch_call": lambda: _begin().patch("+a", "\n+b\n").end(),
    "apply_patch_calls_without_events": lambda: _begin().patch().patch(path="b.md").end(),
    "patch_cut_open": _patch_cut_open,
    "shell_call_cut_open": _shell_call_cut_open,
    "tool_search_call": lambda: _bare("tool_search_call", status="completed", execution="client", arguments={}),
    "tool_search_output": lambda: _bare("tool_search_output", status="completed", tools=[]),
    "additional_tools": lambda: _bare("additional_tools", role="developer", tools=[]),
    "extension_item": lambda: _bare("acme:thought", text="x"),
}
"""Streams by name: one for each kind of item, and the combinations and endings that the grammar has."""


def encode_sse(events: list[Event], *, done: bool = True) -> bytes:
    """Returns the events as frames."""
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return ("".join(frames) + ("data: [DONE]\n\n" if done else "")).encode()


def list_legal_streams() -> Iterator[tuple[str, list[Event]]]:
    """Yields each stream with its name."""
    for name, build in LEGAL.items():
        yield name, build()
