"""Recovery of a response whose writer process has ended: it appends the events that the machine itself would send."""

import itertools
import random

import pytest

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.recovery import failure_events
from antiphon.state.table import IllegalInput
from tests.invariants import check_stream
from tests.state.machine_helpers import (
    BUILTIN_STEPS,
    HOSTED_STEPS,
    SEGMENT_STEPS,
    convert_events_to_json,
    create_machine,
)

STEPS = SEGMENT_STEPS | BUILTIN_STEPS | HOSTED_STEPS
HOSTED_SEQUENCES = [
    (call, "arguments", "close", end, *rest)
    for call in ("mcp", "approved", "approval", "web", "code", "files", "search")
    for end in ("result", "failure", "keepalive", "found")
    for rest in itertools.product(HOSTED_STEPS, repeat=2)
]
SEQUENCES = [
    *itertools.product(SEGMENT_STEPS, repeat=3),
    *itertools.product(BUILTIN_STEPS, repeat=3),
    *HOSTED_SEQUENCES,
]


def sample_failed_runs(reasoning_output: ReasoningOutput) -> list[tuple[list[Event], list[Event]]]:
    """Returns pairs: the events of a machine after a prefix of a random sequence, and its failure events there."""
    runs = []
    for number, sequence in enumerate(random.Random(3).sample(SEQUENCES, 1000)):
        for length in range(len(sequence) + 1):
            machine = create_machine(reasoning_output, patch_diffs=number % 2 == 0)
            events = machine.begin()
            try:
                for step in sequence[:length]:
                    events += STEPS[step](machine)
            except IllegalInput:
                break
            if not machine.is_ended:
                runs.append((events, machine.fail("server_error", "gone")))
    return runs


def convert_without_usage(events: list[Event]) -> list[dict[str, object]]:
    """Returns the events as JSON with null usage, because recovery has no token counts."""
    converted = convert_events_to_json(events)
    for event in converted:
        if isinstance(response := event.get("response"), dict):
            response["usage"] = None
    return converted


@pytest.mark.parametrize("reasoning_output", ["content", "summary", "both"])
def test_recovery_equals_the_failure_events_of_the_machine(reasoning_output: ReasoningOutput) -> None:
    checked = 0
    for events, ending in sample_failed_runs(reasoning_output):
        stored = [ev.decode_event(encode_event(event)) for event in events]
        assert convert_without_usage(
            failure_events(stored, code="server_error", message="gone")
        ) == convert_without_usage(ending)
        checked += 1
    assert checked > 500


def test_recovery_after_any_step_gives_a_valid_stream() -> None:
    for events, _ in sample_failed_runs("content")[::3]:
        stored: list[Event] = [ev.decode_event(encode_event(event)) for event in events]
        check_stream(convert_events_to_json([*stored, *failure_events(stored, code="server_error", message="gone")]))


def test_recovery_adds_only_a_missing_terminal_event() -> None:
    machine = create_machine()
    events = [*machine.begin(), *machine.fail("server_error", "gone")]
    (recovered,) = failure_events(events[:-1], code="server_error", message="gone")
    assert convert_without_usage([recovered]) == convert_without_usage(events[-1:])
    assert failure_events(events, code="server_error", message="gone") == []


def test_recovery_without_events_raises() -> None:
    with pytest.raises(ValueError, match="No events to recover from"):
        failure_events([], code="server_error", message="gone")
