"""The end of a response whose writer is gone is the one that the writer itself would have said."""

import itertools
import random

import pytest

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.recovery import failure_events
from antiphon.state.table import IllegalInput
from tests.invariants import check
from tests.state.machine_helpers import MODEL, machine, plain

WORDS = [*itertools.product(MODEL, repeat=3)]


def stories(reasoning_as: ReasoningOutput) -> list[tuple[list[Event], list[Event]]]:
    """What a machine said up to the end of each word of its letters, and what it would say if it failed there."""
    found = []
    for word in random.Random(3).sample(WORDS, 600):
        for length in range(len(word) + 1):
            m = machine(reasoning_as)
            said = m.begin()
            try:
                for name in word[:length]:
                    said += MODEL[name](m)
            except IllegalInput:
                break
            if not m.is_ended:
                found.append((said, m.fail("server_error", "gone")))
    return found


def without_usage(events: list[Event]) -> list[dict[str, object]]:
    """Nobody knows any more how many tokens there were."""
    told = plain(events)
    for event in told:
        if isinstance(response := event.get("response"), dict):
            response["usage"] = None
    return told


@pytest.mark.parametrize("reasoning_as", ["content", "summary", "both"])
def test_it_is_what_the_machine_would_have_said(reasoning_as: ReasoningOutput) -> None:
    checked = 0
    for said, ending in stories(reasoning_as):
        stored = [ev.decode_event(encode_event(event)) for event in said]
        assert without_usage(failure_events(stored, code="server_error", message="gone")) == without_usage(ending)
        checked += 1
    assert checked > 500


def test_after_any_step_it_makes_a_legal_stream() -> None:
    for said, _ in stories("content")[::3]:
        stored: list[Event] = [ev.decode_event(encode_event(event)) for event in said]
        check(plain([*stored, *failure_events(stored, code="server_error", message="gone")]))


def test_a_cut_before_the_last_word_leaves_only_that_to_be_said() -> None:
    m = machine()
    said = [*m.begin(), *m.fail("server_error", "gone")]
    (last,) = failure_events(said[:-1], code="server_error", message="gone")
    assert without_usage([last]) == without_usage(said[-1:])
    assert failure_events(said, code="server_error", message="gone") == []


def test_what_never_began_has_no_end() -> None:
    with pytest.raises(ValueError, match="never began"):
        failure_events([], code="server_error", message="gone")
