"""`truncation: auto`: the oldest items are left out, whole, until the rest fits.

What instructs the model stays, and so do the newest unit and the user's newest message: many templates know no
conversation without one. A call goes with its output and with the reasoning that
led to it, so that nothing is left that refers to what is gone.
"""

from collections.abc import Callable, Sequence

from msgspec import structs

from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
)
from antiphon.harmony.format import PromptInput

AnyCall = InputFunctionCall | InputCustomCall
AnyOutput = InputFunctionOutput | InputCustomOutput


def truncate_input(conversation: PromptInput, fits: Callable[[PromptInput], bool]) -> PromptInput | None:
    """The conversation without as many of its oldest units as it takes; None where nothing helps.

    `fits` is asked about log2 of the number of units.
    """
    parts = list_units(conversation.items)
    newest = conversation.items[-1:]
    # The newest unit stays; where the user spoke last, that is none of these.
    low, high = 1, len(parts) - (not newest or not _is_user_message(newest[0]))
    if high < low or not fits(_without_items(conversation, parts[:high])):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(_without_items(conversation, parts[:middle])):
            high = middle
        else:
            low = middle + 1
    return _without_items(conversation, parts[:high])


def list_units(items: Sequence[AnyInput]) -> list[frozenset[int]]:
    """The places of what is left out together, oldest first; what instructs is in none."""
    asked = max((place for place, item in enumerate(items) if _is_user_message(item)), default=-1)
    found: list[set[int]] = []
    of_call: dict[str, set[int]] = {}
    joins = False
    for place, item in enumerate(items):
        if place == asked or (isinstance(item, InputMessage) and item.role in ("system", "developer")):
            continue
        if isinstance(item, AnyOutput) and item.call_id in of_call:
            of_call[item.call_id].add(place)
            continue
        if not joins:
            found.append(set())
        found[-1].add(place)
        if isinstance(item, AnyCall):
            of_call[item.call_id] = found[-1]
        joins = isinstance(item, InputReasoning)
    return [frozenset(unit) for unit in found]


def _is_user_message(item: AnyInput) -> bool:
    return isinstance(item, InputMessage) and item.role == "user"


def _without_items(conversation: PromptInput, gone: Sequence[frozenset[int]]) -> PromptInput:
    places = frozenset().union(*gone)
    kept = tuple(item for place, item in enumerate(conversation.items) if place not in places)
    return structs.replace(conversation, items=kept)
