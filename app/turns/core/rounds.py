"""The rounds of a turn: the output of one job of the engine each, with the calls that the server runs at its end."""

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.core.summary_reader import SummaryReader
from antiphon.events.inputs import InputImage, InputText
from antiphon.events.response import InputTokensDetails, OutputItem, OutputTokensDetails, Usage
from antiphon.events.result_images import split_output
from antiphon.harmony.format import OutputReader
from antiphon.state.segments import Call

MAX_LISTED_TOOLS = 16
"""Names of called tools that are listed with a turn."""


class ServerCall(Struct, frozen=True):
    """A call that the server runs: its start, its whole arguments, and the output that the model reads."""

    call: Call
    arguments: str
    output: str = ""

    @property
    def shown_output(self) -> str | tuple[InputText | InputImage, ...]:
        """The output with the pictures that it names, as later turns show it, too."""
        return split_output(self.output) if self.call.kind == "mcp" else self.output


class Round:
    """The output of one job of the engine, and the calls at its end. `first_item` is the index of its first item."""

    def __init__(self, prompt: TurnPrompt, reader: OutputReader, first_item: int) -> None:
        self.prompt, self.reader, self.first_item = prompt, reader, first_item
        self.unoffered_calls = reader.unoffered_calls
        self.is_admitted = False
        """True once the engine has the job. Calls that the client has approved run before the first one."""
        self.cached_tokens = 0
        self._told_prompt_tokens = 0
        self.generated_tokens: list[int] = []
        self.calls: list[ServerCall] = []
        """Calls that the server runs, those with an output first."""
        self.num_client_calls = 0
        """Number of whole calls after which the turn ends: calls that the client runs, and requests to approve one."""
        self.output_tokens = 0
        """Tokens that the outputs so far will have in the next prompt, about."""

    def count_prompt(self, cached_tokens: int, prompt_tokens: int) -> None:
        """Takes the counts of the prompt's tokens that the engine has told."""
        self.cached_tokens = max(self.cached_tokens, cached_tokens)
        self._told_prompt_tokens = max(self._told_prompt_tokens, prompt_tokens)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt: as the engine tells if it puts tokens of pictures into it, else as it was rendered."""
        return self._told_prompt_tokens or self.prompt.prompt.num_tokens

    @property
    def num_calls(self) -> int:
        """Number of whole calls."""
        return len(self.calls) + self.num_client_calls


def list_called_tools(output: Sequence[OutputItem]) -> tuple[str, ...]:
    """Returns the name of each tool that was called, once; the type of a call without a name."""
    types = [(item, str(type(item).__struct_config__.tag)) for item in output]
    names = (getattr(item, "name", None) or kind for item, kind in types if kind.endswith("_call"))
    return tuple(islice(dict.fromkeys(names), MAX_LISTED_TOOLS))


def sum_usage(rounds: Sequence[Round], summary: SummaryReader | None) -> Usage:
    """Returns the sum of the rounds of a turn, and of the summary with which it began."""
    num_prompt = sum(each.num_prompt_tokens for each in rounds)
    cached = sum(each.cached_tokens for each in rounds)
    num_generated = sum(len(each.generated_tokens) for each in rounds)
    reasoning = sum(each.reader.reasoning_tokens for each in rounds)
    if summary is not None:
        num_prompt += summary.num_prompt_tokens
        cached += summary.num_cached_tokens
        num_generated += summary.num_generated_tokens
        reasoning += summary.reasoning_tokens
    return Usage(
        input_tokens=num_prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=num_generated,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
        total_tokens=num_prompt + num_generated,
    )
