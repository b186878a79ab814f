"""The event emitter: the only place that assigns sequence numbers.

A draft calls one method per event; the emitter adds the sequence number and the item's position. It knows every event
that the machine can emit, but not when to emit it.
"""

from typing import NamedTuple

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import Annotation, Content, Logprob, SummaryText
from antiphon.events.response import OutputItem, Response


class ItemPosition(NamedTuple):
    """An item's id and its index in the output of the response."""

    item_id: str
    output_index: int


class EventEmitter:
    """Creates events, numbers them from `first_number` by 1, and keeps them until they are collected."""

    def __init__(self, first_number: int = 0) -> None:
        self._next_number = first_number
        self._events: list[Event] = []

    def collect_events(self) -> list[Event]:
        """Returns the events emitted since the last call."""
        events, self._events = self._events, []
        return events

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def emit_lifecycle(self, event: type[ev.LifecycleEvent], response: Response) -> None:
        """Emits a lifecycle event of class `event`: the response has reached a new stage."""
        self._events.append(event(sequence_number=self._take_number(), response=response))

    def emit_error(self, code: str, message: str) -> None:
        """Emits `error` for a failure after `response.created`, in both the nested and the flat form."""
        body = ev.ErrorBody(type="server_error", code=code, message=message)
        self._events.append(ev.Error(sequence_number=self._take_number(), error=body, code=code, message=message))

    def emit_item_added(self, index: int, item: OutputItem) -> None:
        """Emits `response.output_item.added`."""
        self._events.append(ev.ItemAdded(sequence_number=self._take_number(), output_index=index, item=item))

    def emit_item_done(self, index: int, item: OutputItem) -> None:
        """Emits `response.output_item.done` for a completed or cut item."""
        self._events.append(ev.ItemDone(sequence_number=self._take_number(), output_index=index, item=item))

    def emit_part_added(self, at: ItemPosition, content: int, part: Content) -> None:
        """Emits `response.content_part.added`."""
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
        """Emits `response.content_part.done`."""
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
        """Emits `response.output_text.delta`."""
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
        """Emits `response.output_text.done`."""
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
        """Emits `response.output_text.annotation.added`."""
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
        """Emits `response.refusal.delta`."""
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
        """Emits `response.refusal.done`."""
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
        """Emits `response.reasoning_text.delta`."""
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
        """Emits `response.reasoning_text.done`."""
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
        """Emits `response.reasoning_summary_part.added` with an empty part."""
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
        """Emits `response.reasoning_summary_text.delta`."""
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
        """Emits `response.reasoning_summary_text.done`."""
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
        """Emits `response.reasoning_summary_part.done`."""
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
        """Emits `response.function_call_arguments.delta`."""
        self._events.append(
            ev.ArgumentsDelta(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def emit_arguments_done(self, at: ItemPosition, name: str, arguments: str) -> None:
        """Emits `response.function_call_arguments.done`."""
        self._events.append(
            ev.ArgumentsDone(
                sequence_number=self._take_number(),
                item_id=at.item_id,
                output_index=at.output_index,
                name=name,
                arguments=arguments,
            )
        )

    def emit_custom_input_delta(self, at: ItemPosition, delta: str) -> None:
        """Emits `response.custom_tool_call_input.delta`."""
        self._events.append(
            ev.CustomInputDelta(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def emit_custom_input_done(self, at: ItemPosition, text: str) -> None:
        """Emits `response.custom_tool_call_input.done`."""
        self._events.append(
            ev.CustomInputDone(
                sequence_number=self._take_number(), item_id=at.item_id, output_index=at.output_index, input=text
            )
        )
