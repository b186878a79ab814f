"""The item being written: one class per kind, each knowing which events tell of its growth.

A draft counts what stands inside it (content and annotation indices) and keeps what it has said, so that the
finished item is made of the very text of its deltas. It does not know in which order verbs may come: that is the
table's business. All share six verbs: open, grow, cite, close (also cut: another status) and freeze.
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
from antiphon.state.emitter import Place, Voice
from antiphon.state.segments import Call

ReasoningAs = Literal["content", "summary", "both"]
Seal = Callable[[str], str]
PartKind = Literal["text", "refusal"]


class Draft(Protocol):
    """What the machine asks of the open item."""

    def open(self) -> None:
        """Say the item, empty."""

    def close(self, status: Status) -> OutputItem:
        """Say that it is whole (or cut, by `status`), and return it."""

    def freeze(self) -> OutputItem:
        """Say nothing; return it as far as it was said, with status incomplete."""


class ReasoningDraft:
    """Reasoning, told as one raw part, one summary part, or both.

    With both, the summary is told as it comes and the raw part at the close: parts of an item never interleave,
    and those who read only summaries are the ones who watch.
    """

    def __init__(self, at: Place, voice: Voice, said_as: ReasoningAs, seal: Seal | None) -> None:
        self._at, self._voice, self._as, self._seal = at, voice, said_as, seal
        self._text: list[str] = []

    def open(self) -> None:
        """Say the item and the part that grows, both empty."""
        self._voice.item_added(self._at.output_index, Reasoning(id=self._at.item_id, status="in_progress"))
        if self._as == "content":
            self._voice.part_added(self._at, 0, ReasoningText(text=""))
        else:
            self._voice.summary_added(self._at)

    def grow(self, text: str) -> None:
        """Say more of the reasoning."""
        self._text.append(text)
        if self._as == "content":
            self._voice.reasoning_delta(self._at, text)
        else:
            self._voice.summary_delta(self._at, text)

    def close(self, status: Status) -> Reasoning:
        """Finish the parts, seal the text, finish the item."""
        text, voice, at = "".join(self._text), self._voice, self._at
        sealed = self._seal(text) if self._seal else UNSET
        if self._as != "content":
            voice.summary_done(at, text)
            voice.summary_part_done(at, text)
        if self._as == "both":
            voice.part_added(at, 0, ReasoningText(text=""))
            voice.reasoning_delta(at, text)
        if self._as != "summary":
            voice.reasoning_done(at, text)
            voice.part_done(at, 0, ReasoningText(text=text))
        item = self._item(status, raw=self._as != "summary", sealed=sealed)
        voice.item_done(at.output_index, item)
        return item

    def freeze(self) -> Reasoning:
        """The reasoning as far as it was said. Never sealed: only whole reasoning may come back sealed."""
        return self._item("incomplete", raw=self._as == "content", sealed=UNSET)

    def _item(self, status: Status, *, raw: bool, sealed: str | UnsetType) -> Reasoning:
        text = "".join(self._text)
        return Reasoning(
            id=self._at.item_id,
            status=status,
            summary=() if self._as == "content" else (SummaryText(text=text),),
            content=(ReasoningText(text=text),) if raw else UNSET,
            encrypted_content=sealed,
        )


def _placed(annotation: Annotation, *, end: int, length: int) -> Annotation:
    """An annotation for that many characters before an end."""
    if isinstance(annotation, UrlCitation | ContainerFileCitation):
        return structs.replace(annotation, start_index=max(end - length, 0), end_index=end)
    return structs.replace(annotation, index=end)


class MessageDraft:
    """A message: text parts and refusal parts, one after the other; the last one is open."""

    def __init__(self, at: Place, voice: Voice, phase: Phase | None, first: PartKind) -> None:
        self._at, self._voice = at, voice
        self.phase = phase
        self.kind: PartKind = first
        self._done: list[OutputText | Refusal] = []
        self._text: list[str] = []
        self._logprobs: list[Logprob] = []
        self._annotations: list[Annotation] = []
        self._length = 0

    def open(self) -> None:
        """Say the item and its first part, both empty."""
        self._voice.item_added(self._at.output_index, self._item("in_progress", ()))
        self._open_part()

    def grow(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> None:
        """Say more of the open part."""
        self._text.append(text)
        self._length += len(text)
        if self.kind == "refusal":
            self._voice.refusal_delta(self._at, len(self._done), text)
        else:
            self._logprobs.extend(logprobs)
            self._voice.text_delta(self._at, len(self._done), text, logprobs)

    def turn(self, kind: PartKind) -> None:
        """Finish the open part and begin one of the other kind."""
        self._close_part()
        self.kind = kind
        self._open_part()

    def cite(self, annotation: Annotation, length: int | None = None) -> None:
        """Say a source for the open text part; for its last characters where a `length` is given."""
        if length is not None:
            annotation = _placed(annotation, end=self._length, length=length)
        self._voice.annotation_added(self._at, len(self._done), len(self._annotations), annotation)
        self._annotations.append(annotation)

    def close(self, status: Status) -> Message:
        """Finish the open part and the item."""
        self._close_part()
        item = self._item(status, tuple(self._done))
        self._voice.item_done(self._at.output_index, item)
        return item

    def freeze(self) -> Message:
        """The message as far as it was said."""
        return self._item("incomplete", (*self._done, self._part()))

    def _open_part(self) -> None:
        self._text, self._logprobs, self._annotations, self._length = [], [], [], 0
        self._voice.part_added(self._at, len(self._done), self._part())

    def _close_part(self) -> None:
        part, index = self._part(), len(self._done)
        if isinstance(part, Refusal):
            self._voice.refusal_done(self._at, index, part.refusal)
        else:
            self._voice.text_done(self._at, index, part.text, part.logprobs)
        self._voice.part_done(self._at, index, part)
        self._done.append(part)

    def _part(self) -> OutputText | Refusal:
        text = "".join(self._text)
        if self.kind == "refusal":
            return Refusal(refusal=text)
        return OutputText(text=text, annotations=tuple(self._annotations), logprobs=tuple(self._logprobs))

    def _item(self, status: Status, content: tuple[OutputText | Refusal, ...]) -> Message:
        return Message(id=self._at.item_id, status=status, content=content, phase=self.phase or UNSET)


class _CallDraft:
    """What both kinds of call share: text that is passed on as it comes, and an item that is never half done."""

    def __init__(self, at: Place, voice: Voice, call: Call, call_id: str) -> None:
        self._at, self._voice, self._call, self._call_id = at, voice, call, call_id
        self._text: list[str] = []

    def open(self) -> None:
        """Say the call with its name and call id."""
        self._voice.item_added(self._at.output_index, self._item("in_progress"))

    def freeze(self) -> FunctionCall | CustomToolCall:
        """The call as far as it was said. It is never said to be done: half a command must not run."""
        return self._item("incomplete")

    def _item(self, status: Status) -> FunctionCall | CustomToolCall:
        raise NotImplementedError


class FunctionDraft(_CallDraft):
    """A function call: JSON text."""

    def grow(self, text: str) -> None:
        """Say more of the arguments."""
        self._text.append(text)
        self._voice.arguments_delta(self._at, text)

    def close(self, status: Status) -> FunctionCall:
        """Finish the arguments and the item. A call without arguments has `{}`: clients parse them."""
        if not "".join(self._text).strip():
            self.grow("{}")
        item = self._item(status)
        self._voice.arguments_done(self._at, item.arguments)
        self._voice.item_done(self._at.output_index, item)
        return item

    def _item(self, status: Status) -> FunctionCall:
        return FunctionCall(
            id=self._at.item_id,
            call_id=self._call_id,
            name=self._call.name,
            arguments="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
        )


class CustomDraft(_CallDraft):
    """A call of a custom tool: raw text."""

    def grow(self, text: str) -> None:
        """Say more of the input."""
        self._text.append(text)
        self._voice.custom_delta(self._at, text)

    def close(self, status: Status) -> CustomToolCall:
        """Finish the input and the item."""
        item = self._item(status)
        self._voice.custom_done(self._at, item.input)
        self._voice.item_done(self._at.output_index, item)
        return item

    def _item(self, status: Status) -> CustomToolCall:
        return CustomToolCall(
            id=self._at.item_id,
            call_id=self._call_id,
            name=self._call.name,
            input="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
        )
