"""THE TABLE: for every state and every input, the state the machine enters next and the verbs it runs first.

A cell is (next state, verbs). A pair that is not here is illegal: the machine raises `IllegalInput` and stays as it
was. A few cells hold only under a condition, listed in `GUARDS`. `drafts` defines what a verb does to the open item,
`machine` what it does to the response. ARCHITECTURE.md shows this table, drawn by `tests/state/test_architecture.py`.
"""

from enum import Enum, auto
from typing import Literal, NamedTuple


class State(Enum):
    """States of a response. REASONING, MESSAGE, CALL and TOOL name the open item; TOOL is a call that the server runs.

    In RUN, the open item is one whose content the server makes, and the model's text is not output. In the other states
    no item is open.
    """

    __hash__ = object.__hash__  # Enum's own is Python code, and every look-up of an input calls it
    NEW = auto()
    QUEUED = auto()
    IDLE = auto()
    REASONING = auto()
    MESSAGE = auto()
    CALL = auto()
    TOOL = auto()
    RUN = auto()
    ENDED = auto()


class Input(Enum):
    """Inputs of the machine. Text that is only white space (a blank) is an input of its own."""

    __hash__ = object.__hash__  # as above
    QUEUE = auto()
    BEGIN = auto()
    KEEPALIVE = auto()
    THINK = auto()
    THINK_BLANK = auto()
    SAY = auto()
    SAY_BLANK = auto()
    REFUSE = auto()
    REFUSE_BLANK = auto()
    CITE = auto()
    CALL = auto()
    TOOL = auto()
    ARGUMENTS = auto()
    CLOSE = auto()
    COMPACT = auto()
    RESULT = auto()
    COMPLETE_ITEM = auto()
    STOP = auto()
    CUT = auto()
    STEER = auto()
    FAIL = auto()
    CANCEL = auto()


Verb = Literal[
    # on the open item
    "open", "grow", "cite", "close", "run", "settle", "cut", "freeze", "insert",
    # on the held blank
    "hold", "flush", "drop", "discard",
    # on the response
    "create", "queue", "begin", "keepalive", "complete", "incomplete", "fail", "cancel",
]  # fmt: skip


class Cell(NamedTuple):
    """The next state, and the verbs to run, in order. They run in the old state; then the machine enters the next."""

    next: State
    verbs: tuple[Verb, ...]


def _make_cell(next_state: State, verbs: str = "") -> Cell:
    return Cell(next_state, tuple(verbs.split()))  # type: ignore[arg-type]  # the tests check every verb


_S, _I = State, Input
_FREEZE_AND_FAIL = _make_cell(_S.ENDED, "freeze fail")

