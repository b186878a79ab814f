"""Where events are said: each gets its number here, and nowhere else.

A draft says what happened to it in a word; the voice adds the sequence number and the item's place. It knows
every event the machine can say and nothing of when to say it.
"""

from typing import NamedTuple

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import Annotation, Content, Logprob, SummaryText
from antiphon.events.response import OutputItem, Response


class Place(NamedTuple):
    """Which item: its id, and where it stands in the output."""

    item_id: str
    output_index: int


class Voice:
    """Says events, numbers them from `first` by 1, and keeps them until they are collected."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._said: list[Event] = []

    def collect(self) -> list[Event]:
        """What was said since the last time."""
        said, self._said = self._said, []
        return said

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def lifecycle(self, event: type[ev.LifecycleEvent], response: Response) -> None:
        """The response reached a new stage."""
        self._said.append(event(sequence_number=self._number(), response=response))

    def error(self, code: str, message: str) -> None:
        """Something broke after `created`: told in both spellings."""
        body = ev.ErrorBody(type="server_error", code=code, message=message)
        self._said.append(ev.Error(sequence_number=self._number(), error=body, code=code, message=message))

    def item_added(self, index: int, item: OutputItem) -> None:
        """An item begins."""
        self._said.append(ev.ItemAdded(sequence_number=self._number(), output_index=index, item=item))

    def item_done(self, index: int, item: OutputItem) -> None:
        """An item is whole, or cut."""
        self._said.append(ev.ItemDone(sequence_number=self._number(), output_index=index, item=item))

    def part_added(self, at: Place, content: int, part: Content) -> None:
        """A content part begins."""
        self._said.append(
            ev.PartAdded(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                part=part,
            )
        )

    def part_done(self, at: Place, content: int, part: Content) -> None:
        """A content part is whole."""
        self._said.append(
            ev.PartDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                part=part,
            )
        )

    def text_delta(self, at: Place, content: int, delta: str, logprobs: tuple[Logprob, ...]) -> None:
        """More text."""
        self._said.append(
            ev.TextDelta(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                delta=delta,
                logprobs=logprobs,
            )
        )

    def text_done(self, at: Place, content: int, text: str, logprobs: tuple[Logprob, ...]) -> None:
        """The text is whole."""
        self._said.append(
            ev.TextDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                text=text,
                logprobs=logprobs,
            )
        )

    def annotation_added(self, at: Place, content: int, annotation_index: int, annotation: Annotation) -> None:
        """A source for the text."""
        self._said.append(
            ev.AnnotationAdded(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                annotation_index=annotation_index,
                annotation=annotation,
            )
        )

    def refusal_delta(self, at: Place, content: int, delta: str) -> None:
        """More of a refusal."""
        self._said.append(
            ev.RefusalDelta(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                delta=delta,
            )
        )

    def refusal_done(self, at: Place, content: int, refusal: str) -> None:
        """The refusal is whole."""
        self._said.append(
            ev.RefusalDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=content,
                refusal=refusal,
            )
        )

    def reasoning_delta(self, at: Place, delta: str) -> None:
        """More raw reasoning."""
        self._said.append(
            ev.ReasoningDelta(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=0,
                delta=delta,
            )
        )

    def reasoning_done(self, at: Place, text: str) -> None:
        """The raw reasoning is whole."""
        self._said.append(
            ev.ReasoningDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                content_index=0,
                text=text,
            )
        )

    def summary_added(self, at: Place) -> None:
        """The reasoning's summary part begins."""
        self._said.append(
            ev.SummaryPartAdded(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                part=SummaryText(text=""),
            )
        )

    def summary_delta(self, at: Place, delta: str) -> None:
        """More of the summary."""
        self._said.append(
            ev.SummaryDelta(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                delta=delta,
            )
        )

    def summary_done(self, at: Place, text: str) -> None:
        """The summary's text is whole."""
        self._said.append(
            ev.SummaryDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                text=text,
            )
        )

    def summary_part_done(self, at: Place, text: str) -> None:
        """The summary's part is whole."""
        self._said.append(
            ev.SummaryPartDone(
                sequence_number=self._number(),
                item_id=at.item_id,
                output_index=at.output_index,
                summary_index=0,
                part=SummaryText(text=text),
            )
        )

    def arguments_delta(self, at: Place, delta: str) -> None:
        """More of a function call's arguments."""
        self._said.append(
            ev.ArgumentsDelta(
                sequence_number=self._number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def arguments_done(self, at: Place, arguments: str) -> None:
        """The arguments are whole."""
        self._said.append(
            ev.ArgumentsDone(
                sequence_number=self._number(), item_id=at.item_id, output_index=at.output_index, arguments=arguments
            )
        )

    def custom_delta(self, at: Place, delta: str) -> None:
        """More of a custom tool's input."""
        self._said.append(
            ev.CustomInputDelta(
                sequence_number=self._number(), item_id=at.item_id, output_index=at.output_index, delta=delta
            )
        )

    def custom_done(self, at: Place, text: str) -> None:
        """The custom tool's input is whole."""
        self._said.append(
            ev.CustomInputDone(
                sequence_number=self._number(), item_id=at.item_id, output_index=at.output_index, input=text
            )
        )
