"""Legal streams with tools that the server runs: each kind of item whole, failed, kept alive and cut."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.kit.checker.stream_writer import CITATION, TEXT, Event, StreamText, begin_stream

QUERY = '{"q": 1}'
LISTED = {"name": "search", "description": "Searches.", "input_schema": {"type": "object"}, "annotations": {"read_only": True}}  # fmt: skip
FOUND = {"file_id": "file_1", "filename": "a.md", "score": 0.5, "text": "A.", "attributes": {}}
LOGS = {"type": "logs", "logs": "2\n"}
SEARCH = {"type": "search", "query": "q", "sources": [{"type": "url", "url": "https://a.example"}]}
EXECUTION_ERROR = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "No."}]}
MCP_CALL = {
    "type": "mcp_call",
    "status": "in_progress",
    "approval_request_id": None,
    "arguments": "",
    "error": None,
    "name": "search",
    "output": None,
    "server_label": "s",
}
LIST = {"type": "mcp_list_tools", "server_label": "s", "tools": []}
WEB_SEARCH = {"type": "web_search_call", "status": "in_progress"}
FILE_SEARCH = {"type": "file_search_call", "status": "in_progress", "queries": [], "results": None}
CODE = {"type": "code_interpreter_call", "status": "in_progress", "code": "", "container_id": "cntr_1", "outputs": None}
IMAGE = {"type": "image_generation_call", "status": "in_progress", "result": None}
APPROVAL = {"type": "mcp_approval_request", "arguments": QUERY, "name": "search", "server_label": "s"}
NEEDED = {"status": "completed"}
FAILED = {"status": "failed"}

Step = str | tuple[str, dict[str, Any]]
ARGUMENTS_DELTA: Step = ("mcp_call_arguments.delta", {"delta": QUERY})
ARGUMENTS_DONE: Step = ("mcp_call_arguments.done", {"arguments": QUERY})
MCP_STEPS: tuple[Step, ...] = ("mcp_call.in_progress", ARGUMENTS_DELTA, ARGUMENTS_DONE)
CODE_STEPS: tuple[Step, ...] = (
    "code_interpreter_call.in_progress",
    ("code_interpreter_call_code.delta", {"delta": "1 + "}),
    ("code_interpreter_call_code.delta", {"delta": "1"}),
    ("code_interpreter_call_code.done", {"code": "1 + 1"}),
    "code_interpreter_call.interpreting",
)
SEARCH_STEPS = ("in_progress", "searching", "searching", "completed")


def stages(kind: str, *names: str) -> list[str]:
    """Returns the types of the events of a kind of item."""
    return [f"{kind}.{name}" for name in names]


def add_mcp_call(stream: StreamText, *waits: Step, ending: str = "completed", **keys: Any) -> StreamText:
    """Appends an mcp call. `waits` are the events while the tool runs."""
    changes = {"status": ending, "arguments": QUERY, "output": "found" if ending == "completed" else None}
    approval = keys.pop("approval_request_id", None)
    item = MCP_CALL | {"approval_request_id": approval}
    return stream.hosted(item, *MCP_STEPS, *waits, f"mcp_call.{ending}", done=changes | keys)


def add_list(stream: StreamText) -> StreamText:
    return stream.hosted(LIST, *stages("mcp_list_tools", "in_progress", "completed"), done={"tools": [LISTED]})


def add_web_search(stream: StreamText, names: Sequence[str] = SEARCH_STEPS, **keys: Any) -> StreamText:
    done = NEEDED | {"action": SEARCH} | keys
    return stream.hosted(WEB_SEARCH, *stages("web_search_call", *names), done=done)


def add_file_search(stream: StreamText, names: Sequence[str] = SEARCH_STEPS, **keys: Any) -> StreamText:
    done = NEEDED | {"queries": ["q"], "results": [FOUND]} | keys
    return stream.hosted(FILE_SEARCH, *stages("file_search_call", *names), done=done)


def add_code(stream: StreamText, *waits: Step, **keys: Any) -> StreamText:
    steps = (*CODE_STEPS, *waits, *([] if keys.get("status") == "failed" else ["code_interpreter_call.completed"]))
    return stream.hosted(CODE, *steps, done=NEEDED | {"code": "1 + 1", "outputs": [LOGS]} | keys)


def add_approval(stream: StreamText) -> StreamText:
    return stream.hosted(APPROVAL)


def add_progress(stream: StreamText, count: int = 1) -> StreamText:
    """Appends `response.in_progress`, which keeps the stream alive while the next round is prepared."""
    for _ in range(count):
        stream.emit("in_progress", response=stream.build_response("in_progress"))
    return stream


def write_cut(item: Event, *steps: Step, ending: str = "incomplete", **frozen: Any) -> list[Event]:
    """Returns a stream that ends while the tool runs. `frozen`: keys that the item has in the final response."""
    stream = add_list(begin_stream())
    item = {"id": "x_1", **item}
    place = stream.add(item)
    for step in steps:
        kind, fields = (step, {}) if isinstance(step, str) else step
        stream.emit(kind, **place, **fields)
    return stream.end(ending, open_item=item | {"status": "incomplete"} | frozen)


def write_failed_list() -> list[Event]:
    stages_of_list = stages("mcp_list_tools", "in_progress", "failed")
    return begin_stream().hosted(LIST, *stages_of_list, done={"error": "Http status code: 401"}).end("failed")


def write_loop() -> list[Event]:
    """Returns three rounds: a failed call, a call that is kept alive, and the answer."""
    stream = add_list(begin_stream(max_tool_calls=2, parallel_tool_calls=False)).reasoning((["Hm."],))
    add_mcp_call(stream, ending="failed", error=EXECUTION_ERROR)
    add_progress(stream, 2).reasoning((["Once more."],))
    return add_mcp_call(stream, "mcp_call.in_progress", "mcp_call.in_progress").message(TEXT).end()


def write_cut_approved() -> list[Event]:
    """Returns a stream that is cancelled while an approved call runs. The model has generated nothing yet."""
    stream, item = begin_stream(), MCP_CALL | {"id": "x_0", "approval_request_id": "mcpr_1"}
    place = stream.add(item)
    for kind, fields in (("mcp_call.in_progress", {}), ARGUMENTS_DELTA, ARGUMENTS_DONE):
        stream.emit(str(kind), **place, **dict(fields))
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    return stream.end("cancelled", open_item=item | {"status": "incomplete", "arguments": QUERY}, usage=usage)


def write_image() -> list[Event]:
    picture = ("image_generation_call.partial_image", {"partial_image_b64": "AA==", "partial_image_index": 0})
    steps = stages("image_generation_call", "in_progress", "generating")
    ended = "image_generation_call.completed"
    return begin_stream().hosted(IMAGE, *steps, picture, ended, done=NEEDED | {"result": "AA=="}).end()


def write_image_of_openai() -> list[Event]:
    """OpenAI sends no completed event for a picture, leaves it in the status generating, and ends with an empty message."""
    steps = stages("image_generation_call", "in_progress", "generating")
    stream = begin_stream().hosted(IMAGE, *steps, done={"status": "generating", "result": "AA=="})
    return stream.message(("output_text", [])).end()


def write_tool_search() -> list[Event]:
    """Returns a search for tools and the call of one that was found, which has its own name as its namespace."""
    tool = {"type": "function", "name": "get_time", "defer_loading": True, "parameters": {"type": "object"}}
    call = {"execution": "server", "call_id": None, "status": "in_progress"}
    stream = begin_stream(tools=[tool, {"type": "tool_search"}])
    stream.hosted({"type": "tool_search_call", "arguments": {}, **call}, done=NEEDED | {"arguments": {"paths": ["get_time"]}})  # fmt: skip
    stream.hosted({"type": "tool_search_output", "tools": [tool], **call}, done=NEEDED)
    return stream.call("{}", name="get_time", namespace="get_time").end()


def write_approved() -> list[Event]:
    """Returns an approved call as OpenAI tells it: with a stage between the arguments and their end."""
    item = MCP_CALL | {"approval_request_id": "mcpr_1"}
    steps = ("mcp_call.in_progress", ARGUMENTS_DELTA, "mcp_call.in_progress", ARGUMENTS_DONE, "mcp_call.completed")
    done = NEEDED | {"arguments": QUERY, "output": "found"}
    return add_list(begin_stream(tool_choice="none")).hosted(item, *steps, done=done).message(TEXT).end()


def write_pages() -> list[Event]:
    """Returns web searches that open a page and look for words in it."""
    stream = add_web_search(begin_stream(), action={"type": "open_page", "url": "https://a.example"})
    pattern = {"type": "find_in_page", "url": "https://a.example", "pattern": "x"}
    return add_web_search(stream, action=pattern).message(TEXT).end()


def _choose(**choice: Any) -> StreamText:
    return begin_stream(tool_choice=choice)


HOSTED: dict[str, Callable[[], list[Event]]] = {
    "mcp_call": lambda: add_mcp_call(add_list(begin_stream())).message(TEXT).end(),
    "failed_mcp_call": lambda: add_mcp_call(begin_stream(), ending="failed", error=EXECUTION_ERROR).message(TEXT).end(),
    "mcp_call_with_an_error_text": lambda: add_mcp_call(begin_stream(), ending="failed", error="No.").end(),
    "mcp_call_kept_alive": lambda: add_mcp_call(begin_stream(), *["mcp_call.in_progress"] * 3).message(TEXT).end(),
    "approved_mcp_call": write_approved,
    "approved_mcp_call_that_is_cancelled": write_cut_approved,
    "mcp_loop": write_loop,
    "mcp_arguments_cut": lambda: write_cut(
        MCP_CALL, "mcp_call.in_progress", ("mcp_call_arguments.delta", {"delta": '{"q'}), arguments='{"q'
    ),
    "mcp_call_cut": lambda: write_cut(MCP_CALL, *MCP_STEPS, ending="failed", arguments=QUERY),
    "mcp_call_cancelled": lambda: write_cut(MCP_CALL, *MCP_STEPS, ending="cancelled", arguments=QUERY),
    "mcp_list_tools": lambda: add_list(begin_stream()).message(TEXT).end(),
    "two_mcp_list_tools": lambda: add_list(add_list(begin_stream())).message(TEXT).end(),
    "failed_mcp_list_tools": write_failed_list,
    "mcp_approval_request": lambda: add_approval(add_list(begin_stream()).reasoning((["Hm."],))).end(),
    "two_approval_requests": lambda: add_approval(add_approval(begin_stream())).end(),
    "web_search_call": lambda: add_web_search(begin_stream()).message(TEXT, annotations=(CITATION,)).end(),
    "web_search_of_pages": write_pages,
    "failed_web_search_call": lambda: add_web_search(begin_stream(), ("in_progress",), status="failed").message(TEXT).end(),
    "web_search_call_cut": lambda: write_cut(WEB_SEARCH, *stages("web_search_call", "in_progress", "searching"), action=SEARCH),
    "file_search_call": lambda: add_file_search(begin_stream()).message(TEXT).end(),
    "failed_file_search_call": lambda: add_file_search(begin_stream(), ("in_progress", "searching"), status="failed", results=None).message(TEXT).end(),
    "file_search_call_cut": lambda: write_cut(FILE_SEARCH, *stages("file_search_call", "in_progress", "searching")),
    "code_interpreter_call": lambda: add_code(begin_stream(), "code_interpreter_call.interpreting").message(TEXT).end(),
    "code_without_outputs": lambda: add_code(begin_stream(), outputs=None).message(TEXT).end(),
    "failed_code_interpreter_call": lambda: add_code(begin_stream(), status="failed", outputs=[]).message(TEXT).end(),
    "code_interpreter_call_cut": lambda: write_cut(CODE, *CODE_STEPS[:2], code="1 + "),
    "image_generation_call": write_image,
    "image_generation_call_of_openai": write_image_of_openai,
    "tool_search": write_tool_search,
    "compaction_between_rounds": lambda: add_progress(
        begin_stream().hosted({"type": "compaction", "encrypted_content": "blob"}, "compaction.compacting"), 2
    ).message(TEXT).end(),
    "function_call_after_a_hosted_one": lambda: add_web_search(begin_stream(parallel_tool_calls=False)).call("{}").end(),
    "hosted_calls_up_to_the_limit": lambda: add_code(add_web_search(begin_stream(max_tool_calls=2))).call("{}").call("{}").end(),
    "hosted_call_required": lambda: add_mcp_call(begin_stream(tool_choice="required")).message(TEXT).end(),
    "mcp_tool_named": lambda: add_web_search(add_mcp_call(_choose(type="mcp", server_label="s", name="search"))).end(),
    "approval_of_a_named_server": lambda: add_approval(_choose(type="mcp", server_label="s")).end(),
    "web_search_named": lambda: add_web_search(_choose(type="web_search")).call("{}").end(),
    "hosted_tools_allowed": lambda: add_code(add_mcp_call(_choose(type="allowed_tools", mode="required", tools=[{"type": "mcp", "server_label": "s"}, {"type": "code_interpreter"}]))).end(),
}  # fmt: skip
"""Streams by name. Those whose names are kinds of items are the ones that mutants break."""