TABLE: dict[tuple[State, Input], Cell] = {
    (_S.NEW, _I.QUEUE): _make_cell(_S.QUEUED, "create queue"),
    (_S.NEW, _I.BEGIN): _make_cell(_S.IDLE, "create begin"),
    (_S.QUEUED, _I.BEGIN): _make_cell(_S.IDLE, "begin"),
    (_S.QUEUED, _I.KEEPALIVE): _make_cell(_S.QUEUED, "keepalive"),
    (_S.QUEUED, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.QUEUED, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # No item is open.
    (_S.IDLE, _I.KEEPALIVE): _make_cell(_S.IDLE, "keepalive"),
    (_S.IDLE, _I.THINK): _make_cell(_S.REASONING, "drop open grow"),
    (_S.IDLE, _I.THINK_BLANK): _make_cell(_S.IDLE, "discard"),
    (_S.IDLE, _I.SAY): _make_cell(_S.MESSAGE, "open grow"),
    (_S.IDLE, _I.SAY_BLANK): _make_cell(_S.IDLE, "hold"),
    (_S.IDLE, _I.REFUSE): _make_cell(_S.MESSAGE, "open grow"),
    (_S.IDLE, _I.REFUSE_BLANK): _make_cell(_S.IDLE, "hold"),
    (_S.IDLE, _I.CALL): _make_cell(_S.CALL, "drop open"),
    (_S.IDLE, _I.TOOL): _make_cell(_S.TOOL, "drop open"),
    (_S.IDLE, _I.CLOSE): _make_cell(_S.IDLE, "drop"),
    (_S.IDLE, _I.COMPACT): _make_cell(_S.RUN, "drop open"),
    (_S.IDLE, _I.COMPLETE_ITEM): _make_cell(_S.IDLE, "drop insert"),
    (_S.IDLE, _I.STOP): _make_cell(_S.ENDED, "drop complete"),
    (_S.IDLE, _I.CUT): _make_cell(_S.ENDED, "drop incomplete"),
    (_S.IDLE, _I.STEER): _make_cell(_S.ENDED, "drop incomplete"),
    (_S.IDLE, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.IDLE, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # Reasoning is open.
    (_S.REASONING, _I.THINK): _make_cell(_S.REASONING, "grow"),
    (_S.REASONING, _I.THINK_BLANK): _make_cell(_S.REASONING, "hold"),
    (_S.REASONING, _I.SAY): _make_cell(_S.MESSAGE, "drop close open grow"),
    (_S.REASONING, _I.SAY_BLANK): _make_cell(_S.IDLE, "drop close hold"),
    (_S.REASONING, _I.REFUSE): _make_cell(_S.MESSAGE, "drop close open grow"),
    (_S.REASONING, _I.REFUSE_BLANK): _make_cell(_S.IDLE, "drop close hold"),
    (_S.REASONING, _I.CALL): _make_cell(_S.CALL, "drop close open"),
    (_S.REASONING, _I.TOOL): _make_cell(_S.TOOL, "drop close open"),
    (_S.REASONING, _I.CLOSE): _make_cell(_S.IDLE, "drop close"),
    (_S.REASONING, _I.COMPLETE_ITEM): _make_cell(_S.IDLE, "drop close insert"),
    (_S.REASONING, _I.STOP): _make_cell(_S.ENDED, "drop close complete"),
    (_S.REASONING, _I.CUT): _make_cell(_S.ENDED, "drop cut incomplete"),
    (_S.REASONING, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.REASONING, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # A message is open.
    (_S.MESSAGE, _I.THINK): _make_cell(_S.REASONING, "drop close open grow"),
    (_S.MESSAGE, _I.THINK_BLANK): _make_cell(_S.MESSAGE, "discard"),
    (_S.MESSAGE, _I.SAY): _make_cell(_S.MESSAGE, "grow"),
    (_S.MESSAGE, _I.SAY_BLANK): _make_cell(_S.MESSAGE, "hold"),
    (_S.MESSAGE, _I.REFUSE): _make_cell(_S.MESSAGE, "grow"),
    (_S.MESSAGE, _I.REFUSE_BLANK): _make_cell(_S.MESSAGE, "hold"),
    (_S.MESSAGE, _I.CITE): _make_cell(_S.MESSAGE, "cite"),
    (_S.MESSAGE, _I.CALL): _make_cell(_S.CALL, "drop close open"),
    (_S.MESSAGE, _I.TOOL): _make_cell(_S.TOOL, "drop close open"),
    (_S.MESSAGE, _I.CLOSE): _make_cell(_S.IDLE, "flush close"),
    (_S.MESSAGE, _I.COMPLETE_ITEM): _make_cell(_S.IDLE, "drop close insert"),
    (_S.MESSAGE, _I.STOP): _make_cell(_S.ENDED, "flush close complete"),
    (_S.MESSAGE, _I.CUT): _make_cell(_S.ENDED, "flush cut incomplete"),
    (_S.MESSAGE, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.MESSAGE, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # A call is open. Text, another item or the end of the turn means that the model stopped inside the call.
    (_S.CALL, _I.THINK): _FREEZE_AND_FAIL,
    (_S.CALL, _I.THINK_BLANK): _make_cell(_S.CALL, "discard"),
    (_S.CALL, _I.SAY): _FREEZE_AND_FAIL,
    (_S.CALL, _I.SAY_BLANK): _make_cell(_S.CALL, "discard"),
    (_S.CALL, _I.REFUSE): _FREEZE_AND_FAIL,
    (_S.CALL, _I.REFUSE_BLANK): _make_cell(_S.CALL, "discard"),
    (_S.CALL, _I.CALL): _FREEZE_AND_FAIL,
    (_S.CALL, _I.TOOL): _FREEZE_AND_FAIL,
    (_S.CALL, _I.ARGUMENTS): _make_cell(_S.CALL, "grow"),
    (_S.CALL, _I.CLOSE): _make_cell(_S.IDLE, "close"),
    (_S.CALL, _I.COMPLETE_ITEM): _FREEZE_AND_FAIL,
    (_S.CALL, _I.STOP): _FREEZE_AND_FAIL,
    (_S.CALL, _I.CUT): _make_cell(_S.ENDED, "freeze incomplete"),
    (_S.CALL, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.CALL, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # A call that the server runs is open. At its end the server begins to run it.
    (_S.TOOL, _I.THINK): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.THINK_BLANK): _make_cell(_S.TOOL, "discard"),
    (_S.TOOL, _I.SAY): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.SAY_BLANK): _make_cell(_S.TOOL, "discard"),
    (_S.TOOL, _I.REFUSE): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.REFUSE_BLANK): _make_cell(_S.TOOL, "discard"),
    (_S.TOOL, _I.CALL): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.TOOL): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.ARGUMENTS): _make_cell(_S.TOOL, "grow"),
    (_S.TOOL, _I.CLOSE): _make_cell(_S.RUN, "run"),
    (_S.TOOL, _I.COMPLETE_ITEM): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.STOP): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.CUT): _make_cell(_S.ENDED, "freeze incomplete"),
    (_S.TOOL, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.TOOL, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
    # The server makes the content of the open item. Its stage is repeated in silence.
    (_S.RUN, _I.KEEPALIVE): _make_cell(_S.RUN, "keepalive"),
    (_S.RUN, _I.RESULT): _make_cell(_S.IDLE, "settle"),
    (_S.RUN, _I.CUT): _make_cell(_S.ENDED, "freeze incomplete"),
    (_S.RUN, _I.FAIL): _FREEZE_AND_FAIL,
    (_S.RUN, _I.CANCEL): _make_cell(_S.ENDED, "freeze cancel"),
}

