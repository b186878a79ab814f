"""Output items and their parts.

Every struct is frozen and complete when created. A key that the specification calls optional is `UNSET` when it is
absent, and then is not written at all: clients reject `null` where the specification allows a missing key only.
Source: the Responses API reference and the types of the openai SDK.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

Status = Literal["in_progress", "completed", "incomplete"]
Phase = Literal["commentary", "final_answer"]


class Part(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A part of an item's content; `type` is its kind."""


class TopLogprob(Struct, frozen=True, kw_only=True):
    """A token among the most likely at a position. `logprob` is a natural logarithm, never above 0."""

    token: str
    bytes: tuple[int, ...] = ()
    logprob: float


class Logprob(Struct, frozen=True, kw_only=True):
    """The sampled token, its bytes, and the most likely tokens at its position, in descending order."""

    token: str
    bytes: tuple[int, ...] = ()
    logprob: float
    top_logprobs: tuple[TopLogprob, ...] = ()


class UrlCitation(Part, frozen=True, kw_only=True, tag="url_citation"):
    """A web source for the characters from `start_index` up to `end_index` of the part's text."""

    url: str
    title: str = ""
    start_index: int
    end_index: int


class FileCitation(Part, frozen=True, kw_only=True, tag="file_citation"):
    """A file as the source of the text before character `index`."""

    file_id: str
    filename: str = ""
    index: int


class ContainerFileCitation(Part, frozen=True, kw_only=True, tag="container_file_citation"):
    """A file inside a code container as the source of a range of the text."""

    container_id: str
    file_id: str
    filename: str = ""
    start_index: int
    end_index: int


class FilePath(Part, frozen=True, kw_only=True, tag="file_path"):
    """A generated file, mentioned at character `index`."""

    file_id: str
    index: int


Annotation = UrlCitation | FileCitation | ContainerFileCitation | FilePath


class OutputText(Part, frozen=True, kw_only=True, tag="output_text"):
    """Text for the user. `logprobs` is empty unless requested."""

    text: str
    annotations: tuple[Annotation, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


class Refusal(Part, frozen=True, kw_only=True, tag="refusal"):
    """The text of the model's refusal."""

    refusal: str


class ReasoningText(Part, frozen=True, kw_only=True, tag="reasoning_text"):
    """Raw reasoning, as the model wrote it."""

    text: str


class SummaryText(Part, frozen=True, kw_only=True, tag="summary_text"):
    """A summary of reasoning, for the user."""

    text: str


Content = OutputText | Refusal | ReasoningText | SummaryText


class Item(Struct, frozen=True, kw_only=True, tag_field="type"):
    """An output item. `id` is minted once and never changes."""

    id: str


class Message(Item, frozen=True, kw_only=True, tag="message"):
    """Text and refusals for the user. `phase` is absent if the dialect does not know it."""

    role: Literal["assistant"] = "assistant"
    status: Status
    content: tuple[OutputText | Refusal, ...] = ()
    phase: Phase | None | UnsetType = UNSET


class Reasoning(Item, frozen=True, kw_only=True, tag="reasoning"):
    """The model's reasoning. `summary` is never invented; `encrypted_content` is opaque and round-trips."""

    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | None | UnsetType = UNSET
    encrypted_content: str | None | UnsetType = UNSET
    status: Status | None | UnsetType = UNSET


class FunctionCall(Item, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function tool. `arguments` is JSON text, byte for byte as it was streamed."""

    call_id: str
    name: str
    arguments: str
    status: Status | None | UnsetType = UNSET
    namespace: str | None | UnsetType = UNSET
    is_async: bool | None | UnsetType = field(default=UNSET, name="async")


class CustomToolCall(Item, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a tool that takes raw text."""

    call_id: str
    name: str
    input: str
    status: Status | None | UnsetType = UNSET
    namespace: str | None | UnsetType = UNSET
    is_async: bool | None | UnsetType = field(default=UNSET, name="async")


class FunctionCallOutput(Item, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of a function, sent by the server that ran it."""

    call_id: str | None | UnsetType = UNSET
    output: str | list[Any]
    status: str | None | UnsetType = UNSET


class CustomToolCallOutput(Item, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    """The output of a custom tool, sent by the server that ran it."""

    call_id: str | None | UnsetType = UNSET
    output: str | list[Any]
    status: str | None | UnsetType = UNSET


class Compaction(Item, frozen=True, kw_only=True, tag="compaction"):
    """Earlier conversation, compacted into an opaque blob."""

    encrypted_content: str
