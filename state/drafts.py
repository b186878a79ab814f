"""Drafts of the item being written: one class per item type, each with the events that report the item's growth.

A draft counts what is inside the item (content and annotation indices) and keeps the text it has emitted, so that the
finished item holds exactly the text of its deltas. It does not know in which order verbs may occur: the table decides
that. Every draft has the verbs open, grow, close and freeze; cut is close with another status; only messages have cite.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import UNSET, UnsetType, structs

from antiphon.events.items import (
    Annotation,
    ContainerFileCitation,
    CustomToolCall,
    FunctionCall,
    Logprob,
    Message,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    Refusal,
    Status,
    SummaryText,
    UrlCitation,
)
from antiphon.events.response import OutputItem
from antiphon.state.emitter import EventEmitter, ItemPosition
from antiphon.state.segments import Call

ReasoningOutput = Literal["content", "summary", "both"]
Seal = Callable[[str], str]
PartKind = Literal["text", "refusal"]


class ItemDraft(Protocol):
    """The interface of the open item that the machine uses."""

    def open(self) -> None:
        """Emits the item, empty."""

    def close(self, status: Status) -> OutputItem:
        """Emits the end of the item and returns it. `status` tells whether it is complete or cut."""

    def freeze(self) -> OutputItem:
        """Returns the item with the text emitted so far and status `incomplete`. Emits nothing."""


class ReasoningDraft:
    """Reasoning, emitted as one raw part, one summary part, or both.

    With both, the summary is streamed as it arrives and the raw part is emitted at the close: parts of an item never
    interleave, and the clients that watch reasoning live are those that read only summaries.
    """

    def __init__(
        self, position: ItemPosition, emitter: EventEmitter, output: ReasoningOutput, seal: Seal | None
    ) -> None:
        self._position, self._emitter, self._output, self._seal = position, emitter, output, seal
        self._text: list[str] = []

    def open(self) -> None:
        """Emits the item and the part that grows, both empty."""
        self._emitter.emit_item_added(
            self._position.output_index, Reasoning(id=self._position.item_id, status="in_progress")
        )
        if self._output == "content":
            self._emitter.emit_part_added(self._position, 0, ReasoningText(text=""))
        else:
            self._emitter.emit_summary_added(self._position)

    def grow(self, text: str) -> None:
        """Emits a delta of the reasoning."""
        self._text.append(text)
        if self._output == "content":
            self._emitter.emit_reasoning_delta(self._position, text)
        else:
            self._emitter.emit_summary_delta(self._position, text)

    def close(self, status: Status) -> Reasoning:
        """Finishes the parts, seals the text and finishes the item."""
        text, emitter, position = "".join(self._text), self._emitter, self._position
        encrypted_content = self._seal(text) if self._seal else UNSET
        if self._output != "content":
            emitter.emit_summary_done(position, text)
            emitter.emit_summary_part_done(position, text)
        if self._output == "both":
            emitter.emit_part_added(position, 0, ReasoningText(text=""))
            emitter.emit_reasoning_delta(position, text)
        if self._output != "summary":
            emitter.emit_reasoning_done(position, text)
            emitter.emit_part_done(position, 0, ReasoningText(text=text))
        item = self._build_item(status, raw=self._output != "summary", sealed=encrypted_content)
        emitter.emit_item_done(position.output_index, item)
        return item

    def freeze(self) -> Reasoning:
        """Returns the reasoning emitted so far, never sealed: only reasoning that is done may be sent back sealed."""
        return self._build_item("incomplete", raw=self._output == "content", sealed=UNSET)

    def _build_item(self, status: Status, *, raw: bool, sealed: str | UnsetType) -> Reasoning:
        text = "".join(self._text)
        return Reasoning(
            id=self._position.item_id,
            status=status,
            summary=() if self._output == "content" else (SummaryText(text=text),),
            content=(ReasoningText(text=text),) if raw else UNSET,
            encrypted_content=sealed,
        )


def _with_range(annotation: Annotation, *, end: int, length: int) -> Annotation:
    """Returns the annotation for the `length` characters before `end`. One without a range gets `end` as its index."""
    if isinstance(annotation, UrlCitation | ContainerFileCitation):
        return structs.replace(annotation, start_index=max(end - length, 0), end_index=end)
    return structs.replace(annotation, index=end)


class MessageDraft:
    """A message: text parts and refusal parts in sequence, of which the last is open."""

    def __init__(
        self, position: ItemPosition, emitter: EventEmitter, phase: Phase | None, first_kind: PartKind
    ) -> None:
        self._position, self._emitter = position, emitter
        self.phase = phase
        self.part_kind: PartKind = first_kind
        self._done_parts: list[OutputText | Refusal] = []
        self._text: list[str] = []
        self._logprobs: list[Logprob] = []
        self._annotations: list[Annotation] = []
        self._length = 0

    def open(self) -> None:
        """Emits the item and its first part, both empty."""
        self._emitter.emit_item_added(self._position.output_index, self._build_item("in_progress", ()))
        self._open_part()

    def grow(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> None:
        """Emits a delta of the open part. Refusals have no log-probabilities."""
        self._text.append(text)
        self._length += len(text)
        if self.part_kind == "refusal":
            self._emitter.emit_refusal_delta(self._position, len(self._done_parts), text)
        else:
            self._logprobs.extend(logprobs)
            self._emitter.emit_text_delta(self._position, len(self._done_parts), text, logprobs)

    def switch_part(self, kind: PartKind) -> None:
        """Finishes the open part and starts one of the other kind."""
        self._close_part()
        self.part_kind = kind
        self._open_part()

    def cite(self, annotation: Annotation, length: int | None = None) -> None:
        """Emits an annotation of the open text part; with `length`, of the last `length` characters of its text."""
        if length is not None:
            annotation = _with_range(annotation, end=self._length, length=length)
        self._emitter.emit_annotation_added(self._position, len(self._done_parts), len(self._annotations), annotation)
        self._annotations.append(annotation)

    def close(self, status: Status) -> Message:
        """Finishes the open part and the item."""
        self._close_part()
        item = self._build_item(status, tuple(self._done_parts))
        self._emitter.emit_item_done(self._position.output_index, item)
        return item

    def freeze(self) -> Message:
        """Returns the message with the text emitted so far."""
        return self._build_item("incomplete", (*self._done_parts, self._build_part()))

    def _open_part(self) -> None:
        self._text, self._logprobs, self._annotations, self._length = [], [], [], 0
        self._emitter.emit_part_added(self._position, len(self._done_parts), self._build_part())

    def _close_part(self) -> None:
        part, index = self._build_part(), len(self._done_parts)
        if isinstance(part, Refusal):
            self._emitter.emit_refusal_done(self._position, index, part.refusal)
        else:
            self._emitter.emit_text_done(self._position, index, part.text, part.logprobs)
        self._emitter.emit_part_done(self._position, index, part)
        self._done_parts.append(part)

    def _build_part(self) -> OutputText | Refusal:
        text = "".join(self._text)
        if self.part_kind == "refusal":
            return Refusal(refusal=text)
        return OutputText(text=text, annotations=tuple(self._annotations), logprobs=tuple(self._logprobs))

    def _build_item(self, status: Status, content: tuple[OutputText | Refusal, ...]) -> Message:
        return Message(id=self._position.item_id, status=status, content=content, phase=self.phase or UNSET)


class _CallDraft:
    """Base of both call drafts: passes text on as it arrives; an unfinished call never gets `output_item.done`."""

    def __init__(self, position: ItemPosition, emitter: EventEmitter, call: Call, call_id: str) -> None:
        self._position, self._emitter, self._call, self._call_id = position, emitter, call, call_id
        self._text: list[str] = []

    def open(self) -> None:
        """Emits the call with its name and call id."""
        self._emitter.emit_item_added(self._position.output_index, self._build_item("in_progress"))

    def freeze(self) -> FunctionCall | CustomToolCall:
        """Returns the call with the text emitted so far, and emits no done event: half a command must not run."""
        return self._build_item("incomplete")

    def _build_item(self, status: Status) -> FunctionCall | CustomToolCall:
        raise NotImplementedError


class FunctionCallDraft(_CallDraft):
    """A function call. Its text is JSON."""

    def grow(self, text: str) -> None:
        """Emits a delta of the arguments."""
        self._text.append(text)
        self._emitter.emit_arguments_delta(self._position, text)

    def close(self, status: Status) -> FunctionCall:
        """Finishes the arguments and the item. A call without arguments gets `{}`, because clients parse them."""
        if not "".join(self._text).strip():
            self.grow("{}")
        item = self._build_item(status)
        self._emitter.emit_arguments_done(self._position, item.name, item.arguments)
        self._emitter.emit_item_done(self._position.output_index, item)
        return item

    def _build_item(self, status: Status) -> FunctionCall:
        return FunctionCall(
            id=self._position.item_id,
            call_id=self._call_id,
            name=self._call.name,
            arguments="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
        )


class CustomCallDraft(_CallDraft):
    """A call of a custom tool. Its text is the raw input."""

    def grow(self, text: str) -> None:
        """Emits a delta of the input."""
        self._text.append(text)
        self._emitter.emit_custom_input_delta(self._position, text)

    def close(self, status: Status) -> CustomToolCall:
        """Finishes the input and the item."""
        item = self._build_item(status)
        self._emitter.emit_custom_input_done(self._position, item.input)
        self._emitter.emit_item_done(self._position.output_index, item)
        return item

    def _build_item(self, status: Status) -> CustomToolCall:
        return CustomToolCall(
            id=self._position.item_id,
            call_id=self._call_id,
            name=self._call.name,
            input="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
        )
