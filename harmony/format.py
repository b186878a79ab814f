"""What a dialect does for the rest of the house: render a prompt, read an answer, say what an answer may be.

One `Format` belongs to one loaded model. It is immutable and serves all turns at once; what belongs to one turn
lives in a `Reader`. Nothing here knows HTTP, the engine, or the order in which a response's events are said.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct

from antiphon.events.inputs import AnyInput, GrammarFormat
from antiphon.events.items import Logprob
from antiphon.harmony.grammar import AnswerRequirements
from antiphon.harmony.tools import ToolSpec, ToolTable
from antiphon.state.segments import Segment


class PromptInput(Struct, frozen=True, kw_only=True):
    """What was said so far and what may be called now.

    `effort` is how hard to think, in the request's words; "none" switches thinking off where the model can.
    """

    instructions: str | None = None
    items: tuple[AnyInput, ...] = ()
    tools: ToolTable = ToolTable()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    allowed_tools: frozenset[str] | None = None
    """The flat names of the tools that may be called, where not all may; the others are shown all the same."""
    single_call: bool = False
    """At most one call."""
    answer_schema: dict[str, Any] | None = None
    """The JSON Schema that the text for the user must fit."""
    effort: str | None = None

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called now."""
        if self.tool_choice == "none":
            return ()
        return tuple(
            offer for offer in self.tools if self.allowed_tools is None or offer.model_name in self.allowed_tools
        )

    @property
    def needs_grammar(self) -> bool:
        """Whether the answer has to be held to a grammar: no promise was made otherwise."""
        promised = any(offer.strict or isinstance(offer.format, GrammarFormat) for offer in self.callable_tools)
        return (
            promised
            or self.tool_choice == "required"
            or self.allowed_tools is not None
            or self.answer_schema is not None
        )


def answer_requirements(prompt_input: PromptInput) -> AnswerRequirements:
    """What the answer must be, besides readable."""
    required = prompt_input.tool_choice == "required"
    return AnswerRequirements(
        call_required=required, single_call=prompt_input.single_call, text_schema=prompt_input.answer_schema
    )


class RenderedPrompt(Struct, frozen=True):
    """What the model is given. `thinking`: the answer begins inside reasoning, as the rendered prompt shows."""

    tokens: tuple[int, ...]
    text: str
    in_reasoning: bool = False


class RenderError(ValueError):
    """A conversation that cannot be put to this model. `param` is the request field to blame, where one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class OutputReader(Protocol):
    """Reads one answer, token by token. However the tokens are cut into feeds, the segments add up to the same."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens read so far began inside reasoning."""

    @property
    def call_failed(self) -> bool:
        """A call was begun that can no longer become whole: reading on is pointless."""

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Read more tokens. `logprobs` is empty or has one entry per token."""

    def finish(self, *, natural: bool) -> list[Segment]:
        """The answer is over: say what was held back. `natural`: the model ended it; else it was cut off."""


class ModelFormat(Protocol):
    """A model's dialect together with its vocabulary and its way of laying out a prompt."""

    @property
    def name(self) -> str:
        """What the dialect is called."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens with which this dialect ends an answer. The model's own configuration may name more."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens with which a message ends in a prompt: `stop_ids`, and what history shows in their place."""

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Lay the conversation out for the model. Raises `RenderError`.

        What is remembered of it is used for the same owner only.
        """

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> OutputReader:
        """A reader for the answer to this prompt."""

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:
        """All answers that read well from this prompt on, as Lark text for llguidance; None: anything does."""

    def encode(self, text: str) -> list[int]:
        """Text as the model would speak it: markers become their ids."""

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the tokens' text, markers and control tokens included."""

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """A token's text, with replacement characters where it holds part of one only, and its bytes."""
