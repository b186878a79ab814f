"""Mutated calls in every dialect: no text of a model makes a reader raise, and each event can be encoded.

The checks of `parser_helpers` hold as well: no character is lost, and the split of the tokens decides nothing.
"""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.events.response import Response
from antiphon.events.sse import encode_event
from antiphon.harmony.detection.detect import DIALECTS, NAMES
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.state.machine import Machine
from antiphon.state.segments import HOSTED_TOOL_KINDS, Arguments, Call, Say, Segment, Think
from tests.counts import FULL_COUNTS
from tests.harmony import mutated_calls, parser_helpers
from tests.harmony.dialect_outputs import REAL_OUTPUTS
from tests.harmony.mutated_calls import CallMutator
from tests.harmony.response_templates import TEMPLATES, build_formats, build_template

NUM_MUTATED = 1_000_000 if FULL_COUNTS else 150
"""Mutated outputs of one dialect."""
NUM_OUTPUTS_FOR_EACH_ENCODED = 4
"""One of four outputs runs through the machine, too, whose events are encoded."""


def read_segments(
    model_format: ModelFormat, tokens: Sequence[int], cuts: Iterable[int], prompt_input: PromptInput, *, natural: bool
) -> tuple[list[Segment], Any]:
    """Returns the segments of an output, neighbours joined, and the reader. Checks that no character is lost."""
    reader: Any = model_format.create_reader(RenderedPrompt((), ""), prompt_input)
    segments: list[Segment] = []
    for chunk in parser_helpers.split_at(tokens, cuts):
        segments += reader.feed(chunk)
    segments += reader.finish(natural=natural)
    joined = join_segments(segments)
    if isinstance(reader, TapeReader):
        parser_helpers.check_ledger(reader, joined)
    return joined, reader


def join_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Joins neighbouring texts of one kind, phase and command."""
    joined: list[Any] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if isinstance(segment, Say | Think | Arguments) and is_continued(last, segment):
            joined[-1] = replace(last, text=last.text + segment.text)
        else:
            joined.append(segment)
    return joined


def is_continued(last: Any, segment: Say | Think | Arguments) -> bool:
    return type(last) is type(segment) and all(
        getattr(last, name, None) == getattr(segment, name, None) for name in ("phase", "index")
    )


def encode_events(segments: Sequence[Segment]) -> None:
    """Feeds a machine and encodes its events."""
    machine = Machine(
        Response(id="resp_x", created_at=0, model="x", status="queued"),
        new_id=lambda prefix: f"{prefix}_x",
        clock=lambda: 0,
    )
    events = [*machine.begin()]
    for segment in segments:
        events += machine.feed(segment)
        if isinstance(segment, Call) and segment.kind in HOSTED_TOOL_KINDS:
            break  # the server runs the tool, and the output ends there
    events += machine.cut()
    for event in events:
        encode_event(event)


def check_mutated_output(
    model_format: ModelFormat, text: str, prompt_input: PromptInput, rng: random.Random, *, encodes: bool
) -> None:
    """Reads an output whole and in random chunks, and compares the segments."""
    tokens, natural = model_format.encode(text), rng.random() < 0.7
    segments, reader = read_segments(model_format, tokens, (), prompt_input, natural=natural)
    cuts = parser_helpers.draw_cuts(len(tokens), rng)
    other_segments, other = read_segments(model_format, tokens, cuts, prompt_input, natural=natural)
    assert other_segments == segments
    assert (other.call_failed, other.reasoning_tokens) == (reader.call_failed, reader.reasoning_tokens)
    for segment in segments:
        getattr(segment, "text", "").encode()
    if encodes:
        encode_events(segments)


def check_mutated_outputs(
    model_formats: Sequence[ModelFormat], mutator: CallMutator, prompt_input: PromptInput, count: int, seed: str
) -> None:
    """Draws and reads outputs. The message of a failure has the output."""
    rng = random.Random(seed)
    for number in range(count):
        model_format, text = rng.choice(model_formats), mutator.draw()
        try:
            check_mutated_output(
                model_format, text, prompt_input, rng, encodes=number % NUM_OUTPUTS_FOR_EACH_ENCODED == 0
            )
        except Exception as error:
            raise AssertionError(f"output {number} of {seed}: {text[:2000]!r}") from error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(7200)
def test_mutated_call_is_read_without_an_error(name: str) -> None:
    for tools, share in ((mutated_calls.FUNCTIONS, 0.75), (mutated_calls.BUILTINS, 0.25)):
        outputs = mutated_calls.write_reasoning(DIALECTS.get(name))
        if name != "plain":
            outputs += mutated_calls.write_outputs(name, tools)
        if tools is mutated_calls.FUNCTIONS:
            outputs += [text for dialect, text, _ in REAL_OUTPUTS if dialect == name]
        seed = f"{len(tools)} tools of {name}"
        mutator = CallMutator(outputs, mutated_calls.list_markers(name), random.Random(seed))
        count = int(NUM_MUTATED * share)
        check_mutated_outputs(parser_helpers.load_formats(name), mutator, PromptInput(tools=tools), count, seed)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.timeout(7200)
def test_mutated_call_of_a_response_template_is_read_without_an_error(name: str) -> None:
    calls, text = TEMPLATES[name]
    model_formats = build_formats(build_template(calls))
    slots = [re.sub(r"\b1\b", mutated_calls.SLOT, text), text.replace('{"a": 1}', f'"{mutated_calls.SLOT}"')]
    slots += [text.replace("add", tool).replace("a", key) for tool in ("typed", "script") for key in ("list", "input")]
    markers = re.findall(r"[<\[][^<>\[\]{}]*[>\]]", text)
    mutator = CallMutator([text, *slots], markers, random.Random(name))
    prompt_input = PromptInput(tools=mutated_calls.FUNCTIONS)
    check_mutated_outputs(model_formats, mutator, prompt_input, NUM_MUTATED // 2, name)


def test_mutator_draws_what_it_should() -> None:
    """Mutations reach each kind of fault, and most outputs are still calls."""
    outputs = mutated_calls.write_outputs("hermes", mutated_calls.FUNCTIONS)
    mutator = CallMutator(outputs, mutated_calls.list_markers("hermes"), random.Random("drawn"))
    drawn = [mutator.draw() for _ in range(300)]
    assert len(set(drawn)) > 250 and not any(mutated_calls.SLOT in text for text in drawn)
    model_format = parser_helpers.load_token_format("hermes")
    prompt_input = PromptInput(tools=mutated_calls.FUNCTIONS)
    read = [read_segments(model_format, model_format.encode(text), (), prompt_input, natural=True)[0] for text in drawn]
    assert sum(any(isinstance(segment, Call) for segment in segments) for segments in read) > 100
