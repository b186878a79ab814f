"""The transition table: every state with every input, and the cells as the design document shows them."""

import copy
from typing import get_args

import pytest

from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.call_drafts import CustomCallDraft, FunctionCallDraft, PatchCallDraft, ShellCallDraft
from antiphon.state.drafts import MessageDraft, ReasoningDraft
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
    "TOOL": ["begin", "tool"],
    "RUN": ["begin", "compact"],
    "RUN, a tool": ["begin", "tool", "close"],
    "IDLE, after a result": ["begin", "tool", "close", "result"],
    "ENDED": ["begin", "stop"],
}
INPUT_OF_STEP = {
    "custom": Input.CALL,
    "think blank": Input.THINK_BLANK,
    "say blank": Input.SAY_BLANK,
    "refuse blank": Input.REFUSE_BLANK,
}


DRAWN_TABLE = """
in            | NEW                  | QUEUED               | IDLE                      | REASONING                     | MESSAGE                         | CALL                     | TOOL                     | RUN
QUEUE         | QUEUED: create queue | -                    | -                         | -                             | -                               | -                        | -                        | -
BEGIN         | IDLE: create begin   | IDLE: begin          | -                         | -                             | -                               | -                        | -                        | -
KEEPALIVE     | -                    | QUEUED: keepalive    | IDLE: keepalive           | -                             | -                               | -                        | -                        | RUN: keepalive
THINK         | -                    | -                    | REASONING: drop open grow | REASONING: grow               | REASONING: drop close open grow | ENDED: freeze fail       | ENDED: freeze fail       | -
THINK_BLANK   | -                    | -                    | IDLE: discard             | REASONING: hold               | MESSAGE: discard                | CALL: discard            | TOOL: discard            | -
SAY           | -                    | -                    | MESSAGE: open grow        | MESSAGE: drop close open grow | MESSAGE: grow                   | ENDED: freeze fail       | ENDED: freeze fail       | -
SAY_BLANK     | -                    | -                    | IDLE: hold                | IDLE: drop close hold         | MESSAGE: hold                   | CALL: discard            | TOOL: discard            | -
REFUSE        | -                    | -                    | MESSAGE: open grow        | MESSAGE: drop close open grow | MESSAGE: grow                   | ENDED: freeze fail       | ENDED: freeze fail       | -
REFUSE_BLANK  | -                    | -                    | IDLE: hold                | IDLE: drop close hold         | MESSAGE: hold                   | CALL: discard            | TOOL: discard            | -
CITE          | -                    | -                    | -                         | -                             | MESSAGE: cite                   | -                        | -                        | -
CALL          | -                    | -                    | CALL: drop open           | CALL: drop close open         | CALL: drop close open           | ENDED: freeze fail       | ENDED: freeze fail       | -
TOOL          | -                    | -                    | TOOL: drop open           | TOOL: drop close open         | TOOL: drop close open           | ENDED: freeze fail       | ENDED: freeze fail       | -
ARGUMENTS     | -                    | -                    | -                         | -                             | -                               | CALL: grow               | TOOL: grow               | -
CLOSE         | -                    | -                    | IDLE: drop                | IDLE: drop close              | IDLE: flush close               | IDLE: close              | RUN: run                 | -
COMPACT       | -                    | -                    | RUN: drop open            | -                             | -                               | -                        | -                        | -
RESULT        | -                    | -                    | -                         | -                             | -                               | -                        | -                        | IDLE: settle
COMPLETE_ITEM | -                    | -                    | IDLE: drop insert         | IDLE: drop close insert       | IDLE: drop close insert         | ENDED: freeze fail       | ENDED: freeze fail       | -
STOP          | -                    | -                    | ENDED: drop complete      | ENDED: drop close complete    | ENDED: flush close complete     | ENDED: freeze fail       | ENDED: freeze fail       | -
CUT           | -                    | -                    | ENDED: drop incomplete    | ENDED: drop cut incomplete    | ENDED: flush cut incomplete     | ENDED: freeze incomplete | ENDED: freeze incomplete | ENDED: freeze incomplete
STEER         | -                    | -                    | ENDED: drop incomplete    | -                             | -                               | -                        | -                        | -
FAIL          | -                    | ENDED: freeze fail   | ENDED: freeze fail        | ENDED: freeze fail            | ENDED: freeze fail              | ENDED: freeze fail       | ENDED: freeze fail       | ENDED: freeze fail
CANCEL        | -                    | ENDED: freeze cancel | ENDED: freeze cancel      | ENDED: freeze cancel          | ENDED: freeze cancel            | ENDED: freeze cancel     | ENDED: freeze cancel     | ENDED: freeze cancel
"""
"""Every cell, drawn a second time and not read from the code: the next state and the verbs; `-` is illegal."""

DRAWN_GUARDS = {
    (State.IDLE, Input.KEEPALIVE): "no item yet or after a result",
    (State.MESSAGE, Input.SAY): "same phase",
    (State.MESSAGE, Input.SAY_BLANK): "same phase",
    (State.MESSAGE, Input.CITE): "text part open",
}
PATHS_WITH_UNMET_GUARDS = {("IDLE, after an item", "keepalive"), ("MESSAGE, refusal part", "cite")}


def parse_drawn_table() -> dict[tuple[State, Input], tuple[State, tuple[str, ...]]]:
    header, *rows = [[cell.strip() for cell in row.split("|")] for row in DRAWN_TABLE.strip().splitlines()]
    cells = {}
    for name, *row in rows:
        for state, cell in zip(header[1:], row, strict=True):
            target, _, verbs = cell.partition(":")
            if target != "-":
                cells[State[state], Input[name]] = (State[target], tuple(verbs.split()))
    return cells


DRAWN_CELLS = parse_drawn_table()


def test_code_has_exactly_the_drawn_cells_and_guards() -> None:
    assert {pair: (cell.next, cell.verbs) for pair, cell in TABLE.items()} == DRAWN_CELLS
    assert GUARDS == DRAWN_GUARDS


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
    cell = DRAWN_CELLS.get((state, find_input(step)))
    if cell is not None and (path, step) not in PATHS_WITH_UNMET_GUARDS:
        num_steps = len(machine.trace)
        ALL_STEPS[step](machine)
        assert machine.state is cell[0]
        assert [entry[1] for entry in machine.trace][num_steps:] == [find_input(step)]
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
     (Call("g", kind="custom"), CustomCallDraft), (Call("shell", kind="shell"), ShellCallDraft),
     (Call("apply_patch", kind="apply_patch", path="a"), PatchCallDraft)],
)  # fmt: skip
def test_second_close_does_nothing(segment: Think | Say | Refuse | Call, draft: type) -> None:
    machine = create_machine()
    machine.begin()
    machine.feed(segment)
    machine.feed(Close())
    assert machine.feed(Close()) == [], "a second close finds nothing open"
    assert machine.state is State.IDLE
