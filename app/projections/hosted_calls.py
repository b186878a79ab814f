"""Describes calls that the server ran, for replies in other APIs than Responses."""

import json
from typing import Any

from msgspec import UNSET

from antiphon.events.hosted import (
    CodeInterpreterCall,
    FileSearchCall,
    McpCall,
    McpExecutionError,
    McpHttpError,
    McpProtocolError,
    ServerCallItem,
    WebSearchCall,
)

FAILED = "The call failed."


def describe_failure(call: McpCall) -> str:
    """Returns why an MCP call has failed; an empty text if it has not."""
    match call.error:
        case str():
            return call.error or FAILED
        case McpProtocolError(message=message) | McpHttpError(message=message):
            return message or FAILED
        case McpExecutionError(content=content):
            return _join_parts(content) or FAILED
    return ""


def read_logs(call: CodeInterpreterCall) -> str:
    """Returns what code has printed."""
    outputs = call.outputs or ()
    return "\n".join(output["logs"] for output in outputs if isinstance(output.get("logs"), str))


def list_source_urls(call: WebSearchCall) -> list[str]:
    """Returns the URLs of the pages that a web search has found."""
    action = call.action if isinstance(call.action, dict) else {}
    return [source["url"] for source in action.get("sources") or ()]


def is_page(call: WebSearchCall) -> bool:
    """Tells whether a web search has opened a page instead."""
    return isinstance(call.action, dict) and call.action.get("type") == "open_page"


def write_arguments(call: ServerCallItem) -> str:
    """Returns the arguments of a call as JSON."""
    if isinstance(call, McpCall):
        return call.arguments
    return json.dumps(_list_arguments(call), ensure_ascii=False)


def _list_arguments(call: WebSearchCall | CodeInterpreterCall | FileSearchCall) -> dict[str, Any]:
    match call:
        case CodeInterpreterCall():
            return {"code": "" if call.code is UNSET else call.code}
        case FileSearchCall():
            return {"queries": list(call.queries or ())}
    action = call.action if isinstance(call.action, dict) else {}
    return {key: action[key] for key in ("query", "url") if isinstance(action.get(key), str)}


def _join_parts(content: Any) -> str:
    """Returns the text of an error's parts."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
