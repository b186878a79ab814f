"""The table itself: every state driven with every input, and the cells as DESIGN draws them."""

import copy
from typing import get_args

import pytest

from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.drafts import CustomCallDraft, FunctionCallDraft, MessageDraft, ReasoningDraft
from antiphon.state.machine import Machine
from antiphon.state.segments import Call, Close, Refuse, Say, Think
from antiphon.state.table import GUARDS, TABLE, IllegalInput, Input, State, Verb
from tests.state.machine_helpers import EVERYTHING, machine

WAYS: dict[str, list[str]] = {
    "NEW": [],
    "QUEUED": ["queue"],
    "IDLE, nothing said": ["begin"],
    "IDLE, after an item": ["begin", "say", "close"],
    "REASONING": ["begin", "think"],
    "MESSAGE, text part": ["begin", "say"],
    "MESSAGE, refusal part": ["begin", "refuse"],
    "CALL, function": ["begin", "call"],
    "CALL, custom": ["begin", "custom"],
    "ENDED": ["begin", "stop"],
}
LETTERS = {
    "custom": Input.CALL,
    "think blank": Input.THINK_BLANK,
    "say blank": Input.SAY_BLANK,
    "refuse blank": Input.REFUSE_BLANK,
}


def letter_of(step: str) -> Input:
    return LETTERS.get(step) or Input[step.upper()]


def reach(way: str) -> Machine:
    m = machine()
    for step in WAYS[way]:
        EVERYTHING[step](m)
    return m


def ending(m: Machine) -> list[Event]:
    """Something that tells two machines apart: what they say when they go on."""
    said: list[Event] = []
    for step in ("begin", "say", "close", "call", "close", "stop"):
        try:
            said += EVERYTHING[step](m)
        except IllegalInput:
            continue
    return said


def test_the_steps_reach_every_state_and_every_letter() -> None:
    assert {reach(way).state for way in WAYS} == set(State)
    assert {letter_of(step) for step in EVERYTHING} == set(Input)


@pytest.mark.parametrize("step", EVERYTHING)
@pytest.mark.parametrize("way", WAYS)
def test_every_state_with_every_input(way: str, step: str) -> None:
    m = reach(way)
    before = m.state
    cell = TABLE.get((before, letter_of(step)))
    guard = GUARDS.get((before, letter_of(step)))
    allowed = cell is not None and not (
        (guard == "no item yet" and way == "IDLE, after an item")
        or (guard == "text part open" and way == "MESSAGE, refusal part")
    )
    if allowed and cell is not None:
        EVERYTHING[step](m)
        assert m.state is cell.next
        return
    untouched = copy.deepcopy(m)
    with pytest.raises(IllegalInput) as caught:
        EVERYTHING[step](m)
    assert caught.value.state is before and caught.value.symbol is letter_of(step)
    assert m.state is before and m.response == untouched.response and m.dropped_text == untouched.dropped_text
    assert list(m.trace) == list(untouched.trace)
    assert [encode_event(e) for e in ending(m)] == [encode_event(e) for e in ending(untouched)], (
        "an illegal input changes nothing"
    )


def test_ended_accepts_nothing() -> None:
    assert not [pair for pair in TABLE if pair[0] is State.ENDED]


def test_every_verb_is_used_and_every_word_is_a_verb() -> None:
    used = {verb for cell in TABLE.values() for verb in cell.verbs}
    assert used == set(get_args(Verb))


def test_every_guard_stands_on_a_cell() -> None:
    assert set(GUARDS) <= set(TABLE)


def test_another_phase_needs_a_close() -> None:
    m = machine()
    m.begin()
    m.feed(Say("a", "commentary"))
    for text in ("b", " "):
        with pytest.raises(IllegalInput, match="unless same phase"):
            m.feed(Say(text, "final_answer"))
    m.feed(Close())
    m.feed(Say("b", "final_answer"))
    m.stop()
    assert [item.phase for item in m.response.output] == ["commentary", "final_answer"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("segment", "draft"),
    [(Think("a"), ReasoningDraft), (Say("a"), MessageDraft), (Refuse("a"), MessageDraft), (Call("f"), FunctionCallDraft),
     (Call("g", kind="custom"), CustomCallDraft)],
)  # fmt: skip
def test_an_item_is_closed_once(segment: Think | Say | Refuse | Call, draft: type) -> None:
    m = machine()
    m.begin()
    m.feed(segment)
    m.feed(Close())
    assert m.feed(Close()) == [], "a second close finds nothing open"
    assert m.state is State.IDLE


DRAWN = """
in       | THINK                                 | THINK_BLANK | SAY                                 | SAY_BLANK             | CALL                         | CLOSE            | STOP                        | CUT
IDLE      | REASONING: drop open grow             | IDLE: discard | MESSAGE: open grow                 | IDLE: hold             | CALL: drop open              | IDLE: drop        | ENDED: drop complete        | ENDED: drop incomplete
REASONING| REASONING: grow                       | REASONING: hold | MESSAGE: drop close open grow   | IDLE: drop close hold  | CALL: drop close open        | IDLE: drop close  | ENDED: drop close complete  | ENDED: drop cut incomplete
MESSAGE  | REASONING: drop close open grow       | MESSAGE: discard | MESSAGE: grow                  | MESSAGE: hold         | CALL: drop close open        | IDLE: flush close | ENDED: flush close complete | ENDED: flush cut incomplete
CALL     | ENDED: freeze fail                    | CALL: discard | ENDED: freeze fail                | CALL: discard         | ENDED: freeze fail           | IDLE: close       | ENDED: freeze fail          | ENDED: freeze incomplete
"""


def test_the_cells_are_those_of_the_design() -> None:
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in DRAWN.strip().splitlines()]
    for state, *cells in rows:
        for letter, drawn in zip(head[1:], cells, strict=True):
            target, _, verbs = drawn.partition(":")
            assert TABLE[State[state], Input[letter]] == (State[target], tuple(verbs.split())), (state, letter)
    assert {s for s, x in TABLE if x is Input.ARGUMENTS} == {State.CALL}
    assert {s for s, x in TABLE if x is Input.CITE} == {State.MESSAGE}
