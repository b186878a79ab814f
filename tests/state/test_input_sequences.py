"""Every word of the alphabet up to length four, with every ending: each illegal letter leaves no trace, and each legal
word gives a legal stream. The same words on a machine that tells reasoning as summaries.
"""

import contextlib
import itertools
import json

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.events.stream import decode_event
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.table import IllegalInput
from tests.counts import FULL_COUNTS
from tests.invariants import check
from tests.state.machine_helpers import ENDINGS, MODEL, machine, plain

LONGEST = 4
SDK = TypeAdapter(ResponseStreamEvent)


def run(word: tuple[str, ...], ending: str, reasoning_as: ReasoningOutput = "content", *, queued: bool = False):
    """The events of a word, illegal letters skipped, and whether the word ended the response by itself."""
    m = machine(reasoning_as)
    said: list[Event] = [*(m.queue() if queued else []), *m.begin()]
    for letter in word:
        with contextlib.suppress(IllegalInput):
            said += MODEL[letter](m)
    early = m.is_ended
    if not early:
        said += ENDINGS[ending](m)
    return said, early


@pytest.mark.parametrize("reasoning_as", ["content", "summary", "both"])
def test_every_word_keeps_every_invariant(reasoning_as: ReasoningOutput) -> None:
    longest = LONGEST if reasoning_as == "content" or FULL_COUNTS else 3
    count, checked = 0, set[bytes]()
    for length in range(longest + 1):
        for word in itertools.product(MODEL, repeat=length):
            for ending in ENDINGS:
                said, early = run(word, ending, reasoning_as)
                data = b"".join(map(encode_event, said))
                if data not in checked:  # many words differ in illegal letters only, and so say the same bytes
                    checked.add(data)
                    try:
                        check(plain(said))
                    except AssertionError as error:
                        raise AssertionError(f"{word} {ending}: {error}") from error
                count += 1
                if early:
                    break  # every other ending is the same word again
    assert count > 1000


def test_every_event_is_one_that_the_sdk_knows() -> None:
    met: set[bytes] = set()
    seen: set[bytes] = set()
    kinds: set[str] = set()
    for length in range(4):
        for word in itertools.product(MODEL, repeat=length):
            for ending in ENDINGS:
                for event in run(word, ending, queued=length == 1)[0]:
                    data = encode_event(event)
                    if data in met:
                        continue
                    met.add(data)
                    shape = _shape(data)
                    if shape in seen:
                        continue
                    seen.add(shape)
                    kinds.add(SDK.validate_json(data, strict=True).type)
                    assert decode_event(data) == event
    assert len(kinds) >= 22, sorted(kinds)


def _shape(data: bytes) -> bytes:
    """The event with its numbers and texts left out: what is alike but for those needs no second look."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {
                k: strip(v) if k not in ("sequence_number", "id", "item_id", "call_id", "delta") else 0
                for k, v in value.items()
            }
        return [strip(v) for v in value] if isinstance(value, list) else value

    return json.dumps(strip(json.loads(data))).encode()


def test_two_machines_fed_alike_say_the_same_bytes() -> None:
    word = ("think", "say", "say blank", "call", "arguments")
    first, second = (b"".join(map(encode_event, run(word, "cut")[0])) for _ in range(2))
    assert first == second
