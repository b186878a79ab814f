"""Reads the blocks of earlier calls of tools that a server ran, so that the model is shown the calls and their outputs.

A call and its result are two blocks here, and one item in the Responses API. Ids are those of the items with another
prefix, as `app/projections/messages/hosted_blocks.py` writes them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.app.requests.fields.checks import (
    check_boolean,
    check_content,
    check_object,
    check_string,
    require_key,
    require_string,
)
from antiphon.events.hosted_inputs import (
    AnyHostedInput,
    InputCodeCall,
    InputCodeOutput,
    InputMcpCall,
    InputSearchAction,
    InputWebSearchCall,
)

SentBlock = Mapping[str, Any]
HOSTED_CALL_BLOCK_TYPES = ("mcp_tool_use", "server_tool_use")
RESULT_TYPES = frozenset(
    "mcp_tool_result web_search_tool_result web_fetch_tool_result code_execution_tool_result".split()
)
_ITEM_PREFIXES = {"mcp_tool_use": "mcp", "web_search": "ws", "web_fetch": "ws", "code_execution": "ci"}
"""Prefixes of the ids of items, by the type of the block or the name of its tool."""


def read_hosted_call(block: SentBlock, path: str, later: Sequence[tuple[SentBlock, str]]) -> AnyHostedInput | None:
    """Returns the item of a call; None for a tool that has none. Raises `ApiError` 400.

    `later` are the blocks behind it in its message, with their paths. One may be its result.
    """
    call_id, name, sent = (require_key(block, key, path) for key in ("id", "name", "input"))
    check_string(call_id, f"{path}.id")
    check_string(name, f"{path}.name")
    check_object(sent, f"{path}.input")
    is_mcp = block["type"] == "mcp_tool_use"
    prefix = _ITEM_PREFIXES.get("mcp_tool_use" if is_mcp else name)
    if prefix is None:
        return None
    found = ((each, at) for each, at in later if each["type"] in RESULT_TYPES and each.get("tool_use_id") == call_id)
    result, result_path = next(found, (None, ""))
    item_id = f"{prefix}_{call_id.partition('_')[2] or call_id}"
    if is_mcp:
        return _read_mcp_call(item_id, require_string(block, "server_name", path), name, sent, result, result_path)
    content = None if result is None else require_key(result, "content", result_path)
    if name == "code_execution":
        return _read_code(item_id, sent, content, result_path)
    return _read_search(item_id, name, sent, content, result_path)


def _read_mcp_call(
    item_id: str, label: str, name: str, sent: SentBlock, result: SentBlock | None, path: str
) -> InputMcpCall:
    arguments = json.dumps(sent, ensure_ascii=False, separators=(", ", ": "))
    output = error = None
    if result is not None:
        is_error = result.get("is_error") or False
        check_boolean(is_error, f"{path}.is_error")
        text = _read_texts(result.get("content") or "", f"{path}.content")
        output, error = (None, text) if is_error else (text, None)
    status = "incomplete" if result is None else "completed" if error is None else "failed"
    return InputMcpCall(
        id=item_id, server_label=label, name=name, arguments=arguments, output=output, error=error, status=status
    )


def _read_search(item_id: str, name: str, sent: SentBlock, content: Any, path: str) -> InputWebSearchCall:
    """Returns a web search, or a page that was read. The text of pages is not shown."""
    if name == "web_fetch":
        action = InputSearchAction(type="open_page", url=_text_at(sent, "url"))
    else:
        pages = content if isinstance(content, list) else []
        sources = tuple(
            {"type": "url", "url": url, "title": _text_at(_check_page(page, f"{path}.content[{index}]"), "title")}
            for index, page in enumerate(pages)
            if (url := _text_at(_check_page(page, f"{path}.content[{index}]"), "url"))
        )
        action = InputSearchAction(type="search", query=_text_at(sent, "query"), sources=sources)
    return InputWebSearchCall(id=item_id, action=action, status=_find_status(content))


def _check_page(page: Any, path: str) -> SentBlock:
    check_object(page, path)
    result: SentBlock = page
    return result


def _read_code(item_id: str, sent: SentBlock, content: Any, path: str) -> InputCodeCall:
    status, outputs = _find_status(content), None
    if isinstance(content, dict) and status == "completed":
        logs = "\n".join(filter(None, (_text_at(content, "stdout"), _text_at(content, "stderr"))))
        outputs = (InputCodeOutput(type="logs", logs=logs),) if logs else ()
        code = content.get("return_code")
        status = "failed" if isinstance(code, int) and code else status
    elif content is not None and not isinstance(content, dict):
        check_object(content, f"{path}.content")
    return InputCodeCall(id=item_id, code=_text_at(sent, "code"), outputs=outputs, status=status)


def _find_status(content: Any) -> str:
    """Returns the status of a call whose result has this content; None if it has none."""
    if content is None:
        return "incomplete"
    is_failed = isinstance(content, dict) and str(content.get("type")).endswith("_error")
    return "failed" if is_failed else "completed"


def _read_texts(content: Any, path: str) -> str:
    """Returns the text of a result: a string, or text blocks."""
    if isinstance(content, str):
        return content
    check_content(content, path)
    return "\n".join(_text_at(block, "text") for block in content)


def _text_at(value: SentBlock, key: str) -> str:
    text = value.get(key)
    return text if isinstance(text, str) else ""
