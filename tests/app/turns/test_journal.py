"""The journal of a turn: every input that it holds is decoded as it was, and takes few bytes."""

import math
from datetime import UTC, datetime
from typing import get_args

import pytest

from antiphon.app.tools.search.citations import SourceList, WebSource
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.continuation.journal import (
    JournaledInput,
    ResultMark,
    RoundMark,
    SummaryMark,
    decode_inputs,
)
from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.inputs import StepInput
from antiphon.app.turns.core.rounds import Round
from antiphon.engine.protocol import Fault, TokenLogprob
from antiphon.events.hosted import McpExecutionError, McpHttpError, McpProtocolError
from antiphon.harmony.format import PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.state.segments import CallResult, CodeResult, FileSearchResult, McpResult, WebSearchResult
from tests.journals import encode_steps
from tests.snapshots.run_case import load_case_format

LARGEST = 2**63 - 1
LOGPROBS = (TokenLogprob(1, -0.1, ((1, -0.1), (2, -math.inf))), TokenLogprob(LARGEST, -1e-300))
INPUTS: list[StepInput] = [
    step_inputs.QueuedInput(),
    step_inputs.AdmittedInput(),
    step_inputs.AdmittedInput(7, LARGEST),
    step_inputs.StartedInput(),
    step_inputs.ApprovedInput(3),
    step_inputs.TokensInput(()),
    step_inputs.TokensInput((0, 1, LARGEST)),
    step_inputs.ScoredTokensInput((1, LARGEST), LOGPROBS, 3, 4, (None, *LOGPROBS)),
    step_inputs.FinishedInput((1,), LOGPROBS[:1], finish="length", stop_id=2),
    step_inputs.FinishedInput(finish="error", fault=Fault("server_error", "It broke.\nNo ✓")),
    step_inputs.SteerInput(),
    step_inputs.CutInput(),
    step_inputs.CancelInput("client_left"),
    step_inputs.FailInput("server_error", "ä" * 1000, "engine_fault", "x"),
    step_inputs.KeepaliveInput(),
]


RESULTS: list[CallResult] = [
    McpResult("done ✓"),
    McpResult(None, McpExecutionError(content=[{"type": "text", "text": "no"}])),
    McpResult(None, McpProtocolError(code=-32000, message="no")),
    McpResult(None, McpHttpError(code=502, message="no")),
    WebSearchResult({"type": "search", "sources": [{"type": "url", "url": "http://a"}], "n": 2**70, "x": 0.1}),
    CodeResult("1\n", is_failed=True),
    FileSearchResult(("a",), ({"score": 0.30000000000000004, "attributes": None},)),
]
SOURCES = SourceList((WebSource(url="http://a", title="A"),))


def test_every_kind_of_input_is_tried() -> None:
    replaced = {ResultMark, RoundMark, SummaryMark}
    assert {type(each) for each in INPUTS} | replaced == {*get_args(JournaledInput)}


def test_results_are_decoded_as_they_were() -> None:
    inputs: list[StepInput] = [step_inputs.ResultInput(each, "read", 7, 1234, SOURCES) for each in RESULTS]
    assert {type(each) for each in RESULTS} == {*get_args(CallResult)}
    assert decode_inputs(encode_steps(inputs)) == inputs


def make_prompt(*tokens: int) -> TurnPrompt:
    return TurnPrompt(
        format=load_case_format("hermes"),
        owner="",
        prompt_input=PromptInput(),
        now=datetime(2026, 11, 29, tzinfo=UTC),
        rendered_tokens=tokens,
        prompt=RenderedPrompt(tokens, ""),
    )


def make_round(prompt: TurnPrompt, *generated: int) -> Round:
    done = Round(prompt, prompt.format.create_reader(prompt.prompt, prompt.prompt_input), 0)
    done.generated_tokens += generated
    return done


@pytest.mark.parametrize(
    ("tokens", "num_known"),
    [((1, 2, 7, 8, 5, 6), 4), ((1, 2, 7, 8), 4), ((1, 2, 7, 9, 5), 3), ((1, 2, 5), 2), ((3,), 0), ((), 0)],
)
def test_prompt_of_a_round_is_kept_as_what_is_new(tokens: tuple[int, ...], num_known: int) -> None:
    done = make_round(make_prompt(1, 2), 7, 8)
    inputs: list[StepInput] = [step_inputs.RoundInput(make_prompt(*tokens))]
    [mark] = decode_inputs(encode_steps(inputs, done))
    assert mark == RoundMark(num_known, tokens[num_known:])
    assert isinstance(mark, RoundMark) and mark.read_prompt(done) == tokens
    if num_known > 2:
        with pytest.raises(ValueError, match="another output"):
            mark.read_prompt(make_round(make_prompt(1, 2)))


def test_prompt_after_a_summary_is_kept() -> None:
    inputs: list[StepInput] = [
        step_inputs.SummaryInput("content", make_prompt(1, 2)),
        step_inputs.SummaryInput("content"),
    ]
    marks = [SummaryMark("content", True, (1, 2)), SummaryMark("content", False)]  # as they are stored
    assert decode_inputs(encode_steps(inputs)) == marks


def test_inputs_are_decoded_as_they_were() -> None:
    for inputs in (INPUTS, *([each] for each in INPUTS), []):
        data = encode_steps(inputs)
        decoded = decode_inputs(data)
        assert decoded == inputs and [*map(type, decoded)] == [*map(type, inputs)]
        assert encode_steps(decoded) == data


def test_a_token_takes_few_bytes() -> None:
    assert len(encode_steps([step_inputs.TokensInput((65_535,))])) == 7
    assert len(encode_steps([step_inputs.TokensInput(tuple(range(60_000, 60_016)))])) < 4 * 16


def test_damaged_journal_is_refused() -> None:
    data = encode_steps(INPUTS)
    for damaged in (b"", data[:-1], data + b"\x00", b"\xc1", b"\x91\x91\x63", b"\x91\x80"):
        with pytest.raises(ValueError, match="journal is unreadable"):
            decode_inputs(damaged)
