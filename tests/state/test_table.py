"""The transition table: every state with every input, and the cells as the design document shows them."""

import copy
from typing import get_args

import pytest

from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.drafts import CustomCallDraft, FunctionCallDraft, MessageDraft, ReasoningDraft
from antiphon.state.machine import Machine
from antiphon.state.segments import Call, Close, Refuse, Say, Think
from antiphon.state.table import GUARDS, TABLE, IllegalInput, Input, State, Verb
from tests.state.machine_helpers import ALL_STEPS, create_machine

STEPS_TO_STATE: dict[str, list[str]] = {
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
INPUT_OF_STEP = {
    "custom": Input.CALL,
    "think blank": Input.THINK_BLANK,
    "say blank": Input.SAY_BLANK,
    "refuse blank": Input.REFUSE_BLANK,
}


def find_input(step: str) -> Input:
    return INPUT_OF_STEP.get(step) or Input[step.upper()]


def create_machine_in(path: str) -> Machine:
    machine = create_machine()
    for step in STEPS_TO_STATE[path]:
        ALL_STEPS[step](machine)
    return machine


def collect_following_events(machine: Machine) -> list[Event]:
    """Returns the events of further steps, which differ if two machines differ."""
    events: list[Event] = []
    for step in ("begin", "say", "close", "call", "close", "stop"):
        try:
            events += ALL_STEPS[step](machine)
        except IllegalInput:
            continue
    return events


def test_steps_reach_every_state_and_input() -> None:
    assert {create_machine_in(path).state for path in STEPS_TO_STATE} == set(State)
    assert {find_input(step) for step in ALL_STEPS} == set(Input)


@pytest.mark.parametrize("step", ALL_STEPS)
@pytest.mark.parametrize("path", STEPS_TO_STATE)
def test_every_state_with_every_input(path: str, step: str) -> None:
    machine = create_machine_in(path)
    state = machine.state
    cell = TABLE.get((state, find_input(step)))
    guard = GUARDS.get((state, find_input(step)))
    allowed = cell is not None and not (
        (guard == "no item yet" and path == "IDLE, after an item")
        or (guard == "text part open" and path == "MESSAGE, refusal part")
    )
    if allowed and cell is not None:
        ALL_STEPS[step](machine)
        assert machine.state is cell.next
        return
    untouched = copy.deepcopy(machine)
    with pytest.raises(IllegalInput) as error_info:
        ALL_STEPS[step](machine)
    assert error_info.value.state is state and error_info.value.symbol is find_input(step)
    assert (
        machine.state is state
        and machine.response == untouched.response
        and machine.dropped_text == untouched.dropped_text
    )
    assert list(machine.trace) == list(untouched.trace)
    assert [encode_event(e) for e in collect_following_events(machine)] == [
        encode_event(e) for e in collect_following_events(untouched)
    ], "an illegal input changes nothing"


def test_ended_accepts_nothing() -> None:
    assert not [pair for pair in TABLE if pair[0] is State.ENDED]


def test_table_uses_exactly_the_defined_verbs() -> None:
    used = {verb for cell in TABLE.values() for verb in cell.verbs}
    assert used == set(get_args(Verb))


def test_every_guard_belongs_to_a_cell() -> None:
    assert set(GUARDS) <= set(TABLE)


def test_phase_change_requires_close() -> None:
    machine = create_machine()
    machine.begin()
    machine.feed(Say("a", "commentary"))
    for text in ("b", " "):
        with pytest.raises(IllegalInput, match="unless same phase"):
            machine.feed(Say(text, "final_answer"))
    machine.feed(Close())
    machine.feed(Say("b", "final_answer"))
    machine.stop()
    assert [item.phase for item in machine.response.output] == ["commentary", "final_answer"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("segment", "draft"),
    [(Think("a"), ReasoningDraft), (Say("a"), MessageDraft), (Refuse("a"), MessageDraft), (Call("f"), FunctionCallDraft),
     (Call("g", kind="custom"), CustomCallDraft)],
)  # fmt: skip
def test_second_close_does_nothing(segment: Think | Say | Refuse | Call, draft: type) -> None:
    machine = create_machine()
    machine.begin()
    machine.feed(segment)
    machine.feed(Close())
    assert machine.feed(Close()) == [], "a second close finds nothing open"
    assert machine.state is State.IDLE


DESIGN_TABLE = """
in       | THINK                                 | THINK_BLANK | SAY                                 | SAY_BLANK             | CALL                         | CLOSE            | STOP                        | CUT
IDLE      | REASONING: drop open grow             | IDLE: discard | MESSAGE: open grow                 | IDLE: hold             | CALL: drop open              | IDLE: drop        | ENDED: drop complete        | ENDED: drop incomplete
REASONING| REASONING: grow                       | REASONING: hold | MESSAGE: drop close open grow   | IDLE: drop close hold  | CALL: drop close open        | IDLE: drop close  | ENDED: drop close complete  | ENDED: drop cut incomplete
MESSAGE  | REASONING: drop close open grow       | MESSAGE: discard | MESSAGE: grow                  | MESSAGE: hold         | CALL: drop close open        | IDLE: flush close | ENDED: flush close complete | ENDED: flush cut incomplete
CALL     | ENDED: freeze fail                    | CALL: discard | ENDED: freeze fail                | CALL: discard         | ENDED: freeze fail           | IDLE: close       | ENDED: freeze fail          | ENDED: freeze incomplete
"""


def test_cells_match_the_design_table() -> None:
    header, *rows = [[cell.strip() for cell in row.split("|")] for row in DESIGN_TABLE.strip().splitlines()]
    for state, *cells in rows:
        for input_name, cell in zip(header[1:], cells, strict=True):
            target, _, verbs = cell.partition(":")
            assert TABLE[State[state], Input[input_name]] == (State[target], tuple(verbs.split())), (state, input_name)
    assert {state for state, symbol in TABLE if symbol is Input.ARGUMENTS} == {State.CALL}
    assert {state for state, symbol in TABLE if symbol is Input.CITE} == {State.MESSAGE}
