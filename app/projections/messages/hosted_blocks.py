"""Blocks of calls that the server ran. A call and its result are two blocks; a Responses item has both.

Ids of calls are those of the items with another prefix, so that the call has the same id when it is sent back.
"""

from typing import Any

from antiphon.app.projections.hosted_calls import FAILED, describe_failure, is_page, list_source_urls, read_logs
from antiphon.app.projections.messages.schema import (
    CodeOutput,
    CodeResultBlock,
    FetchedPage,
    FetchError,
    FetchResultBlock,
    FoundPage,
    McpToolResultBlock,
    McpToolUseBlock,
    ResultBlock,
    SearchError,
    SearchResultBlock,
    ServerToolCounts,
    ServerToolUseBlock,
    TextBlock,
)
from antiphon.events.hosted import CodeInterpreterCall, McpCall, WebSearchCall
from antiphon.events.response import OutputItem

MCP_PREFIX = "mcptoolu_"
SERVER_TOOL_PREFIX = "srvtoolu_"


def start_call(item: OutputItem) -> McpToolUseBlock | ServerToolUseBlock | None:
    """Returns the block of a call whose input is streamed; None for another item."""
    match item:
        case McpCall():
            return McpToolUseBlock(
                id=_convert_id(MCP_PREFIX, item.id), name=item.name, server_name=item.server_label, input={}
            )
        case CodeInterpreterCall():
            return ServerToolUseBlock(id=_convert_id(SERVER_TOOL_PREFIX, item.id), name="code_execution", input={})
    return None


def build_search_call(item: WebSearchCall) -> tuple[ServerToolUseBlock, dict[str, Any]]:
    """Returns the block of a web search that has ended, and its input: no event has told it before."""
    action = item.action if isinstance(item.action, dict) else {}
    name, key = ("web_fetch", "url") if is_page(item) else ("web_search", "query")
    block = ServerToolUseBlock(id=_convert_id(SERVER_TOOL_PREFIX, item.id), name=name, input={})  # type: ignore[arg-type]
    return block, {key: action.get(key) or ""}


def build_result(item: McpCall | WebSearchCall | CodeInterpreterCall) -> ResultBlock:
    """Returns the block of a call's result."""
    is_failed = item.status == "failed"
    match item:
        case McpCall():
            output = item.output if isinstance(item.output, str) else ""
            text = (describe_failure(item) or FAILED) if is_failed else output
            content = (TextBlock(text=text),) if text else ()
            call_id = _convert_id(MCP_PREFIX, item.id)
            return McpToolResultBlock(tool_use_id=call_id, is_error=is_failed, content=content)
        case CodeInterpreterCall():
            logs = read_logs(item)
            output_block = CodeOutput(
                stdout="" if is_failed else logs, stderr=logs if is_failed else "", return_code=int(is_failed)
            )
            return CodeResultBlock(tool_use_id=_convert_id(SERVER_TOOL_PREFIX, item.id), content=output_block)
        case WebSearchCall():
            return _build_search_result(item, _convert_id(SERVER_TOOL_PREFIX, item.id), is_failed=is_failed)


def add_to_counts(counts: ServerToolCounts, item: WebSearchCall) -> ServerToolCounts:
    """Returns the counts with those of a web search that has ended."""
    is_opened, has_worked = is_page(item), item.status != "failed"
    return ServerToolCounts(
        web_search_requests=counts.web_search_requests + (has_worked and not is_opened),
        web_fetch_requests=counts.web_fetch_requests + (has_worked and is_opened),
    )


def _build_search_result(item: WebSearchCall, call_id: str, *, is_failed: bool) -> ResultBlock:
    if is_page(item):
        page = FetchError() if is_failed else FetchedPage(url=item.action.get("url") or "")
        return FetchResultBlock(tool_use_id=call_id, content=page)
    pages = tuple(FoundPage(url=url, title=url) for url in list_source_urls(item))
    return SearchResultBlock(tool_use_id=call_id, content=SearchError() if is_failed else pages)


def _convert_id(prefix: str, item_id: str) -> str:
    return prefix + item_id.partition("_")[2]
