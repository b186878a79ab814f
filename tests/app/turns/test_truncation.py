"""`truncation: auto`: whole units, oldest first, and nothing left that refers to what is gone."""

from collections.abc import Sequence
from itertools import product

import pytest

from antiphon.app.requests.input_items import check_calls, read_input
from antiphon.app.turns.truncation import list_units, truncate_input
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.harmony.format import PromptInput

SYSTEM = {"role": "developer", "content": "D"}
USER = {"role": "user", "content": "U"}
SAID = {"role": "assistant", "content": "A"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]}


def call(name: str) -> dict[str, object]:
    return {"type": "function_call", "call_id": name, "name": "weather", "arguments": "{}"}


def output(name: str) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": name, "output": "O"}


def talk(*entries: dict[str, object]) -> PromptInput:
    return PromptInput(items=read_input(list(entries), lambda _: None).items)


LONG = talk(
    SYSTEM, USER, THOUGHT, call("a"), call("b"), output("a"), output("b"), SYSTEM, SAID, USER, THOUGHT, THOUGHT, call("c"), output("c"), THOUGHT, SAID, USER
)  # fmt: skip


def test_what_is_left_out_together() -> None:
    assert [sorted(unit) for unit in list_units(LONG.items)] == [
        [1], [2, 3, 5], [4, 6], [8], [9], [10, 11, 12, 13], [14, 15],
    ]  # fmt: skip


def test_as_little_as_it_takes_is_left_out_oldest_first() -> None:
    for most in range(len(LONG.items) + 1):
        asked: list[int] = []

        def fits(conversation: PromptInput, most: int = most, asked: list[int] = asked) -> bool:
            asked.append(len(conversation.items))
            return len(conversation.items) <= most

        rest = truncate_input(LONG, fits)
        if most < 3:  # what instructs, and the newest
            assert rest is None
            continue
        assert rest is not None and len(rest.items) <= most
        check_calls(rest.items)
        assert rest.items[-1] is LONG.items[-1]
        assert sum(_instructs(item) for item in rest.items) == 2
        kept = [item for item in LONG.items if any(item is one for one in rest.items)]
        assert list(rest.items) == kept, "in the same order"
        assert len(asked) <= 6


def _instructs(item: AnyInput) -> bool:
    return isinstance(item, InputMessage) and item.role == "developer"


@pytest.mark.parametrize("kinds", list(product("UATCS", repeat=4)), ids="".join)
def test_whatever_is_left_of_any_talk_is_a_talk(kinds: Sequence[str]) -> None:
    entries: list[dict[str, object]] = []
    waiting: list[str] = []
    for place, kind in enumerate(kinds):
        if kind == "C":
            entries.append(call(str(place)))
            waiting.append(str(place))
        else:
            entries.append({"U": USER, "A": SAID, "T": THOUGHT, "S": SYSTEM}[kind])
    entries += [output(name) for name in waiting] + [USER]
    whole = talk(*entries)
    for most in range(1, len(whole.items)):
        rest = truncate_input(whole, lambda less, most=most: len(less.items) <= most)  # type: ignore[misc]
        if rest is not None:
            check_calls(rest.items)
            assert rest.items[-1] is whole.items[-1]


def test_one_unit_alone_cannot_be_shortened() -> None:
    assert truncate_input(talk(USER), lambda _: True) is None
    assert truncate_input(PromptInput(), lambda _: True) is None
