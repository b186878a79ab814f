"""Selects the items of a conversation that a compaction keeps as they are: the newest, within a number of tokens."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import structs

from antiphon.app.requests.responses.compaction import is_summary, outlasts_compaction
from antiphon.app.turns.prompts.truncation import list_units
from antiphon.events.hosted_inputs import InputMcpCall, InputMcpList
from antiphon.events.inputs import (
    AnyInput,
    ConfigurationUpdate,
    InputCustomOutput,
    InputFunctionOutput,
    InputMessage,
    InputPatchOutput,
    InputShellOutput,
)
from antiphon.harmony.prompt.async_calls import is_pending
from antiphon.harmony.prompt.hosted_items import find_approval_id, find_open_approvals
from antiphon.harmony.prompt.messages import content_text

MIN_CUT_CHARS = 200
"""Length up to which a text is never cut."""
MIN_PART_TOKENS = 32
"""Room below which no part of an item is kept: the note of what was left out takes as much."""

CountTokens = Callable[[str], int]


class KeptItems:
    """The items that stay, within `budget` tokens. `count` returns the number of tokens of a text.

    Instructions, added tools, updates of the settings, calls that wait for their output, and requests for approval that
    wait for a response or have it in the newest items always stay, and are not counted. The last user message comes
    first, then the calls, outputs and messages after it, from the newest on, then earlier user messages, from the
    newest on. A call and its output stay together. An item that does not fit in whole is cut if it is the last user
    message, the newest output, or the first user message that does not fit.
    """

    def __init__(self, items: Sequence[AnyInput], budget: int, count: CountTokens) -> None:
        self._items, self._count, self._room = items, count, budget
        open_approvals = find_open_approvals(items)
        self._kept: dict[int, AnyInput] = {
            index: item
            for index, item in enumerate(items)
            if outlasts_compaction(item)
            or isinstance(item, ConfigurationUpdate)
            or is_pending(index, items)
            or find_approval_id(item) in open_approvals
        }

    def select(self) -> tuple[AnyInput, ...]:
        """Returns the items in the order of the conversation."""
        user_messages = [index for index, item in enumerate(self._items) if _is_user_message(item)]
        last = user_messages[-1] if user_messages else -1
        if user_messages:
            self._keep_part(last, self._room // 2)
        self._keep_units_after(last)
        for index in reversed(user_messages[:-1]):
            if not self._keep_whole([index]):
                self._keep_part(index, self._room)
                break
        return tuple(self._kept[index] for index in sorted(self._kept))

    def _keep_units_after(self, last_user: int) -> None:
        units = [sorted(unit - self._kept.keys()) for unit in list_units(self._items)]
        newer = [unit for unit in units if unit and unit[0] > last_user and _is_worth_keeping(self._items[unit[0]])]
        for number, unit in enumerate(reversed(newer)):
            if self._keep_whole(unit):
                continue
            if number == 0:  # the model has not seen the newest outputs yet
                self._keep_cut_outputs(unit)
            return

    def _keep_whole(self, unit: Sequence[int]) -> bool:
        """Keeps the items if they fit. Tells whether they do."""
        size = sum(self._count_item(self._items[index]) for index in unit)
        if size > self._room:
            return False
        self._room -= size
        self._kept |= {index: self._items[index] for index in unit}
        return True

    def _keep_cut_outputs(self, unit: Sequence[int]) -> None:
        """Keeps the items with their texts cut, so that all fit if their calls do."""
        sizes = {index: self._count_item(self._items[index]) for index in unit}
        cuttable = [index for index in unit if _can_be_cut(self._items[index])]
        rest = self._room - sum(size for index, size in sizes.items() if index not in cuttable)
        for index in unit:
            share = rest * sizes[index] // max(sum(sizes[each] for each in cuttable), 1)
            item = self._items[index]
            self._kept[index] = self._cut_item(item, max(share, MIN_PART_TOKENS)) if index in cuttable else item
        self._room = 0

    def _keep_part(self, index: int, size: int) -> None:
        """Keeps a message, cut to a number of tokens if it has more."""
        item = self._items[index]
        if self._count_item(item) > size:
            if size < MIN_PART_TOKENS:
                return
            item = self._cut_item(item, size)
        self._kept[index] = item
        self._room -= self._count_item(item)

    def _count_item(self, item: AnyInput) -> int:
        return self._count(msgspec.json.encode(item).decode())

    def _cut_item(self, item: AnyInput, size: int) -> AnyInput:
        """Returns the item with its texts shortened to `size` tokens in total, about."""
        tokens = max(self._count_item(item), 1)
        ratio = min(size / tokens, 1.0)

        def cut(text: str) -> str:
            return cut_middle(text, int(len(text) * ratio))

        match item:
            case InputMessage():
                return structs.replace(item, content=cut(content_text(item.content)))
            case InputFunctionOutput() | InputCustomOutput():
                return structs.replace(item, output=cut(content_text(item.output)))
            case InputShellOutput():
                outputs = (
                    structs.replace(each, stdout=cut(each.stdout), stderr=cut(each.stderr)) for each in item.output
                )
                return structs.replace(item, output=tuple(outputs))
            case InputPatchOutput() | InputMcpCall():
                return structs.replace(item, output=cut(item.output or ""))
            case _:
                return item


def cut_middle(text: str, length: int) -> str:
    """Returns the beginning and the end of a text, `length` characters in total, with a note of what is left out."""
    if len(text) <= max(length, MIN_CUT_CHARS):
        return text
    head, tail = length - length // 2, length // 2
    end = text[len(text) - tail :]
    return f"{text[:head]}\n[{len(text) - length} characters were left out]\n{end}"


def _can_be_cut(item: AnyInput) -> bool:
    kinds = InputMessage | InputFunctionOutput | InputCustomOutput | InputShellOutput | InputPatchOutput
    return isinstance(item, kinds) or (isinstance(item, InputMcpCall) and bool(item.output))


def _is_worth_keeping(item: AnyInput) -> bool:
    """Tells whether the model reads an item that nothing replaces. A list of tools is fetched again."""
    return not (is_summary(item) or isinstance(item, InputMcpList))


def _is_user_message(item: AnyInput) -> bool:
    return isinstance(item, InputMessage) and item.role == "user" and not is_summary(item)