CELLS: tuple[tuple[State, Input], ...] = tuple(TABLE)
"""State and input of every cell. Its index is the cell's number, which fits into a byte."""

Guard = Literal["no item yet or after a result", "same phase", "text part open"]

GUARDS: dict[tuple[State, Input], Guard] = {
    (_S.IDLE, _I.KEEPALIVE): "no item yet or after a result",
    (_S.MESSAGE, _I.SAY): "same phase",
    (_S.MESSAGE, _I.SAY_BLANK): "same phase",
    (_S.MESSAGE, _I.CITE): "text part open",
}
"""Conditions of the cells that hold only under one. If it is not met, the input is illegal in that state."""

BLANK_INPUTS = {_I.THINK: _I.THINK_BLANK, _I.SAY: _I.SAY_BLANK, _I.REFUSE: _I.REFUSE_BLANK}
"""Inputs that replace THINK, SAY and REFUSE for a piece of text that is only white space."""


class IllegalInput(Exception):  # noqa: N818  # the name that readers of DESIGN.md and of h11 look for
    """An input that has no cell in this state. The machine is unchanged."""

    def __init__(self, state: State, symbol: Input, guard: Guard | None = None) -> None:
        self.state, self.symbol, self.guard = state, symbol, guard
        super().__init__(f"{symbol.name} is illegal in {state.name}" + (f" unless {guard}" if guard else ""))
