"""Stream events, one class each. Their names are past facts, after the names on the wire.

`Created` to `Error` report on the whole response, the others on one item, part or delta. The events of hosted tools are
in `hosted_events`. `decode_event` decodes any of them.
"""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.events.base import Event, ItemEvent
from antiphon.events.hosted_events import HostedEvent
from antiphon.events.items import Annotation, Content, Logprob, SummaryText
from antiphon.events.response import OutputItem, Response


class LifecycleEvent(Event, frozen=True, kw_only=True):
    """The response has reached a new stage; `response` is a snapshot at that moment."""

    response: Response


class Created(LifecycleEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response exists. Always the first event."""


class Queued(LifecycleEvent, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits for the engine."""


class InProgress(LifecycleEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has admitted the response. Repeated, before the first item, to keep a silent stream open."""


class Completed(LifecycleEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The model has ended its turn. Terminal."""


class Incomplete(LifecycleEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The turn was cut, by a limit or by a cancellation (then `response.status` is `cancelled`). Terminal."""


class Failed(LifecycleEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The turn failed. `response.error` is the reason, `response.output` the partial output. Terminal."""


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The nested form of an error, which OpenAI's API sends."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """A failure after the stream began, in two forms: nested as OpenAI's API sends it, flat as documented."""

    error: ErrorBody | UnsetType = UNSET
    code: str | None = None
    message: str
    param: str | None = None


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """The start of an item, empty but for its id and name."""

    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The end of an item, which never changes again. Its status is `incomplete` if it was cut."""

    output_index: int
    item: OutputItem


class PartAdded(ItemEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The start of a content part, empty."""

    content_index: int
    part: Content


class PartDone(ItemEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The end of a content part, with its whole content."""

    content_index: int
    part: Content


class TextDelta(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A delta of text. `logprobs` holds the tokens whose first character is in `delta`."""

    content_index: int
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class TextDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text of a part: its deltas, concatenated."""

    content_index: int
    text: str
    logprobs: tuple[Logprob, ...] = ()


class AnnotationAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"):
    """An annotation of the text: a source or a file."""

    content_index: int
    annotation_index: int
    annotation: Annotation


class RefusalDelta(ItemEvent, frozen=True, kw_only=True, tag="response.refusal.delta"):
    """A delta of a refusal."""

    content_index: int
    delta: str


class RefusalDone(ItemEvent, frozen=True, kw_only=True, tag="response.refusal.done"):
    """The whole refusal: its deltas, concatenated."""

    content_index: int
    refusal: str


class ReasoningDelta(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A delta of raw reasoning."""

    content_index: int
    delta: str


class ReasoningDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The whole raw reasoning: its deltas, concatenated."""

    content_index: int
    text: str


class SummaryPartAdded(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    """The start of a reasoning summary's part, empty."""

    summary_index: int
    part: SummaryText


class SummaryPartDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    """The end of a reasoning summary's part; `status` is present only if it was cut."""

    summary_index: int
    part: SummaryText
    status: str | None | UnsetType = UNSET


class SummaryDelta(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """A delta of a reasoning summary."""

    summary_index: int
    delta: str


class SummaryDone(ItemEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"):
    """The whole text of a reasoning summary's part: its deltas, concatenated."""

    summary_index: int
    text: str


class ArgumentsDelta(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """A delta of a function call's arguments."""

    delta: str


class ArgumentsDone(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a function call: their deltas, concatenated."""

    name: str | UnsetType = UNSET
    """Name of the function, which openai 2.0 to 3.3 require. Events stored by an earlier version lack it."""
    arguments: str


class CustomInputDelta(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """A delta of a custom tool's raw input."""

    delta: str


class CustomInputDone(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The whole raw input of a custom tool: its deltas, concatenated."""

    input: str


class ShellCommandAdded(Event, frozen=True, kw_only=True, tag="response.shell_call_command.added"):
    """The start of a shell call's command at `command_index`. OpenAI's events of commands have no `item_id`."""

    output_index: int
    command_index: int
    command: str


class ShellCommandDelta(Event, frozen=True, kw_only=True, tag="response.shell_call_command.delta"):
    """A delta of a shell call's command."""

    output_index: int
    command_index: int
    delta: str


class ShellCommandDone(Event, frozen=True, kw_only=True, tag="response.shell_call_command.done"):
    """The whole command of a shell call: its deltas, concatenated."""

    output_index: int
    command_index: int
    command: str


class PatchDiffDelta(ItemEvent, frozen=True, kw_only=True, tag="response.apply_patch_call_operation_diff.delta"):
    """A delta of a patch's diff."""

    delta: str


class PatchDiffDone(ItemEvent, frozen=True, kw_only=True, tag="response.apply_patch_call_operation_diff.done"):
    """The whole diff of a patch: its deltas, concatenated."""

    diff: str


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
    | ShellCommandAdded
    | ShellCommandDelta
    | ShellCommandDone
    | PatchDiffDelta
    | PatchDiffDone
    | HostedEvent
)

_decoder: msgspec.json.Decoder[StreamEvent] = msgspec.json.Decoder(StreamEvent)


def decode_event(data: bytes | str) -> StreamEvent:
    """Decodes the event in one `data:` line. Unknown keys are ignored, as every client does.

    Raises `msgspec.ValidationError` for an unknown type or a missing key.
    """
    return _decoder.decode(data)
