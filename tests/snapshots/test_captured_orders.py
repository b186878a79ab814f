"""The events of each item come in the order of streams that were captured from OpenAI's API.

The orders are those of the recordings in `packages/openai/src/responses/__fixtures__` of the repository vercel/ai, whose
names begin with `openai-`. A name stands for one event, a name with `+` for one or more in a row.
"""

import re

import pytest

from tests.kit.checker.openai_hosted_streams import OPENAI_STREAMS
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.captured_orders import ITEM_ORDERS, check_item_orders, is_begin, list_item_events
from tests.snapshots.cases import Case
from tests.snapshots.run_case import read_responses
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import ToolCase, run_tool_case


@pytest.mark.parametrize("case", [*BUILTIN_CASES, *COMPACTION_CASES], ids=lambda case: case.name)
async def test_items_have_the_order_of_captured_streams(case: Case) -> None:
    check_item_orders((await read_responses(case)).data)


@pytest.mark.parametrize("case", TOOL_CASES, ids=lambda case: case.name)
async def test_items_of_hosted_tools_have_the_order_of_captured_streams(case: ToolCase) -> None:
    check_item_orders((await run_tool_case(case)).events)


WHOLE_STREAMS = {
    "one_call": "openai-mcp-tool.1",
    "approval_asked": "openai-mcp-tool-approval.1",
    "approval_denied_with_all_items": "openai-mcp-tool-approval.2",
    "approval_given_with_all_items": "openai-mcp-tool-approval.4",
}
"""Names of recordings by the case that has the same items."""
OPEN_REASONING = re.compile(r"content_part\.added reasoning_text\.delta\+ reasoning_text\.done content_part\.done ")


@pytest.mark.parametrize("name", WHOLE_STREAMS)
async def test_turns_with_hosted_tools_have_the_order_of_captured_streams(name: str) -> None:
    """OpenAI does not show what its models think."""
    (case,) = (case for case in TOOL_CASES if case.name == name)
    items = list_item_events((await run_tool_case(case)).events).values()
    captured = list_item_events(OPENAI_STREAMS[WHOLE_STREAMS[name]]()).values()
    assert [(kind, OPEN_REASONING.sub("", order)) for kind, order in items] == list(captured)


def test_orders_tell_cut_items_from_wrong_ones() -> None:
    shell = ITEM_ORDERS["shell_call"]
    assert is_begin(shell, "output_item.added ") and is_begin(shell, "output_item.added shell_call_command.added ")
    assert not is_begin(shell, "output_item.added shell_call_command.done ")
    assert not re.fullmatch(shell, "output_item.added output_item.done ")
