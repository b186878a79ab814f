"""The journal of a turn: every input that it holds is decoded as it was, and takes few bytes."""

import math
from typing import Any, get_args

import pytest

from antiphon.app.tools.search.citations import SourceList, WebSource
from antiphon.app.turns.continuation.journal import (
    JournaledInput,
    ResultMark,
    RoundMark,
    SummaryMark,
    decode_inputs,
)
from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.inputs import StepInput
from antiphon.engine.protocol import Fault, TokenLogprob
from antiphon.events.hosted import McpExecutionError, McpHttpError, McpProtocolError
from antiphon.state.segments import CallResult, CodeResult, FileSearchResult, McpResult, WebSearchResult
from tests.journals import encode_steps

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


def test_prompts_are_left_out() -> None:
    prompt: Any = object()
    inputs: list[StepInput] = [
        step_inputs.SummaryInput("content", prompt),
        step_inputs.SummaryInput("content"),
        step_inputs.RoundInput(prompt),
    ]
    marks = [SummaryMark("content", has_prompt=True), SummaryMark("content", has_prompt=False), RoundMark()]
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
