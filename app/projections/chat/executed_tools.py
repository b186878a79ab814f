"""Calls that the server ran, as a chat message tells them: the client must not run them, so they are no tool calls."""

from msgspec import UNSET

from antiphon.app.projections.chat.schema import ExecutedTool, FoundPassage, FoundResults
from antiphon.app.projections.hosted_calls import (
    FAILED,
    describe_failure,
    list_source_urls,
    read_logs,
    write_arguments,
)
from antiphon.events.hosted import CodeInterpreterCall, FileSearchCall, McpCall, ServerCallItem, WebSearchCall


def build_executed_tool(call: ServerCallItem, index: int) -> ExecutedTool:
    """Returns call number `index`, which has ended."""
    arguments = write_arguments(call)
    is_failed = call.status == "failed"
    error = FAILED if is_failed else UNSET
    match call:
        case McpCall():
            return ExecutedTool(
                index=index,
                type="mcp",
                server_label=call.server_label,
                name=call.name,
                arguments=arguments,
                output=call.output if isinstance(call.output, str) else None,
                error=describe_failure(call) or error,
            )
        case WebSearchCall():
            urls = list_source_urls(call)
            is_page = isinstance(call.action, dict) and call.action.get("type") == "open_page"
            return ExecutedTool(
                index=index,
                type="web_search",
                name="open_page" if is_page else "web_search",
                arguments=arguments,
                output=None if is_failed or is_page else "\n".join(urls),
                search_results=FoundResults(results=tuple(FoundPassage(url=url) for url in urls)) if urls else UNSET,
                error=error,
            )
        case CodeInterpreterCall():
            return ExecutedTool(
                index=index,
                type="code_interpreter",
                name="code_interpreter",
                arguments=arguments,
                output=read_logs(call),
                error=error,
            )
        case FileSearchCall():
            return _build_file_search(call, index, arguments)


def _build_file_search(call: FileSearchCall, index: int, arguments: str) -> ExecutedTool:
    passages = tuple(
        FoundPassage(
            title=result.get("filename") or "", content=result.get("text") or "", score=result.get("score", UNSET)
        )
        for result in call.results or ()
    )
    is_failed = call.status == "failed"
    return ExecutedTool(
        index=index,
        type="file_search",
        name="file_search",
        arguments=arguments,
        output=None if is_failed else "\n\n".join(f"{each.title}\n{each.content}" for each in passages),
        search_results=FoundResults(results=passages) if passages else UNSET,
        error=FAILED if is_failed else UNSET,
    )
