"""Where events are said: each gets its number here, and nowhere else.

A draft says what happened to it in a word; the voice adds the sequence number and the item's place. It knows
every event the machine can say and nothing of when to say it.
"""

from typing import NamedTuple

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import Annotation, Content, Logprob, SummaryText
from antiphon.events.response import OutputItem, Response


class ItemPosition(NamedTuple):
    """Which item: its id, and where it stands in the output."""

    item_id: str
    output_index: int


class EventEmitter:
    """Says events, numbers them from `first` by 1, and keeps them until they are collected."""

    def __init__(self, first_number: int = 0) -> None:
        self._next_number = first_number
        self._events: list[Event] = []

    def collect_events(self) -> list[Event]:
        """What was said since the last time."""
        said, self._events = self._events, []
        return said

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def emit_lifecycle(self, event: type[ev.LifecycleEvent], response: Response) -> None:
        """The response reached a new stage."""
        self._events.append(event(sequence_number=self._take_number(), response=response))

    def emit_error(self, code: str, message: str) -> None:
        """Something broke after `created`: told in both spellings."""
        body = ev.ErrorBody(type="server_error", code=code, message=message)
        self._events.append(ev.Error(sequence_number=self._take_number(), error=body, code=code, message=message))

    def emit_item_added(self, index: int, item: OutputItem) -> None:
        """An item begins."""
        self._events.append(ev.ItemAdded(sequence_number=self._take_number(), output_index=index, item=item))

    def emit_item_done(self, index: int, item: OutputItem) -> None:
        """An item is whole, or cut."""
        self._events.append(ev.ItemDone(sequence_number=self._take_number(), output_index=index, item=item))

    def emit_part_added(self, at: ItemPosition, content: int, part: Content) -> None:
        """A content part begins."""
        self._events.append(
            ev.PartAdded(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                part=part,
            )
        )

    def emit_part_done(self, at: ItemPosition, content: int, part: Content) -> None:
        """A content part is whole."""
        self._events.append(
            ev.PartDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                part=part,
            )
        )

    def emit_text_delta(self, at: ItemPosition, content: int, delta: str, logprobs: tuple[Logprob, ...]) -> None:
        """More text."""
        self._events.append(
            ev.TextDelta(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                delta=delta,
                logprobs=logprobs,
            )
        )

    def emit_text_done(self, at: ItemPosition, content: int, text: str, logprobs: tuple[Logprob, ...]) -> None:
        """The text is whole."""
        self._events.append(
            ev.TextDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                text=text,
                logprobs=logprobs,
            )
        )

    def emit_annotation_added(
        self, at: ItemPosition, content: int, annotation_index: int, annotation: Annotation
    ) -> None:
        """A source for the text."""
        self._events.append(
            ev.AnnotationAdded(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                annotation_index=annotation_index,
                annotation=annotation,
            )
        )

    def emit_refusal_delta(self, at: ItemPosition, content: int, delta: str) -> None:
        """More of a refusal."""
        self._events.append(
            ev.RefusalDelta(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                delta=delta,
            )
        )

    def emit_refusal_done(self, at: ItemPosition, content: int, refusal: str) -> None:
        """The refusal is whole."""
        self._events.append(
            ev.RefusalDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                refusal=refusal,
            )
        )

    def emit_reasoning_delta(self, at: ItemPosition, delta: str) -> None:
        """More raw reasoning."""
        self._events.append(
            ev.ReasoningDelta(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=0,
                delta=delta,
            )
        )

    def emit_reasoning_done(self, at: ItemPosition, text: str) -> None:
        """The raw reasoning is whole."""
        self._events.append(
            ev.ReasoningDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=0,
                text=text,
            )
        )

    def emit_summary_added(self, at: ItemPosition) -> None:
        """The reasoning's summary part begins."""
        self._events.append(
            ev.SummaryPartAdded(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                part=SummaryText(text=""),
            )
        )

    def emit_summary_delta(self, at: ItemPosition, delta: str) -> None:
        """More of the summary."""
        self._events.append(
            ev.SummaryDelta(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                delta=delta,
            )
        )

    def emit_summary_done(self, at: ItemPosition, text: str) -> None:
        """The summary's text is whole."""
        self._events.append(
            ev.SummaryDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                text=text,
            )
        )

    def emit_summary_part_done(self, at: ItemPosition, text: str) -> None:
        """The summary's part is whole."""
        self._events.append(
            ev.SummaryPartDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                part=SummaryText(text=text),
            )
        )

    def emit_arguments_delta(self, at: ItemPosition, delta: str) -> None:
        """More of a function call's arguments."""
        self._events.append(
            ev.ArgumentsDelta(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def emit_arguments_done(self, at: ItemPosition, arguments: str) -> None:
        """The arguments are whole."""
        self._events.append(
            ev.ArgumentsDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                arguments=arguments,
            )
        )

    def emit_custom_input_delta(self, at: ItemPosition, delta: str) -> None:
        """More of a custom tool's input."""
        self._events.append(
            ev.CustomInputDelta(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def emit_custom_input_done(self, at: ItemPosition, text: str) -> None:
        """The custom tool's input is whole."""
        self._events.append(
            ev.CustomInputDone(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, input=text
            )
        )
