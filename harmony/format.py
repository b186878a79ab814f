"""Interface between a dialect and the other packages: rendering prompts, parsing output, building grammars.

A `ModelFormat` belongs to one loaded model. It is immutable and serves all turns at once; the state of one turn is in
an `OutputReader`. Nothing here depends on HTTP, the engine, or the order of a response's events.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct

from antiphon.events.inputs import AnyInput
from antiphon.events.items import Logprob
from antiphon.events.tools import GrammarFormat
from antiphon.harmony.grammar import AnswerConstraints, OutputConstraint
from antiphon.harmony.image_tokens import PromptImage
from antiphon.harmony.passthrough import Passthrough
from antiphon.harmony.rendered_prompt import ImageSpan, RenderedPrompt
from antiphon.harmony.tokens.detokenizer import TokenVocabulary
from antiphon.harmony.tools import ToolSpec, ToolTable, UnofferedCall
from antiphon.state.segments import Segment

ImageRole = Literal["user", "system", "tool"]


class RequestTemplate(Protocol):
    """A compiled chat template, wherever it is rendered."""

    @property
    def source(self) -> str:
        """Text of the template."""

    @property
    def variables(self) -> frozenset[str] | None:
        """Names that the template may read before it sets them, without the built-in ones; None if unknown."""

    @property
    def constants(self) -> frozenset[str]:
        """String constants of the template."""

    def render(self, context: Mapping[str, Any], *, now: datetime) -> str:
        """Runs the template. Raises `RenderError`."""


class TemplateOptions(Struct, frozen=True, kw_only=True):
    """Changes of a request to the rendering of its prompt. The defaults change nothing."""

    source: str | None = None
    """Chat template to use instead of the model's own."""
    compile_source: "Callable[[str], RequestTemplate] | None" = None
    """Compiles `source`, outside this process. None: it is compiled in this process, like the model's own."""
    variables: Mapping[str, Any] = {}
    """Variables of the template by name, as JSON values."""
    documents: tuple[Mapping[str, Any], ...] = ()
    """Documents for retrieval, which a template may show."""
    add_generation_prompt: bool = True
    """True if the prompt ends with the beginning of the assistant's next message."""
    continue_final_message: bool = False
    """True if the prompt ends inside the last message, which is the assistant's, and the answer continues it."""
    add_special_tokens: bool = False
    """True if the prompt also gets the tokens that the tokenizer puts around every text."""


THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on and off. One that a template does not read is left out."""


class PromptInput(Struct, frozen=True, kw_only=True):
    """Conversation so far, and the tools that may be called now.

    `effort` is the reasoning effort in the request's words; "none" turns reasoning off if the model supports that.
    """

    instructions: str | None = None
    items: tuple[AnyInput, ...] = ()
    tools: ToolTable = ToolTable()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    allowed_tools: frozenset[str] | None = None
    """Model names of the tools that may be called; None for all. The prompt shows the others too."""
    forbids_calls: bool = False
    """True if no tool may be called, although the prompt shows them."""
    single_call: bool = False
    """Limits the answer to one call."""
    output_constraint: OutputConstraint | None = None
    """Form that the text for the user must have, such as a JSON Schema."""
    effort: str | None = None
    unknown_tools: Literal["text", "call"] = "text"
    """The result of a call whose tool was not offered: text, or a call that the client can answer with an error.

    A call in a syntax that occurs in ordinary answers, such as a bare JSON object, is text in either case.
    """
    template: TemplateOptions = TemplateOptions()
    keep_special_tokens: bool = False
    """True if control tokens of the output that the dialect does not read are part of its text."""
    images: Mapping[tuple[str, str | None], PromptImage] = {}
    """Pictures that the model sees, by the URL or file id and the detail of their parts. Other ones are "[image]"."""

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """Tools that may be called now."""
        if self.tool_choice == "none" or self.forbids_calls:
            return ()
        return tuple(tool for tool in self.tools if self.allowed_tools is None or tool.model_name in self.allowed_tools)

    @property
    def shows_images_as_text(self) -> bool:
        """True if the engine takes a prompt with pictures as text."""
        return any(image.form == "text" for image in self.images.values())

    @property
    def promises_json(self) -> bool:
        """True if the text for the user must be JSON, which no stop string may cut."""
        return self.output_constraint is not None and self.output_constraint.schema is not None

    @property
    def needs_grammar(self) -> bool:
        """True if the answer should follow a grammar: the request promises it, or a model errs more without one."""
        is_silent = self.forbids_calls and self.tool_choice != "none" and len(self.tools) > 0
        return self.promises_grammar or is_silent or any(tool.builtin for tool in self.callable_tools)

    @property
    def promises_grammar(self) -> bool:
        """True if the request promises a form of answer that only a grammar guarantees."""
        has_strict_tool = any(
            tool.builtin is None and (tool.strict or isinstance(tool.format, GrammarFormat))
            for tool in self.callable_tools
        )
        return (
            has_strict_tool
            or self.tool_choice == "required"
            or self.allowed_tools is not None
            or self.output_constraint is not None
        )


def answer_constraints(prompt_input: PromptInput) -> AnswerConstraints:
    """Returns the request's constraints on the answer, besides being parsable."""
    call_required = prompt_input.tool_choice == "required"
    return AnswerConstraints(
        call_required=call_required,
        single_call=prompt_input.single_call,
        output_constraint=prompt_input.output_constraint,
    )


