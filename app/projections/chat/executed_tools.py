"""Calls that the server ran, as a chat message tells them: the client must not run them, so they are no tool calls."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from antiphon.app.projections.chat.schema import ExecutedTool, FoundPassage, FoundResults
from antiphon.app.projections.hosted_calls import (
    FAILED,
    describe_failure,
    is_page,
    list_source_urls,
    read_logs,
    write_arguments,
)
from antiphon.events.hosted import CodeInterpreterCall, FileSearchCall, McpCall, ServerCallItem, WebSearchCall


def build_executed_tool(call: ServerCallItem, index: int) -> ExecutedTool:
    """Returns call number `index`, which has ended."""
    is_failed = call.status == "failed"
    kind: Any = str(call.__struct_config__.tag).removesuffix("_call")
    error = FAILED if is_failed else UNSET
    tool = ExecutedTool(index=index, type=kind, name=kind, arguments=write_arguments(call), output=None, error=error)
    match call:
        case McpCall():
            return structs.replace(
                tool,
                server_label=call.server_label,
                name=call.name,
                output=call.output if isinstance(call.output, str) else None,
                error=describe_failure(call) or error,
            )
        case WebSearchCall():
            urls = list_source_urls(call)
            if is_page(call):
                tool = structs.replace(tool, name="open_page")
            elif not is_failed:
                tool = structs.replace(tool, output="\n".join(urls))
            return _add_results(tool, [FoundPassage(url=url) for url in urls])
        case CodeInterpreterCall():
            return structs.replace(tool, output=read_logs(call))
        case FileSearchCall():
            passages = [
                FoundPassage(
                    title=result.get("filename") or "",
                    content=result.get("text") or "",
                    score=result.get("score", UNSET),
                )
                for result in call.results or ()
            ]
            if not is_failed:
                text = "\n\n".join(f"{each.title}\n{each.content}" for each in passages)
                tool = structs.replace(tool, output=text)
            return _add_results(tool, passages)


def _add_results(tool: ExecutedTool, passages: Sequence[FoundPassage]) -> ExecutedTool:
    return structs.replace(tool, search_results=FoundResults(results=tuple(passages))) if passages else tool
