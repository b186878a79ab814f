"""The journal of a turn: the inputs of each step, which are kept with its events.

Applied to a new core, they give the same events. An input without events is part of the next step that has some: what
no reader has seen need not be kept. Of the prompts of later jobs, the journal has the tokens that are new.
"""

from collections.abc import Sequence

import msgspec

from antiphon.app.turns.core import inputs as step_inputs
from antiphon.app.turns.core.inputs import ResultInput, RoundInput, StepInput, SummaryInput
from antiphon.app.turns.core.rounds import Round
from antiphon.app.turns.prompts.prompt_token_cache import common_length


class ResultMark(StepInput, frozen=True, tag=6):
    """A `ResultInput`, as JSON: a tool may return integers of any size, for which msgpack has 64 bits."""

    data: bytes


class RoundMark(StepInput, frozen=True, tag=8):
    """A `RoundInput`. Its prompt begins with `num_known` tokens of the prompt before and the output, then `tokens`."""

    num_known: int = 0
    tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, step: RoundInput, done: Round) -> "RoundMark":
        """Returns the mark of a round that follows `done`."""
        tokens = step.prompt.prompt.tokens
        num_known = common_length(tokens, _list_known(done))
        return cls(num_known, tokens[num_known:])

    def read_prompt(self, done: Round) -> tuple[int, ...]:
        """Returns the tokens of the prompt. Raises `ValueError` if the round before it was another one."""
        known = _list_known(done)
        if self.num_known > len(known):
            raise ValueError("its journal has a prompt for another output")
        return known[: self.num_known] + self.tokens


class SummaryMark(StepInput, frozen=True, tag=7):
    """A `SummaryInput`. `tokens` are those of its prompt, if it has one."""

    content: str
    has_prompt: bool
    tokens: tuple[int, ...] = ()


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


def mark_input(step: StepInput, current: Round) -> StepInput:
    """Returns an input as the journal has it, to be encoded as msgpack: JSON has no infinite log-probabilities.

    One token takes about 7 bytes. What cannot be encoded has a mark in its place. `current` is the round before the
    input is applied.
    """
    if isinstance(step, ResultInput):
        return ResultMark(msgspec.json.encode(step))
    if isinstance(step, RoundInput):
        return RoundMark.of(step, current)
    if isinstance(step, SummaryInput):
        return SummaryMark(
            step.content, step.prompt is not None, () if step.prompt is None else step.prompt.prompt.tokens
        )
    return step


def decode_inputs(journal: bytes) -> Sequence[StepInput]:
    """Returns the inputs of a step, with marks for those with prompts. Raises `ValueError` for damaged bytes."""
    try:
        inputs = _decoder.decode(journal)
        return [_result_decoder.decode(each.data) if isinstance(each, ResultMark) else each for each in inputs]
    except msgspec.MsgspecError as error:
        raise ValueError(f"its journal is unreadable: {error}") from None


def _list_known(done: Round) -> tuple[int, ...]:
    """Returns the tokens that the model has read and generated in a round."""
    return done.prompt.prompt.tokens + tuple(done.generated_tokens)
