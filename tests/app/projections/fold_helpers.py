"""Shared by the tests of folds: scored tokens, and the entries of a turn with a detail on the last event of each step."""

from collections.abc import Sequence
from typing import Any

from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turn_types.step_detail import ScoredToken, TokenDetail
from antiphon.events.base import Event
from antiphon.state.machine import Machine
from antiphon.state.segments import Say
from tests.state.machine_helpers import END_STEPS, create_machine

Step = tuple[list[Event], TokenDetail | None]


def scored(token_id: int, text: str, logprob: float | None = -1.0, offset: int = 0, *top: float) -> ScoredToken:
    """Returns a token. `top` has the log-probabilities of the most likely tokens, whose ids count from 100."""
    candidates = tuple((100 + number, chr(97 + number), value) for number, value in enumerate(top))
    return ScoredToken(token_id, text, logprob, offset, candidates)


def detail(**fields: Any) -> TokenDetail:
    return TokenDetail(**fields)


def run_texts(*steps: tuple[str, TokenDetail | None], end: str = "stop", last: TokenDetail | None = None) -> list[Step]:
    """Returns the steps of a turn that says texts, each with its detail. An empty text has no events of its own."""
    machine: Machine = create_machine()
    result: list[Step] = [(machine.begin(), TokenDetail())]
    result += [(machine.feed(Say(text)), each) for text, each in steps]
    return [*result, (END_STEPS[end](machine), last)]


def make_entries(steps: Sequence[Step]) -> list[LogEntry]:
    """Returns the entries of a log with these steps."""
    return [
        LogEntry.from_event(event, each if event is events[-1] else None) for events, each in steps for event in events
    ]
