"""`truncation: auto` removes whole units, oldest first, so that no remaining item refers to a removed one."""

import itertools
from collections.abc import Sequence
from itertools import product

import pytest

from antiphon.app.requests.responses.conversation import check_calls
from antiphon.app.requests.responses.input_items import read_input
from antiphon.app.turns.prompts.truncation import list_units, truncate_input
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.harmony.format import PromptInput

SYSTEM = {"role": "developer", "content": "D"}
USER = {"role": "user", "content": "U"}
ASSISTANT = {"role": "assistant", "content": "A"}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]}


def make_call(name: str) -> dict[str, object]:
    return {"type": "function_call", "call_id": name, "name": "weather", "arguments": "{}"}


def make_call_output(name: str) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": name, "output": "O"}


def make_prompt_input(*entries: dict[str, object]) -> PromptInput:
    return PromptInput(items=read_input(list(entries), lambda _: None).items)


LONG_INPUT = make_prompt_input(
    SYSTEM, USER, REASONING, make_call("a"), make_call("b"), make_call_output("a"), make_call_output("b"), SYSTEM, ASSISTANT, USER, REASONING, REASONING, make_call("c"), make_call_output("c"), REASONING, ASSISTANT, USER
)  # fmt: skip


def test_units_are_removed_together() -> None:
    assert [sorted(unit) for unit in list_units(LONG_INPUT.items)] == [
        [1], [2, 3, 5], [4, 6], [8], [9], [10, 11, 12, 13], [14, 15],
    ]  # fmt: skip


def test_truncation_removes_the_fewest_oldest_units() -> None:
    for limit in range(len(LONG_INPUT.items) + 1):
        sizes: list[int] = []

        def fits(conversation: PromptInput, limit: int = limit, sizes: list[int] = sizes) -> bool:
            sizes.append(len(conversation.items))
            return len(conversation.items) <= limit

        truncated = truncate_input(LONG_INPUT, fits)
        if limit < 3:  # two developer messages and the newest item
            assert truncated is None
            continue
        removed_counts = itertools.accumulate(map(len, list_units(LONG_INPUT.items)))
        fewest = next(count for count in removed_counts if len(LONG_INPUT.items) - count <= limit)
        assert truncated is not None and len(truncated.items) == len(LONG_INPUT.items) - fewest
        check_calls(truncated.items)
        assert truncated.items[-1] is LONG_INPUT.items[-1]
        assert sum(is_developer_message(item) for item in truncated.items) == 2
        expected = [item for item in LONG_INPUT.items if any(item is other for other in truncated.items)]
        assert list(truncated.items) == expected, "in the same order"
        assert len(sizes) <= 6


def is_developer_message(item: AnyInput) -> bool:
    return isinstance(item, InputMessage) and item.role == "developer"


@pytest.mark.parametrize("kinds", list(product("UATCS", repeat=4)), ids="".join)
def test_truncated_input_is_valid_for_any_order_of_items(kinds: Sequence[str]) -> None:
    entries: list[dict[str, object]] = []
    pending_calls: list[str] = []
    for index, kind in enumerate(kinds):
        if kind == "C":
            entries.append(make_call(str(index)))
            pending_calls.append(str(index))
        else:
            entries.append({"U": USER, "A": ASSISTANT, "T": REASONING, "S": SYSTEM}[kind])
    entries += [make_call_output(name) for name in pending_calls] + [USER]
    prompt_input = make_prompt_input(*entries)
    for limit in range(1, len(prompt_input.items)):
        truncated = truncate_input(prompt_input, lambda candidate, limit=limit: len(candidate.items) <= limit)  # type: ignore[misc]
        if truncated is not None:
            check_calls(truncated.items)
            assert truncated.items[-1] is prompt_input.items[-1]


MCP_CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}", "output": "O"}
APPROVED_CALL = {**MCP_CALL, "approval_request_id": "mcpr_1"}
REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "f", "arguments": "{}"}
YES = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
NO = {**YES, "approve": False}


@pytest.mark.parametrize(
    ("entries", "units"),
    [
        ([USER, REASONING, MCP_CALL, ASSISTANT, USER], [[0], [1, 2], [3]]),
        ([USER, REASONING, REQUEST, USER, YES, APPROVED_CALL, ASSISTANT, USER], [[0], [1, 2, 4, 5], [3], [6]]),
        ([USER, REQUEST, ASSISTANT, APPROVED_CALL, USER], [[0], [1, 3], [2]]),
        ([USER, YES, ASSISTANT, APPROVED_CALL, ASSISTANT], [[1, 3], [2], [4]]),
        ([USER, REQUEST, NO], [[1, 2]]),
        ([USER, REQUEST], [[1]]),
        ([USER, ASSISTANT, REQUEST, YES], [[1]]),
        ([USER, ASSISTANT, REQUEST, YES, USER], [[0], [1]]),
        ([USER, ASSISTANT, REQUEST, {**REQUEST, "id": "mcpr_2"}, YES], [[1], [3]]),
    ],
)  # fmt: skip
def test_approval_and_its_call_are_one_unit(entries: list[dict[str, object]], units: list[list[int]]) -> None:
    items = make_prompt_input(*entries).items
    assert [sorted(unit) for unit in list_units(items)] == units


def test_single_unit_cannot_be_truncated() -> None:
    assert truncate_input(make_prompt_input(USER), lambda _: True) is None
    assert truncate_input(PromptInput(), lambda _: True) is None
