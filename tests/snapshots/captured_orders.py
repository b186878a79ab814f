"""The orders of events in captured streams of OpenAI."""

import re
from itertools import groupby
from typing import Any

COMMAND = r"shell_call_command.added (shell_call_command.delta\+ )?shell_call_command.done "
DIFF = r"apply_patch_call_operation_diff.delta\+ apply_patch_call_operation_diff.done "
RUNNING = "mcp_call.in_progress "
ITEM_ORDERS = {
    "shell_call": rf"output_item.added ({COMMAND})+output_item.done ",  # shell-tool.1
    "apply_patch_call": rf"output_item.added ({DIFF})?output_item.done ",  # apply-patch-tool.1, -delete.1
    "local_shell_call": "output_item.added output_item.done ",  # local-shell-tool.1
    "tool_search_call": "output_item.added output_item.done ",  # client-tool-search.1, tool-search.1
    "function_call": (  # client-tool-search.2
        r"output_item.added (function_call_arguments.delta\+ )?function_call_arguments.done output_item.done "
    ),
    "custom_tool_call": (  # custom-tool.1
        r"output_item.added (custom_tool_call_input.delta\+ )?custom_tool_call_input.done output_item.done "
    ),
    "message": (  # shell-local-multiturn.1
        r"output_item.added content_part.added output_text.delta\+ output_text.done content_part.done output_item.done "
    ),
    "reasoning": (  # local-shell-tool.1 has no text; with one, as in a message
        r"output_item.added (content_part.added reasoning_text.delta\+ reasoning_text.done content_part.done )?"
        r"output_item.done "
    ),
    "mcp_list_tools": (  # mcp-tool.1
        "output_item.added mcp_list_tools.in_progress mcp_list_tools.completed output_item.done "
    ),
    "mcp_call": (  # mcp-tool.1, mcp-tool-approval.4; while the tool runs, its stage is repeated
        rf"output_item.added {RUNNING}(mcp_call_arguments.delta\+ ({RUNNING})?mcp_call_arguments.done "
        rf"({RUNNING})*(mcp_call.completed |mcp_call.failed ))output_item.done "
    ),
    "mcp_approval_request": "output_item.added output_item.done ",  # mcp-tool-approval.1
    "compaction": "output_item.added (compaction.compacting )?output_item.done ",  # compaction.1, and newer SDKs
}
"""Order of the events of a complete item, by its type. A deletion in a patch has no diff."""


def list_item_events(events: list[dict[str, Any]]) -> dict[int, tuple[str, str]]:
    """Returns the type of each item and the order of its events, by output index. Deltas in a row are one name."""
    kinds = {event["output_index"]: event["item"]["type"] for event in events if event["type"].endswith("item.added")}
    orders: dict[int, str] = dict.fromkeys(kinds, "")
    of_items = [event for event in events if "output_index" in event]
    for (index, kind), _ in groupby(of_items, key=lambda event: (event["output_index"], event["type"])):
        name = kind.removeprefix("response.")
        orders[index] += f"{name}+ " if name.endswith(".delta") else f"{name} "
    return {index: (kinds[index], order) for index, order in orders.items()}


def check_item_orders(events: list[dict[str, Any]]) -> None:
    ends = [event["type"].removeprefix("response.") for event in events]
    if not ends or ends == ["error"]:
        return  # the request is refused
    assert ends[:2] in (["created", "in_progress"], ["created", "queued"])
    assert ends[-1] in ("completed", "incomplete", "failed", "cancelled")
    items = list_item_events(events)
    assert list(items) == sorted(items)
    for kind, order in items.values():
        pattern = ITEM_ORDERS[kind]
        if order.endswith("output_item.done "):
            assert re.fullmatch(pattern, order), (kind, order)
        else:
            assert is_begin(pattern, order), (kind, order)


def is_begin(pattern: str, order: str) -> bool:
    """Tells whether a complete order may begin like this: some of the pattern's events can follow."""
    names = sorted(set(re.findall(r"[a-z_]+\.[a-z]+(?:\\\+)?", pattern)))
    endings = [""]
    for _ in range(6):  # the longest rest of an item
        if any(re.fullmatch(pattern, order + ending) for ending in endings):
            return True
        endings = [f"{name.replace(chr(92), '')} {ending}" for ending in endings for name in names]
    return False
