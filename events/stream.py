"""One class per stream event: past facts, named as the wire names them.

`Created` to `Failed` tell of the whole response; the rest of one item, part or piece of text. What hosted
tools say stands in `hosted_stream`. `decode(data)` reads any of them back.
"""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.events.base import Event, ItemEvent
from antiphon.events.hosted_events import HostedEvent
from antiphon.events.items import Annotation, Content, Logprob, SummaryText
from antiphon.events.response import OutputItem, Response


class LifecycleEvent(Event, frozen=True, kw_only=True):
    """The response has reached a new stage; `response` is its state at that moment."""

    response: Response


class Created(LifecycleEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response exists. Always the first event."""


class Queued(LifecycleEvent, frozen=True, kw_only=True, tag="response.queued"):
    """It waits for the engine."""


class InProgress(LifecycleEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has taken it. Repeated, before the first item, to keep a silent stream alive."""


class Completed(LifecycleEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The model has said everything. Terminal."""


class Incomplete(LifecycleEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The turn was cut, by a limit or by a cancellation (then `response.status` is `cancelled`). Terminal."""


class Failed(LifecycleEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The turn broke; `response.error` says why, `response.output` what had been said. Terminal."""


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The nested form of an error: the one the real API sends."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """Something went wrong after the stream began. Both spellings: nested as sent, flat as documented."""

    error: ErrorBody | UnsetType = UNSET
    code: str | None = None
    message: str
    param: str | None = None


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins, empty but for its id and name."""

    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is whole (or cut: then its status is `incomplete`). It never changes again."""

    output_index: int
    item: OutputItem


class PartAdded(ItemEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A content part begins, empty."""

    content_index: int
    part: Content


class PartDone(ItemEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A content part is whole."""

    content_index: int
    part: Content


class TextDelta(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text. `logprobs` tells of the tokens whose first character stands in `delta`."""

    content_index: int
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class TextDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text of a part: the sum of its deltas."""

    content_index: int
    text: str
    logprobs: tuple[Logprob, ...] = ()


class AnnotationAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"):
    """A source or a file belongs to the text."""

    content_index: int
    annotation_index: int
    annotation: Annotation


class RefusalDelta(ItemEvent, frozen=True, kw_only=True, tag="response.refusal.delta"):
    """More of a refusal."""

    content_index: int
    delta: str


class RefusalDone(ItemEvent, frozen=True, kw_only=True, tag="response.refusal.done"):
    """The refusal: the sum of its deltas."""

    content_index: int
    refusal: str


class ReasoningDelta(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More raw reasoning."""

    content_index: int
    delta: str


class ReasoningDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The reasoning: the sum of its deltas."""

    content_index: int
    text: str


class SummaryPartAdded(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of a reasoning summary begins, empty."""

    summary_index: int
    part: SummaryText


class SummaryPartDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of a reasoning summary is whole; `status` is there only when it was cut."""

    summary_index: int
    part: SummaryText
    status: str | None | UnsetType = UNSET


class SummaryDelta(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """More of a reasoning summary."""

    summary_index: int
    delta: str


class SummaryDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"):
    """A part of a reasoning summary: the sum of its deltas."""

    summary_index: int
    text: str


class ArgumentsDelta(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a function call's arguments."""

    delta: str


class ArgumentsDone(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """A function call's arguments: the sum of their deltas."""

    arguments: str


class CustomInputDelta(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """More of a custom tool's raw input."""

    delta: str


class CustomInputDone(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    """A custom tool's raw input: the sum of its deltas."""

    input: str


Terminal = Completed | Incomplete | Failed
StreamEvent = (
    Created
    | Queued
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | Error
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | AnnotationAdded
    | RefusalDelta
    | RefusalDone
    | ReasoningDelta
    | ReasoningDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryDelta
    | SummaryDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | HostedEvent
)

_decoder: msgspec.json.Decoder[StreamEvent] = msgspec.json.Decoder(StreamEvent)


def decode_event(data: bytes | str) -> StreamEvent:
    """The event in one `data:` line. Unknown keys are ignored, as every client does.

    Raises `msgspec.ValidationError` for an unknown type or a missing key.
    """
    return _decoder.decode(data)
