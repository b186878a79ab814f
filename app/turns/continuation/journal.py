"""The journal of a turn: the inputs of each step, which are kept with its events.

Applied to a new core, they give the same events. An input without events is part of the next step that has some: what
no reader has seen need not be kept. The prompts of later rounds are not in the journal.
"""

from collections.abc import Sequence

import msgspec

from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.inputs import ResultInput, RoundInput, StepInput, SummaryInput, TokensInput


class ResultMark(StepInput, frozen=True, tag=6):
    """A `ResultInput`, as JSON: a tool may return integers of any size, for which msgpack has 64 bits."""

    data: bytes


class RoundMark(StepInput, frozen=True, tag=8):
    """A `RoundInput`, whose prompt is kept elsewhere."""


class SummaryMark(StepInput, frozen=True, tag=7):
    """A `SummaryInput`, whose prompt, if it has one, is kept elsewhere."""

    content: str
    has_prompt: bool


JournaledInput = (
    step_inputs.QueuedInput
    | step_inputs.AdmittedInput
    | step_inputs.StartedInput
    | step_inputs.ApprovedInput
    | step_inputs.TokensInput
    | step_inputs.ScoredTokensInput
    | step_inputs.FinishedInput
    | ResultMark
    | SummaryMark
    | RoundMark
    | step_inputs.SteerInput
    | step_inputs.CutInput
    | step_inputs.CancelInput
    | step_inputs.FailInput
    | step_inputs.KeepaliveInput
)
_decoder = msgspec.msgpack.Decoder(list[JournaledInput])
_result_decoder = msgspec.json.Decoder(ResultInput)


def prepare_inputs(inputs: Sequence[StepInput]) -> Sequence[StepInput]:
    """Returns the journal of a step, to be encoded as msgpack: JSON has no infinite log-probabilities.

    It takes about 7 bytes for one token. What cannot be encoded, or is kept elsewhere, has marks in its place.
    """
    if len(inputs) == 1 and type(inputs[0]) is TokensInput:  # as in most steps
        return inputs
    return [each if type(each) is TokensInput else _replace_parts(each) for each in inputs]


def decode_inputs(journal: bytes) -> Sequence[StepInput]:
    """Returns the inputs of a step, with marks for those with prompts. Raises `ValueError` for damaged bytes."""
    try:
        inputs = _decoder.decode(journal)
        return [_result_decoder.decode(each.data) if isinstance(each, ResultMark) else each for each in inputs]
    except msgspec.MsgspecError as error:
        raise ValueError(f"its journal is unreadable: {error}") from None


def _replace_parts(step: StepInput) -> StepInput:
    if isinstance(step, ResultInput):
        return ResultMark(msgspec.json.encode(step))
    if isinstance(step, RoundInput):
        return RoundMark()
    return SummaryMark(step.content, step.prompt is not None) if isinstance(step, SummaryInput) else step
