"""THE TABLE: for every state and every letter, where the machine goes and what it does on the way.

A cell is (next state, verbs). A pair that is not here is illegal: the machine raises `IllegalInput` and stays as
it was. A few cells hold only under a condition; those stand in `GUARDS`. What a verb does to the item that is open
stands in `drafts`, and to the response in `machine`. ARCHITECTURE.md shows this table, drawn by `markdown`.
"""

from enum import Enum, auto
from typing import Literal, NamedTuple


class State(Enum):
    """Where a response stands. REASONING, MESSAGE and CALL name the item that is open; in GAP none is."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and every letter is looked up by it
    NEW = auto()
    QUEUED = auto()
    GAP = auto()
    REASONING = auto()
    MESSAGE = auto()
    CALL = auto()
    ENDED = auto()


class Letter(Enum):
    """What the machine reads. Text that is white space throughout is a letter of its own."""

    __hash__ = object.__hash__  # as above
    QUEUE = auto()
    BEGIN = auto()
    REMIND = auto()
    THINK = auto()
    THINK_BLANK = auto()
    SAY = auto()
    SAY_BLANK = auto()
    REFUSE = auto()
    REFUSE_BLANK = auto()
    CITE = auto()
    CALL = auto()
    ARGUMENTS = auto()
    CLOSE = auto()
    WHOLE = auto()
    STOP = auto()
    CUT = auto()
    FAIL = auto()
    CANCEL = auto()


Verb = Literal[
    # of the open item
    "open", "grow", "cite", "close", "cut", "freeze", "whole",
    # of the held blank
    "hold", "flush", "drop", "discard",
    # of the response
    "create", "queue", "begin", "remind", "complete", "incomplete", "fail", "cancel",
]  # fmt: skip


class Cell(NamedTuple):
    """Where to go, and the verbs to run, in order. They run in the old state; then the machine moves."""

    next: State
    verbs: tuple[Verb, ...]


def _cell(next_state: State, verbs: str = "") -> Cell:
    return Cell(next_state, tuple(verbs.split()))  # type: ignore[arg-type]  # every word is checked by the tests


_S, _L = State, Letter
_BROKEN = _cell(_S.ENDED, "freeze fail")

TABLE: dict[tuple[State, Letter], Cell] = {
    (_S.NEW, _L.QUEUE): _cell(_S.QUEUED, "create queue"),
    (_S.NEW, _L.BEGIN): _cell(_S.GAP, "create begin"),
    (_S.QUEUED, _L.BEGIN): _cell(_S.GAP, "begin"),
    (_S.QUEUED, _L.REMIND): _cell(_S.QUEUED, "remind"),
    (_S.QUEUED, _L.FAIL): _BROKEN,
    (_S.QUEUED, _L.CANCEL): _cell(_S.ENDED, "freeze cancel"),
    # Nothing is open.
    (_S.GAP, _L.REMIND): _cell(_S.GAP, "remind"),
    (_S.GAP, _L.THINK): _cell(_S.REASONING, "drop open grow"),
    (_S.GAP, _L.THINK_BLANK): _cell(_S.GAP, "discard"),
    (_S.GAP, _L.SAY): _cell(_S.MESSAGE, "open grow"),
    (_S.GAP, _L.SAY_BLANK): _cell(_S.GAP, "hold"),
    (_S.GAP, _L.REFUSE): _cell(_S.MESSAGE, "open grow"),
    (_S.GAP, _L.REFUSE_BLANK): _cell(_S.GAP, "hold"),
    (_S.GAP, _L.CALL): _cell(_S.CALL, "drop open"),
    (_S.GAP, _L.CLOSE): _cell(_S.GAP, "drop"),
    (_S.GAP, _L.WHOLE): _cell(_S.GAP, "drop whole"),
    (_S.GAP, _L.STOP): _cell(_S.ENDED, "drop complete"),
    (_S.GAP, _L.CUT): _cell(_S.ENDED, "drop incomplete"),
    (_S.GAP, _L.FAIL): _BROKEN,
    (_S.GAP, _L.CANCEL): _cell(_S.ENDED, "freeze cancel"),
    # Reasoning is open.
    (_S.REASONING, _L.THINK): _cell(_S.REASONING, "grow"),
    (_S.REASONING, _L.THINK_BLANK): _cell(_S.REASONING, "hold"),
    (_S.REASONING, _L.SAY): _cell(_S.MESSAGE, "drop close open grow"),
    (_S.REASONING, _L.SAY_BLANK): _cell(_S.GAP, "drop close hold"),
    (_S.REASONING, _L.REFUSE): _cell(_S.MESSAGE, "drop close open grow"),
    (_S.REASONING, _L.REFUSE_BLANK): _cell(_S.GAP, "drop close hold"),
    (_S.REASONING, _L.CALL): _cell(_S.CALL, "drop close open"),
    (_S.REASONING, _L.CLOSE): _cell(_S.GAP, "drop close"),
    (_S.REASONING, _L.WHOLE): _cell(_S.GAP, "drop close whole"),
    (_S.REASONING, _L.STOP): _cell(_S.ENDED, "drop close complete"),
    (_S.REASONING, _L.CUT): _cell(_S.ENDED, "drop cut incomplete"),
    (_S.REASONING, _L.FAIL): _BROKEN,
    (_S.REASONING, _L.CANCEL): _cell(_S.ENDED, "freeze cancel"),
    # A message is open.
    (_S.MESSAGE, _L.THINK): _cell(_S.REASONING, "drop close open grow"),
    (_S.MESSAGE, _L.THINK_BLANK): _cell(_S.MESSAGE, "discard"),
    (_S.MESSAGE, _L.SAY): _cell(_S.MESSAGE, "grow"),
    (_S.MESSAGE, _L.SAY_BLANK): _cell(_S.MESSAGE, "hold"),
    (_S.MESSAGE, _L.REFUSE): _cell(_S.MESSAGE, "grow"),
    (_S.MESSAGE, _L.REFUSE_BLANK): _cell(_S.MESSAGE, "hold"),
    (_S.MESSAGE, _L.CITE): _cell(_S.MESSAGE, "cite"),
    (_S.MESSAGE, _L.CALL): _cell(_S.CALL, "drop close open"),
    (_S.MESSAGE, _L.CLOSE): _cell(_S.GAP, "flush close"),
    (_S.MESSAGE, _L.WHOLE): _cell(_S.GAP, "drop close whole"),
    (_S.MESSAGE, _L.STOP): _cell(_S.ENDED, "flush close complete"),
    (_S.MESSAGE, _L.CUT): _cell(_S.ENDED, "flush cut incomplete"),
    (_S.MESSAGE, _L.FAIL): _BROKEN,
    (_S.MESSAGE, _L.CANCEL): _cell(_S.ENDED, "freeze cancel"),
    # A call is open. Whatever is not its arguments or its end means that the model stopped inside it.
    (_S.CALL, _L.THINK): _BROKEN,
    (_S.CALL, _L.THINK_BLANK): _cell(_S.CALL, "discard"),
    (_S.CALL, _L.SAY): _BROKEN,
    (_S.CALL, _L.SAY_BLANK): _cell(_S.CALL, "discard"),
    (_S.CALL, _L.REFUSE): _BROKEN,
    (_S.CALL, _L.REFUSE_BLANK): _cell(_S.CALL, "discard"),
    (_S.CALL, _L.CALL): _BROKEN,
    (_S.CALL, _L.ARGUMENTS): _cell(_S.CALL, "grow"),
    (_S.CALL, _L.CLOSE): _cell(_S.GAP, "close"),
    (_S.CALL, _L.WHOLE): _BROKEN,
    (_S.CALL, _L.STOP): _BROKEN,
    (_S.CALL, _L.CUT): _cell(_S.ENDED, "freeze incomplete"),
    (_S.CALL, _L.FAIL): _BROKEN,
    (_S.CALL, _L.CANCEL): _cell(_S.ENDED, "freeze cancel"),
}

Guard = Literal["no item yet", "same phase", "text part open"]

GUARDS: dict[tuple[State, Letter], Guard] = {
    (_S.GAP, _L.REMIND): "no item yet",
    (_S.MESSAGE, _L.SAY): "same phase",
    (_S.MESSAGE, _L.SAY_BLANK): "same phase",
    (_S.MESSAGE, _L.CITE): "text part open",
}
"""Cells that hold only under a condition; otherwise the letter is illegal there."""

BLANK = {_L.THINK: _L.THINK_BLANK, _L.SAY: _L.SAY_BLANK, _L.REFUSE: _L.REFUSE_BLANK}
"""The letter for a piece of text that is white space throughout."""


class IllegalInput(Exception):  # noqa: N818  # the name DESIGN and h11 readers look for
    """A letter that has no cell in this state. The machine is as it was before."""

    def __init__(self, state: State, letter: Letter, guard: Guard | None = None) -> None:
        self.state, self.letter, self.guard = state, letter, guard
        super().__init__(f"{letter.name} is illegal in {state.name}" + (f" unless {guard}" if guard else ""))


def markdown() -> str:
    """The table as Markdown: a row a letter, a column a state."""
    columns = [state for state in State if state is not State.ENDED]
    rows = ["| in \\ on | " + " | ".join(s.name for s in columns) + " |", "|---|" + "---|" * len(columns)]
    for letter in Letter:
        cells = [_show(TABLE.get((state, letter)), state, GUARDS.get((state, letter))) for state in columns]
        rows.append(f"| **{letter.name}** | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _show(cell: Cell | None, state: State, guard: Guard | None) -> str:
    if cell is None:
        return "✕"
    target = "=" if cell.next is state else cell.next.name
    shown = f"{target}: {' '.join(cell.verbs)}" if cell.verbs else target
    return f"{shown} *({guard})*" if guard else shown