class OutputReader(Protocol):
    """Parses the output of one turn, token by token.

    Segments add up to the same output however the tokens are split into feeds.
    """

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens read so far that began inside reasoning."""

    @property
    def call_failed(self) -> bool:
        """True if an open call can no longer be completed. Reading on is pointless."""

    @property
    def unoffered_calls(self) -> list[UnofferedCall]:
        """Notes about calls of tools that were not offered. The caller that takes them empties the list."""

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Parses more tokens. `logprobs` is empty or has one entry per token."""

    def finish(self, *, natural: bool) -> list[Segment]:
        """Ends the output and returns what was held back. `natural`: the model ended it; otherwise it was cut off."""


class VocabularyCodec:
    """The part of a `ModelFormat` that its vocabulary alone decides."""

    vocabulary: TokenVocabulary

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encodes text as the model would generate it: markers become their ids."""
        return self.vocabulary.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes tokens to text, including markers and control tokens."""
        return b"".join(self.vocabulary.token_bytes(token) or b"" for token in tokens).decode("utf-8", "replace")

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """Returns a token's text and its bytes. In the text, partial characters become replacement characters."""
        raw = self.vocabulary.token_bytes(token) or b""
        return raw.decode("utf-8", "replace"), raw


class TextOnlyFormat:
    """The part of a `ModelFormat` that shows no pictures."""

    image_roles: frozenset[ImageRole] = frozenset()
    image_refusal = ""

    def find_images(self, tokens: Sequence[int], spans: Sequence[ImageSpan]) -> tuple[ImageSpan, ...]:  # noqa: ARG002 - it has none
        """Returns nothing."""
        return ()


class ModelFormat(Protocol):
    """Dialect of a model, together with its vocabulary and its prompt template."""

    @property
    def name(self) -> str:
        """Name of the dialect."""

    @property
    def passthrough(self) -> Passthrough:
        """Prompts without a chat template, and outputs as nothing but text."""

    @property
    def has_reasoning(self) -> bool:
        """True if the dialect can express reasoning."""

    @property
    def has_calls(self) -> bool:
        """True if the dialect can express calls of tools."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end an answer in this dialect. The model's own configuration may name more."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids that end a message in a prompt: `stop_ids`, and the ids that replace them in the history."""

    @property
    def image_roles(self) -> frozenset[ImageRole]:
        """Roles in which the model's template shows pictures; without "user", it shows none at all.

        Pictures of other roles follow in a message of the user.
        """

    @property
    def image_refusal(self) -> str:
        """Why a model that has tokens for pictures shows none, in one line; empty if it does, or has none."""

    def find_images(self, tokens: Sequence[int], spans: Sequence[ImageSpan]) -> tuple[ImageSpan, ...]:
        """Returns where the pictures of these spans are among other ids of the same prompt.

        Raises `RenderError` unless the ids have all tokens of these pictures, and none of others.
        """

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Renders the conversation as a prompt. Raises `RenderError`.

        Cached parts of it are reused for the same owner only.
        """

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> OutputReader:
        """Returns a reader for the output that follows this prompt."""

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:
        """Returns a grammar of all parsable answers to this prompt, as Lark text for llguidance.

        Returns None if a call is required and the dialect has no grammar for one.
        """

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encodes text as the model would generate it: markers become their ids.

        `add_special_tokens`: adds the tokens that the tokenizer puts around every text, such as one that begins it.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes tokens to text, including markers and control tokens."""

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """Returns a token's text and its bytes. In the text, partial characters become replacement characters."""
