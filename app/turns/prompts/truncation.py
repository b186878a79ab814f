"""`truncation: auto`: removes the oldest items, in whole units, until the prompt fits.

System and developer messages, the newest unit and the newest user message are kept: many templates reject a
conversation without a user message. A call, its output and the reasoning that led to it form one unit, so that no
remaining item refers to a removed one; so do a request for approval, its response and its call.
"""

from collections.abc import Callable, Sequence

from msgspec import structs

from antiphon.events.inputs import AnyInput, InputCall, InputMessage, InputOutput, InputReasoning
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.hosted_items import find_approval_id, find_approved_calls
from antiphon.harmony.prompt.messages import is_instruction


def truncate_input(conversation: PromptInput, fits: Callable[[PromptInput], bool]) -> PromptInput | None:
    """Removes as few of the oldest units as needed for the conversation to fit. Returns None if it cannot fit.

    Calls `fits` about log2(n) times for n units.
    """
    units = list_units(conversation.items)
    newest = conversation.items[-1:]
    # The newest unit is kept. If the last item is a user message, that message is kept, and is in none of the units.
    low, high = 1, len(units) - (not newest or not _is_user_message(newest[0]))
    if high < low or not fits(_without_items(conversation, units[:high])):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(_without_items(conversation, units[:middle])):
            high = middle
        else:
            low = middle + 1
    return _without_items(conversation, units[:high])


def list_units(items: Sequence[AnyInput]) -> list[frozenset[int]]:
    """Returns sets of indexes of items to remove together, oldest first.

    System and developer messages and the newest user message are in none, nor are calls that the newest items approve.
    Example: user, reasoning, call, output, user gives {0}, {1, 2, 3}.
    """
    newest_user = max((index for index, item in enumerate(items) if _is_user_message(item)), default=-1)
    units: list[set[int]] = []
    unit_of_call: dict[str, set[int]] = {}
    unit_of_approval: dict[str, set[int]] = {}
    approved_calls = find_approved_calls(items)
    after_reasoning = False
    for index, item in enumerate(items):
        approval_id = find_approval_id(item)
        if index == newest_user or is_instruction(item) or approval_id in approved_calls:
            continue
        if approval_id in unit_of_approval:
            unit_of_approval[approval_id].add(index)
            continue
        if isinstance(item, InputOutput) and item.call_id in unit_of_call:
            unit_of_call[item.call_id].add(index)
            continue
        if not after_reasoning:
            units.append(set())
        units[-1].add(index)
        if isinstance(item, InputCall):
            unit_of_call[item.call_id] = units[-1]
        if approval_id is not None:
            unit_of_approval[approval_id] = units[-1]
        after_reasoning = isinstance(item, InputReasoning)
    return [frozenset(unit) for unit in units]


def _is_user_message(item: AnyInput) -> bool:
    return isinstance(item, InputMessage) and item.role == "user"


def _without_items(conversation: PromptInput, units: Sequence[frozenset[int]]) -> PromptInput:
    removed = frozenset().union(*units)
    kept = tuple(item for index, item in enumerate(conversation.items) if index not in removed)
    return structs.replace(conversation, items=kept)
