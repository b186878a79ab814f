"""Every sequence of up to four segment inputs, with every ending.

An illegal input has no effect, and every sequence gives a valid stream, with reasoning as content, as summary and as both.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable

import pytest
from openai.types.responses import ResponseStreamEvent

from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.events.stream import decode_event
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.table import IllegalInput, State
from tests.counts import FULL_COUNTS
from tests.events.sdk_models import find_type_tag, list_union_models
from tests.invariants import check_stream
from tests.state.machine_helpers import (
    BUILTIN_STEPS,
    END_STEPS,
    HOSTED_STEPS,
    SEGMENT_STEPS,
    convert_events_to_json,
    create_machine,
)

MAX_SEQUENCE_LENGTH = 4
SAMPLE_STEP = 1 if FULL_COUNTS else 4
"""Of the longest sequences, the short run takes every fourth. No number of steps is a multiple of it, so that each two
steps meet in each two places; all sequences of three steps run."""
SERVER_STEPS = {"compact", "tool", "result", "complete_item"}
"""Steps that the model does not cause. The longest sequences have none."""
SDK_EVENTS = {find_type_tag(model): model for model in list_union_models(ResponseStreamEvent)}
"""The SDK's model of each event. The union of all would try every one of them on each event."""


def run_sequence(
    sequence: tuple[str, ...],
    ending: str,
    reasoning_output: ReasoningOutput = "content",
    *,
    queued: bool = False,
    patch_diffs: bool = False,
):
    """Returns the events of a sequence without its illegal inputs, and whether the sequence itself ended the response."""
    machine = create_machine(reasoning_output, patch_diffs=patch_diffs)
    events: list[Event] = [*(machine.queue() if queued else []), *machine.begin()]
    for step in sequence:
        with contextlib.suppress(IllegalInput):
            events += (SEGMENT_STEPS | BUILTIN_STEPS | HOSTED_STEPS)[step](machine)
    ended = machine.is_ended
    if machine.state is State.RUN and ending == "stop":
        events += SEGMENT_STEPS["result"](machine)  # the server never stops while it makes the content of an item
    if not ended:
        is_legal = ending != "steer" or machine.state is State.IDLE
        events += END_STEPS[ending if is_legal else "cut"](machine)
    return events, ended


@pytest.mark.parametrize("reasoning_output", ["content", "summary", "both"])
def test_every_input_sequence_gives_a_valid_stream(reasoning_output: ReasoningOutput) -> None:
    max_length = MAX_SEQUENCE_LENGTH if reasoning_output == "content" or FULL_COUNTS else 3
    assert check_sequences(SEGMENT_STEPS, 3, reasoning_output) > 1000
    if max_length > 3:
        model_steps = SEGMENT_STEPS.keys() - SERVER_STEPS
        assert check_sequences(sorted(model_steps), max_length, reasoning_output, first_length=4) > 1000


@pytest.mark.parametrize("patch_diffs", [False, True])
def test_every_sequence_of_builtin_calls_gives_a_valid_stream(*, patch_diffs: bool) -> None:
    max_length = MAX_SEQUENCE_LENGTH if FULL_COUNTS or not patch_diffs else 3
    assert check_sequences(BUILTIN_STEPS, max_length, "content", patch_diffs=patch_diffs) > 1000


def test_every_sequence_of_hosted_calls_gives_a_valid_stream() -> None:
    assert check_sequences(HOSTED_STEPS, MAX_SEQUENCE_LENGTH if FULL_COUNTS else 3, "content") > 1000
    rounds = ("mcp", "web", "code", "files", "approved")
    long = (
        (first, "arguments", "close", end, *between, second, "arguments", "close", other_end, "say")
        for first, second in itertools.product(rounds, repeat=2)
        for end, other_end in itertools.product(("result", "failure"), repeat=2)
        for between in ((), ("keepalive",), ("say",), ("list",))
    )
    for sequence in long:
        for ending in END_STEPS:
            check_stream(convert_events_to_json(run_sequence(sequence, ending)[0]))
    searched = ("search", "arguments", "close", "found")
    for between, ending in itertools.product(((), ("keepalive",), ("say",), searched), END_STEPS):
        check_stream(convert_events_to_json(run_sequence((*searched, *between, *searched, "say"), ending)[0]))


def check_sequences(
    steps: Iterable[str],
    max_length: int,
    reasoning_output: ReasoningOutput,
    *,
    first_length: int = 0,
    patch_diffs: bool = False,
) -> int:
    """Checks the stream of every sequence of steps with every ending. Returns the number of runs."""
    count, checked_streams = 0, set[bytes]()
    for length in range(first_length, max_length + 1):
        sample = SAMPLE_STEP if length == MAX_SEQUENCE_LENGTH else 1
        for sequence in itertools.islice(itertools.product(steps, repeat=length), 0, None, sample):
            for ending in END_STEPS:
                events, ended_early = run_sequence(sequence, ending, reasoning_output, patch_diffs=patch_diffs)
                data = b"".join(map(encode_event, events))
                if data not in checked_streams:  # many sequences differ only in illegal inputs and give the same bytes
                    checked_streams.add(data)
                    try:
                        check_stream(convert_events_to_json(events))
                    except AssertionError as error:
                        raise AssertionError(f"{sequence} {ending}: {error}") from error
                count += 1
                if ended_early:
                    break  # the ending is not used, so the other endings give the same events
    return count


def test_every_event_validates_against_the_sdk() -> None:
    checked_events: set[bytes] = set()
    checked_shapes: set[bytes] = set()
    event_types: set[str] = set()
    sequences = (
        sequence
        for steps in (SEGMENT_STEPS, BUILTIN_STEPS, HOSTED_STEPS)
        for length in range(4)
        for sequence in itertools.product(steps, repeat=length)
    )
    for sequence in sequences:
        for ending in END_STEPS:
            events, ended_early = run_sequence(sequence, ending, queued=len(sequence) == 1)
            for event in events:
                data = encode_event(event)
                if data in checked_events:
                    continue
                checked_events.add(data)
                shape = _event_shape(data)
                if shape in checked_shapes:
                    continue
                checked_shapes.add(shape)
                event_types.add(_validate_event(data))
                assert decode_event(data) == event
            if ended_early:
                break
    assert len(event_types) >= 25, sorted(event_types)


def _validate_event(data: bytes) -> str:
    """Validates an event against its model of the SDK. Returns its type.

    OpenAI leaves the action of a web search out of the added item, and its SDK needs one.
    """
    event = json.loads(data)
    if event.get("item", {}).get("type") == "web_search_call":
        event["item"].setdefault("action", {"type": "search"})
    validated: str = SDK_EVENTS[event["type"]].model_validate_json(json.dumps(event), strict=True).type
    return validated


def _event_shape(data: bytes) -> bytes:
    """Returns the event without sequence numbers, ids and deltas. Events of equal shape are validated once."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {
                k: strip(v) if k not in ("sequence_number", "id", "item_id", "call_id", "delta") else 0
                for k, v in value.items()
            }
        return [strip(v) for v in value] if isinstance(value, list) else value

    return json.dumps(strip(json.loads(data))).encode()


def test_equal_inputs_give_equal_bytes() -> None:
    sequence = ("think", "say", "say blank", "call", "arguments")
    first, second = (b"".join(map(encode_event, run_sequence(sequence, "cut")[0])) for _ in range(2))
    assert first == second
