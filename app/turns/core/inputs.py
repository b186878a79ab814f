"""The inputs of a turn: all that changes it, in the order in which it happens. `TurnCore.apply` takes them.

An input says what the world has done: the engine, a tool, the store, the client or the clock. It holds what the events
depend on and cannot be derived from earlier inputs.
"""

from msgspec import Struct

from antiphon.app.tools.search.citations import SourceList
from antiphon.app.turn_types.endings import Cause
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.engine.protocol import Chunk, Fault, FinishReason, TokenLogprob
from antiphon.state.segments import CallResult


class StepInput(Struct, frozen=True, array_like=True):
    """One input of a turn."""


class QueuedInput(StepInput, frozen=True, tag=0):
    """The job waits for its admission by the engine."""


class AdmittedInput(StepInput, frozen=True, tag=1):
    """The engine has admitted the job of a round or of a summary. The counts are 0 if the engine tells them later."""

    cached_tokens: int = 0
    prompt_tokens: int = 0


class StartedInput(StepInput, frozen=True, tag=2):
    """The response begins before a job: calls run first that the client has approved."""


class ApprovedInput(StepInput, frozen=True, tag=3):
    """An approved call begins: that with this index."""

    number: int


class TokensInput(StepInput, frozen=True, tag=4):
    """The engine has generated tokens."""

    tokens: tuple[int, ...]


class ScoredTokensInput(StepInput, frozen=True, tag=14):
    """The same, with log-probabilities or with counts of the prompt."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    prompt_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()


class FinishedInput(ScoredTokensInput, frozen=True, tag=5):
    """The last output of a job."""

    finish: FinishReason = "stop"
    stop_id: int | None = None
    fault: Fault | None = None


class ResultInput(StepInput, frozen=True, tag=6):
    """The call that was due has ended. `output` is what the model reads, of about `num_tokens` tokens.

    `sources` are pages that the call has found.
    """

    result: CallResult
    output: str
    num_tokens: int = 0
    elapsed_ms: int = 0
    sources: SourceList = SourceList()


class SummaryInput(StepInput, frozen=True, tag=7):
    """The conversation is compacted to `content`. `prompt` has it; without one, the turn ends with the compaction."""

    content: str
    prompt: TurnPrompt | None = None


class RoundInput(StepInput, frozen=True, tag=8):
    """The next round begins, with this prompt."""

    prompt: TurnPrompt


class SteerInput(StepInput, frozen=True, tag=9):
    """The client has sent more input: the turn ends once no item is open, unless a tool of the client is awaited."""


class CutInput(StepInput, frozen=True, tag=10):
    """Nothing is left for another round, or for more output."""


class CancelInput(StepInput, frozen=True, tag=11):
    """The turn is cancelled."""

    cause: Cause = "cancelled"


class FailInput(StepInput, frozen=True, tag=12):
    """The turn fails. `code` and `message` are the error of its response, `cause` and `detail` those of its ending."""

    code: str
    message: str
    cause: Cause
    detail: str = ""


class KeepaliveInput(StepInput, frozen=True, tag=13):
    """The stream was silent for long."""


TokenInput = TokensInput | ScoredTokensInput


def to_token_input(chunk: Chunk) -> TokenInput:
    """Returns the input that a chunk of the engine is."""
    if chunk.finish is not None:
        return FinishedInput(
            chunk.tokens,
            chunk.logprobs,
            chunk.cached_tokens,
            chunk.prompt_tokens,
            chunk.prompt_logprobs,
            chunk.finish,
            chunk.stop_id,
            chunk.fault,
        )
    if chunk.logprobs or chunk.prompt_logprobs or chunk.cached_tokens or chunk.prompt_tokens:
        return ScoredTokensInput(
            chunk.tokens, chunk.logprobs, chunk.cached_tokens, chunk.prompt_tokens, chunk.prompt_logprobs
        )
    return TokensInput(chunk.tokens)
