"""Streams of OpenAI with tools that it runs, retold: order and keys of events and items as it sent them, other texts.

Seen in the test suite of vercel/ai (`packages/openai/src/responses/__fixtures__`), whose recordings the names give.
"""

from collections.abc import Callable

from tests.kit.checker.hosted_streams import MCP_CALL, stages
from tests.kit.checker.stream_writer import CITATION, Event, StreamText, begin_stream

ECHO = {
    "type": "mcp",
    "allowed_tools": None,
    "headers": None,
    "require_approval": "always",
    "server_description": "Links",
    "server_label": "zip1",
    "server_url": "https://mcp.example/mcp",
}
URL_SCHEMA = {"properties": {"url": {"type": "string"}}, "required": ["url"], "type": "object"}
TOOLS = [{"annotations": {"read_only": False}, "description": "Shortens.", "input_schema": URL_SCHEMA, "name": "shorten"}]  # fmt: skip
ARGUMENTS = '{"alias":"","url":"https://a.example/"}'
ANSWER = ("output_text", ["Done", " —", " here"])
LOCATION = {"type": "approximate", "city": None, "country": "US", "region": None, "timezone": None}
WEB_SEARCH = {"type": "web_search", "filters": None, "search_context_size": "medium", "user_location": LOCATION}
FILE_CITATION = {"type": "file_citation", "file_id": "file-1", "filename": "ai.pdf", "index": 10}
FOUND = {"attributes": {}, "file_id": "file-1", "filename": "ai.pdf", "score": 0.9312, "text": "AI 1\n"}
WEATHER = {
    "type": "function",
    "defer_loading": True,
    "description": "Weather.",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


def begin_mcp(**changes: str) -> StreamText:
    """Returns the beginning of a turn with an mcp server: its list of tools."""
    stream = begin_stream(tools=[ECHO | changes])
    item = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "zip1", "tools": []}
    return stream.hosted(item, *stages("mcp_list_tools", "in_progress", "completed"), done={"tools": TOOLS})


def think(stream: StreamText) -> StreamText:
    """Appends reasoning that is not shown: an item without a status, parts or events."""
    return stream.hosted({"id": f"rs_{stream.index}", "type": "reasoning", "summary": []})


def call_mcp(stream: StreamText, *waits: str, approval: str | None = None) -> StreamText:
    """Appends an mcp call. `waits` are the events between the arguments and their end."""
    item = {"id": "mcp_1", **MCP_CALL, "approval_request_id": approval, "name": "shorten", "server_label": "zip1"}
    delta = ("mcp_call_arguments.delta", {"delta": ARGUMENTS, "obfuscation": "LFLSBWdBroW"})
    done = ("mcp_call_arguments.done", {"arguments": ARGUMENTS})
    ended = {"status": "completed", "arguments": ARGUMENTS, "output": "✅ Short URL created"}
    return stream.hosted(item, "mcp_call.in_progress", delta, *waits, done, "mcp_call.completed", done=ended)


def tell_mcp_call() -> list[Event]:
    stream = think(begin_mcp(require_approval="never"))
    return think(call_mcp(stream)).message(ANSWER).end()


def tell_approval_request() -> list[Event]:
    stream = think(begin_mcp())
    request = {"id": "mcpr_1", "type": "mcp_approval_request", "arguments": ARGUMENTS}
    return stream.hosted(request | {"name": "shorten", "server_label": "zip1"}).end()


def tell_denied() -> list[Event]:
    return think(begin_mcp()).message(ANSWER).end()


def tell_approved() -> list[Event]:
    return call_mcp(begin_mcp(), "mcp_call.in_progress", approval="mcpr_1").message(ANSWER).end()


def tell_web_search() -> list[Event]:
    """Returns several rounds. Only the first search has a query; the others have opened the page of their source."""
    stream = begin_stream(tools=[WEB_SEARCH])
    for query in ({"query": "news"}, {}, {}):
        item = {"id": f"ws_{think(stream).index}", "type": "web_search_call", "status": "in_progress"}
        action = {"type": "search", **query, "sources": [{"type": "url", "url": "https://a.example"}]}
        steps = stages("web_search_call", "in_progress", "searching", "completed")
        stream.hosted(item, *steps, done={"status": "completed", "action": action})
    return think(stream).message(("output_text", ["Here ([a](https://a.example))", "."]), annotations=(CITATION,)).end()


def tell_file_search() -> list[Event]:
    tool = {"type": "file_search", "filters": None, "max_num_results": 20, "vector_store_ids": ["vs_1"]}
    stream = think(begin_stream(tools=[tool | {"ranking_options": {"ranker": "auto", "score_threshold": 0}}]))
    item = {"id": "fs_1", "type": "file_search_call", "status": "in_progress", "queries": [], "results": None}
    ended = {"status": "completed", "queries": ["What is it?"], "results": [FOUND]}
    stream.hosted(item, *stages("file_search_call", "in_progress", "searching", "completed"), done=ended)
    return think(stream).message(("output_text", ["The document", "."]), annotations=(FILE_CITATION,)).end()


def tell_tool_search() -> list[Event]:
    stream = begin_stream(tools=[WEATHER, {"type": "tool_search", "description": None, "parameters": None}])
    added = {"status": "in_progress", "call_id": None, "execution": "server"}
    ended = {"status": "completed", "arguments": {"paths": ["get_weather"]}}
    stream.hosted({"id": "tsc_1", "type": "tool_search_call", **added, "arguments": {}}, done=ended)
    stream.hosted({"id": "tso_1", "type": "tool_search_output", **added, "tools": [WEATHER]}, done={"status": "completed"})  # fmt: skip
    return stream.call('{"', 'city":"Oslo"}', namespace="get_weather").end()


OPENAI_STREAMS: dict[str, Callable[[], list[Event]]] = {
    "openai-mcp-tool.1": tell_mcp_call,
    "openai-mcp-tool-approval.1": tell_approval_request,
    "openai-mcp-tool-approval.2": tell_denied,
    "openai-mcp-tool-approval.4": tell_approved,
    "openai-web-search-tool.1": tell_web_search,
    "openai-file-search-tool.2": tell_file_search,
    "openai-tool-search.1": tell_tool_search,
}
"""Streams by the name of the recording."""
