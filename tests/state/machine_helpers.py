"""Helpers of the machine tests: a machine with counted ids, and named steps for every input."""

import json
from collections.abc import Callable

from antiphon.events.base import Event
from antiphon.events.hosted import McpHttpError, McpListTools, ToolSearchOutput
from antiphon.events.items import Compaction, UrlCitation
from antiphon.events.response import Response, Usage
from antiphon.events.sse import encode_event
from antiphon.state.drafts import OutputSettings, ReasoningOutput, Seal
from antiphon.state.machine import Machine
from antiphon.state.segments import (
    Arguments,
    Call,
    Cite,
    Close,
    CodeResult,
    Compact,
    CompleteItem,
    FileSearchResult,
    McpResult,
    Refuse,
    Result,
    Say,
    Segment,
    Setting,
    Think,
    WebSearchResult,
)
from antiphon.state.server_drafts import CodeDraft, FileSearchDraft, McpDraft, WebSearchDraft

FOUND = ToolSearchOutput(
    id="",
    call_id="call_1",
    execution="server",
    status="completed",
    tools=({"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},),
)
MachineStep = Callable[[Machine], list[Event]]

CITATION = UrlCitation(url="http://example.com", title="Example", start_index=0, end_index=1)
INITIAL_RESPONSE = Response(id="resp_1", created_at=100, model="m", text={"format": {"type": "text"}}, metadata={})
USAGE = Usage(input_tokens=3, output_tokens=4, total_tokens=7)


class CountedIds:
    """Creates ids that end in a counter. A copy counts independently."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, prefix: str) -> str:
        self._next += 1
        return f"{prefix}_{self._next - 1}"


def create_machine(
    reasoning_output: ReasoningOutput = "content", seal: Seal | None = None, *, patch_diffs: bool = False
) -> Machine:
    return Machine(
        INITIAL_RESPONSE, new_id=CountedIds(), clock=lambda: 200, usage=lambda: USAGE,
        settings=OutputSettings(reasoning=reasoning_output, patch_diffs=patch_diffs), seal=seal,
    )  # fmt: skip


RESULTS: dict[type, tuple[Segment, Segment]] = {
    McpDraft: (McpResult("12:00"), McpResult(None, McpHttpError(code=502, message="The server did not answer."))),
    WebSearchDraft: (
        WebSearchResult({"type": "search", "query": "q", "sources": []}),
        WebSearchResult({"type": "search", "query": "q"}, is_failed=True),
    ),
    CodeDraft: (CodeResult("1\n"), CodeResult("NameError", is_failed=True)),
    FileSearchDraft: (
        FileSearchResult(("q",), ({"file_id": "f", "filename": "a.md", "score": 0.5, "text": "x", "attributes": {}},)),
        FileSearchResult(("q",), is_failed=True),
    ),
}
"""What the server feeds at the end of its work, and if that has failed, by the class of the open draft."""


def find_result(machine: Machine, *, is_failed: bool = False) -> Segment:
    """Returns the end of what the server does now."""
    return RESULTS.get(type(machine._draft), (Result("sealed"),) * 2)[is_failed]


SEGMENT_STEPS: dict[str, MachineStep] = {
    "think": lambda machine: machine.feed(Think("a")),
    "think blank": lambda machine: machine.feed(Think(" ")),
    "say": lambda machine: machine.feed(Say("b")),
    "say blank": lambda machine: machine.feed(Say("\n")),
    "refuse": lambda machine: machine.feed(Refuse("c")),
    "refuse blank": lambda machine: machine.feed(Refuse("\t")),
    "cite": lambda machine: machine.feed(Cite(CITATION)),
    "call": lambda machine: machine.feed(Call("f")),
    "tool": lambda machine: machine.feed(Call("t", kind="mcp", server_label="s")),
    "custom": lambda machine: machine.feed(Call("g", kind="custom", namespace="n")),
    "arguments": lambda machine: machine.feed(Arguments("{")),
    "close": lambda machine: machine.feed(Close()),
    "compact": lambda machine: machine.feed(Compact()),
    "result": lambda machine: machine.feed(find_result(machine)),
    "complete_item": lambda machine: machine.feed(CompleteItem(Compaction(id="", encrypted_content="x"))),
}
"""Inputs that come from model output, one of each kind."""

BUILTIN_STEPS: dict[str, MachineStep] = {
    "shell": lambda machine: machine.feed(Call("shell", kind="shell", local=True)),
    "patch": lambda machine: machine.feed(Call("apply_patch", kind="apply_patch", operation="create_file", path="a")),
    "removal": lambda machine: machine.feed(Call("apply_patch", kind="apply_patch", operation="delete_file", path="b")),
    "first": lambda machine: machine.feed(Arguments("ls", 0)),
    "empty": lambda machine: machine.feed(Arguments("", 1)),
    "setting": lambda machine: machine.feed(Setting("timeout_ms", 5)),
    "arguments": lambda machine: machine.feed(Arguments("+x\n")),
    "say": lambda machine: machine.feed(Say("b")),
    "close": lambda machine: machine.feed(Close()),
}
"""Inputs of the calls of built-in tools, and those that end them."""

HOSTED_STEPS: dict[str, MachineStep] = {
    "mcp": lambda machine: machine.feed(Call("t", kind="mcp", server_label="s")),
    "approved": lambda machine: machine.feed(Call("t", kind="mcp", server_label="s", approval_request_id="mcpr_1")),
    "approval": lambda machine: machine.feed(Call("t", kind="mcp_approval", server_label="s")),
    "web": lambda machine: machine.feed(Call("web_search", kind="web_search")),
    "code": lambda machine: machine.feed(Call("python", kind="code_interpreter", container_id="cntr_1")),
    "files": lambda machine: machine.feed(Call("file_search", kind="file_search")),
    "search": lambda machine: machine.feed(Call("tool_search", kind="tool_search", execution="server")),
    "found": lambda machine: machine.feed(CompleteItem(FOUND)),
    "list": lambda machine: machine.feed(CompleteItem(McpListTools(id="", server_label="s", tools=()))),
    "arguments": lambda machine: machine.feed(Arguments('{"a":1}')),
    "say": lambda machine: machine.feed(Say("b")),
    "close": lambda machine: machine.feed(Close()),
    "result": lambda machine: machine.feed(find_result(machine)),
    "failure": lambda machine: machine.feed(find_result(machine, is_failed=True)),
    "keepalive": lambda machine: machine.keepalive(),
}
"""Inputs of the calls that the server runs."""

END_STEPS: dict[str, MachineStep] = {
    "stop": lambda machine: machine.stop(),
    "cut": lambda machine: machine.cut(),
    "steer": lambda machine: machine.steer(),
    "fail": lambda machine: machine.fail("server_error", "broken"),
    "cancel": lambda machine: machine.cancel(),
}

LIFECYCLE_STEPS: dict[str, MachineStep] = {
    "queue": lambda machine: machine.queue(),
    "begin": lambda machine: machine.begin(),
    "keepalive": lambda machine: machine.keepalive(),
}

ALL_STEPS = SEGMENT_STEPS | END_STEPS | LIFECYCLE_STEPS


def convert_events_to_json(events: list[Event]) -> list[dict[str, object]]:
    """Returns the events as JSON objects, as clients receive them."""
    return [json.loads(encode_event(event)) for event in events]
