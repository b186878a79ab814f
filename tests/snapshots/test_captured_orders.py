"""The events of each item come in the order of streams that were captured from OpenAI's API.

The orders are those of the recordings in `packages/openai/src/responses/__fixtures__` of the repository vercel/ai, whose
names begin with `openai-`. A name stands for one event, a name with `+` for one or more in a row.
"""

import re
from itertools import groupby
from typing import Any

import pytest

from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import Case
from tests.snapshots.run_case import read_responses

COMMAND = r"shell_call_command.added (shell_call_command.delta\+ )?shell_call_command.done "
DIFF = r"apply_patch_call_operation_diff.delta\+ apply_patch_call_operation_diff.done "
ITEM_ORDERS = {
    "shell_call": rf"output_item.added ({COMMAND})+output_item.done ",  # shell-tool.1
    "apply_patch_call": rf"output_item.added ({DIFF})?output_item.done ",  # apply-patch-tool.1, -delete.1
    "local_shell_call": "output_item.added output_item.done ",  # local-shell-tool.1
    "tool_search_call": "output_item.added output_item.done ",  # client-tool-search.1
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


@pytest.mark.parametrize("case", [*BUILTIN_CASES, *COMPACTION_CASES], ids=lambda case: case.name)
async def test_items_have_the_order_of_captured_streams(case: Case) -> None:
    events = (await read_responses(case)).data
    ends = [event["type"].removeprefix("response.") for event in events]
    if not ends or ends == ["error"]:
        return  # the request is refused
    assert ends[:2] == ["created", "in_progress"]
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


def test_orders_tell_cut_items_from_wrong_ones() -> None:
    shell = ITEM_ORDERS["shell_call"]
    assert is_begin(shell, "output_item.added ") and is_begin(shell, "output_item.added shell_call_command.added ")
    assert not is_begin(shell, "output_item.added shell_call_command.done ")
    assert not re.fullmatch(shell, "output_item.added output_item.done ")
