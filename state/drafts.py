"""Drafts of the item being written: one class per item type, each with the events that report the item's growth.

A draft counts what is inside the item (content and annotation indices) and keeps the text it has emitted, so that the
finished item holds exactly the text of its deltas. It does not know in which order verbs may occur: the table decides
that. Every draft has the verbs open, grow, close and freeze; cut is close with another status; only messages have cite.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs

from antiphon.events import stream as ev
from antiphon.events.hosted_events import CompactionCompactingEvent
from antiphon.events.items import (
    Annotation,
    Compaction,
    ContainerFileCitation,
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
from antiphon.state.segments import Result, Segment

ReasoningOutput = Literal["content", "summary", "both"]
Seal = Callable[[str], str]
PartKind = Literal["text", "refusal"]


class OutputSettings(Struct, frozen=True, kw_only=True):
    """Settings of the server that change which events report an item."""

    reasoning: ReasoningOutput = "content"
    """Form in which reasoning is emitted: raw content, summary, or both."""
    patch_diffs: bool = False
    """True if the diff of a patch is emitted while it grows."""


class ItemDraft:
    """Base class: the open item, as the machine uses it."""

    def __init__(self, position: ItemPosition, emitter: EventEmitter) -> None:
        self._position, self._emitter = position, emitter
        self._text: list[str] = []

    def open(self) -> None:
        """Emits the item, empty."""
        raise NotImplementedError

    def close(self, status: Status) -> OutputItem:
        """Emits the end of the item and returns it. `status` tells whether it is complete or cut."""
        raise NotImplementedError

    def freeze(self) -> OutputItem | None:
        """Returns the item with the text emitted so far and status `incomplete`; None if it was not emitted.

        Emits nothing.
        """
        raise NotImplementedError

    def _emit_item(self, event: type[ev.ItemAdded] | type[ev.ItemDone], item: OutputItem) -> None:
        self._emitter.emit(event, output_index=self._position.output_index, item=item)


class ReasoningDraft(ItemDraft):
    """Reasoning, emitted as one raw part, one summary part, or both.

    With both, the summary is streamed as it arrives and the raw part is emitted at the close: parts of an item never
    interleave, and the clients that watch reasoning live are those that read only summaries.
    """

    def __init__(
        self, position: ItemPosition, emitter: EventEmitter, output: ReasoningOutput, seal: Seal | None
    ) -> None:
        super().__init__(position, emitter)
        self._output, self._seal = output, seal

    def open(self) -> None:
        """Emits the item and the part that grows, both empty."""
        self._emit_item(ev.ItemAdded, Reasoning(id=self._position.item_id, status="in_progress"))
        if self._output == "content":
            self._emitter.emit_at(self._position, ev.PartAdded, content_index=0, part=ReasoningText(text=""))
        else:
            self._emitter.emit_at(self._position, ev.SummaryPartAdded, summary_index=0, part=SummaryText(text=""))

    def grow(self, text: str) -> None:
        """Emits a delta of the reasoning."""
        self._text.append(text)
        item_id, output_index = self._position
        number = self._emitter.next_number
        self._emitter.add_event(
            ev.ReasoningDelta(
                sequence_number=number, item_id=item_id, output_index=output_index, content_index=0, delta=text
            )
            if self._output == "content"
            else ev.SummaryDelta(
                sequence_number=number, item_id=item_id, output_index=output_index, summary_index=0, delta=text
            )
        )

    def close(self, status: Status) -> Reasoning:
        """Finishes the parts, seals the text and finishes the item."""
        text, emit, position = "".join(self._text), self._emitter.emit_at, self._position
        encrypted_content = self._seal(text) if self._seal else UNSET
        if self._output != "content":
            emit(position, ev.SummaryDone, summary_index=0, text=text)
            emit(position, ev.SummaryPartDone, summary_index=0, part=SummaryText(text=text))
        if self._output == "both":
            emit(position, ev.PartAdded, content_index=0, part=ReasoningText(text=""))
            emit(position, ev.ReasoningDelta, content_index=0, delta=text)
        if self._output != "summary":
            emit(position, ev.ReasoningDone, content_index=0, text=text)
            emit(position, ev.PartDone, content_index=0, part=ReasoningText(text=text))
        item = self._build_item(status, raw=self._output != "summary", sealed=encrypted_content)
        self._emit_item(ev.ItemDone, item)
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


class MessageDraft(ItemDraft):
    """A message: text parts and refusal parts in sequence, of which the last is open."""

    def __init__(
        self, position: ItemPosition, emitter: EventEmitter, phase: Phase | None, first_kind: PartKind
    ) -> None:
        super().__init__(position, emitter)
        self.phase = phase
        self.part_kind: PartKind = first_kind
        self._done_parts: list[OutputText | Refusal] = []
        self._logprobs: list[Logprob] = []
        self._annotations: list[Annotation] = []
        self._length = 0

    def open(self) -> None:
        """Emits the item and its first part, both empty."""
        self._emit_item(ev.ItemAdded, self._build_item("in_progress", ()))
        self._open_part()

    def grow(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> None:
        """Emits a delta of the open part. Refusals have no log-probabilities."""
        self._text.append(text)
        self._length += len(text)
        index = len(self._done_parts)
        if self.part_kind == "refusal":
            self._emitter.emit_at(self._position, ev.RefusalDelta, content_index=index, delta=text)
        else:
            self._logprobs.extend(logprobs)
            item_id, output_index = self._position
            self._emitter.add_event(
                ev.TextDelta(
                    sequence_number=self._emitter.next_number,
                    item_id=item_id,
                    output_index=output_index,
                    content_index=index,
                    delta=text,
                    logprobs=logprobs,
                )
            )

    def switch_part(self, kind: PartKind) -> None:
        """Finishes the open part and starts one of the other kind."""
        self._close_part()
        self.part_kind = kind
        self._open_part()

    def cite(self, annotation: Annotation, length: int | None = None) -> None:
        """Emits an annotation of the open text part; with `length`, of the last `length` characters of its text."""
        if length is not None:
            annotation = _with_range(annotation, end=self._length, length=length)
        self._emitter.emit_at(
            self._position,
            ev.AnnotationAdded,
            content_index=len(self._done_parts),
            annotation_index=len(self._annotations),
            annotation=annotation,
        )
        self._annotations.append(annotation)

    def close(self, status: Status) -> Message:
        """Finishes the open part and the item."""
        self._close_part()
        item = self._build_item(status, tuple(self._done_parts))
        self._emit_item(ev.ItemDone, item)
        return item

    def freeze(self) -> Message:
        """Returns the message with the text emitted so far."""
        return self._build_item("incomplete", (*self._done_parts, self._build_part()))

    def _open_part(self) -> None:
        self._text, self._logprobs, self._annotations, self._length = [], [], [], 0
        index = len(self._done_parts)
        self._emitter.emit_at(self._position, ev.PartAdded, content_index=index, part=self._build_part())

    def _close_part(self) -> None:
        part, index = self._build_part(), len(self._done_parts)
        emit, position = self._emitter.emit_at, self._position
        if isinstance(part, Refusal):
            emit(position, ev.RefusalDone, content_index=index, refusal=part.refusal)
        else:
            emit(position, ev.TextDone, content_index=index, text=part.text, logprobs=part.logprobs)
        emit(position, ev.PartDone, content_index=index, part=part)
        self._done_parts.append(part)

    def _build_part(self) -> OutputText | Refusal:
        text = "".join(self._text)
        if self.part_kind == "refusal":
            return Refusal(refusal=text)
        return OutputText(text=text, annotations=tuple(self._annotations), logprobs=tuple(self._logprobs))

    def _build_item(self, status: Status, content: tuple[OutputText | Refusal, ...]) -> Message:
        return Message(id=self._position.item_id, status=status, content=content, phase=self.phase or UNSET)


class RunningDraft(ItemDraft):
    """Base of the drafts whose content the server makes while the item is open."""

    def emit_stage(self) -> None:
        """Emits the stage of what the server does."""
        raise NotImplementedError

    def settle(self, result: Segment) -> OutputItem:
        """Finishes the item with what the server made."""
        raise NotImplementedError


class CompactionDraft(RunningDraft):
    """A compaction, which is made while the item is open."""

    def open(self) -> None:
        """Emits the item without content, and its stage."""
        self._emit_item(ev.ItemAdded, self.freeze())
        self.emit_stage()

    def emit_stage(self) -> None:
        """Emits that the compaction is in progress."""
        self._emitter.emit_at(self._position, CompactionCompactingEvent)

    def settle(self, result: Segment) -> Compaction:
        """Finishes the item."""
        if not isinstance(result, Result):
            raise TypeError(result)
        item = Compaction(id=self._position.item_id, encrypted_content=result.encrypted_content)
        self._emit_item(ev.ItemDone, item)
        return item

    def freeze(self) -> Compaction:
        """Returns the item without content, as it was emitted."""
        return Compaction(id=self._position.item_id, encrypted_content="")
