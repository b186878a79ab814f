"""Recovery of a response whose writer is gone: builds, from the events already emitted, those that end it as failed.

Emitted events cannot be retracted, so the end is what the machine itself would have emitted at that point: finished
items stay as they are, and the open item is frozen with the text of its deltas.
"""

from collections.abc import Sequence

import msgspec

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.builtin_calls import ApplyPatchCall, DeleteFile, LocalShellCall, ShellCall
from antiphon.events.hosted import CodeInterpreterCall, FileSearchCall, McpCall, ToolSearchCall, WebSearchCall
from antiphon.events.hosted_events import CodeInterpreterCallCodeDeltaEvent, McpCallArgumentsDeltaEvent
from antiphon.events.items import (
    CustomToolCall,
    FunctionCall,
    Logprob,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antiphon.events.response import OutputItem, Response, ResponseError
from antiphon.state.emitter import EventEmitter
from antiphon.state.server_drafts import UNKNOWN_SEARCH

_TEXT_FIELDS: dict[type, str] = {
    FunctionCall: "arguments",
    CustomToolCall: "input",
    McpCall: "arguments",
    CodeInterpreterCall: "code",
}
"""Field of a call that is the text of its deltas."""


def failure_events(events: Sequence[Event], *, code: str, message: str) -> list[Event]:
    """Returns the missing events; none if the terminal event was emitted.

    `events` is a stream of this server from its first event on. It ends between two steps, since the events of a step
    are stored together or not at all. Raises `ValueError` if it is empty: a response that never began has no end.
    """
    if not events:
        raise ValueError("No events to recover from. Pass the stream from its first event on.")
    if isinstance(events[-1], ev.Terminal):
        return []
    response = _build_failed_response(events, ResponseError(code=code, message=message))
    emitter = EventEmitter(len(events))
    if not isinstance(events[-1], ev.Error):
        emitter.emit_error(code, message)
    emitter.emit(ev.Failed, response=response)
    return emitter.collect_events()


def _build_failed_response(events: Sequence[Event], error: ResponseError) -> Response:
    snapshot = next(event.response for event in reversed(events) if isinstance(event, ev.LifecycleEvent))
    output: list[OutputItem] = []
    draft: _OpenItem | None = None
    for event in events:
        if isinstance(event, ev.ItemAdded):
            draft = _OpenItem(event.item)
        elif isinstance(event, ev.ItemDone):
            output.append(event.item)
            draft = None
        elif draft is not None:
            draft.add_event(event)
    if draft is not None:
        output.append(draft.freeze())
    return msgspec.structs.replace(snapshot, status="failed", error=error, output=tuple(output))


class _OpenItem:
    """The open item, rebuilt from its events."""

    def __init__(self, item: OutputItem) -> None:
        self._item = item
        self._text: list[str] = []
        self._commands: list[list[str]] = []
        self._summary: list[list[str]] = []
        self._parts: list[_OpenPart] = []

    def add_event(self, event: Event) -> None:
        """Applies one event of the item."""
        match event:
            case (
                ev.ArgumentsDelta()
                | ev.CustomInputDelta()
                | ev.PatchDiffDelta()
                | McpCallArgumentsDeltaEvent()
                | CodeInterpreterCallCodeDeltaEvent()
            ):
                self._text.append(event.delta)
            case ev.ShellCommandAdded():
                self._commands.append([])
            case ev.ShellCommandDelta():
                self._commands[-1].append(event.delta)
            case ev.SummaryPartAdded():
                self._summary.append([])
            case ev.SummaryDelta():
                self._summary[-1].append(event.delta)
            case ev.PartAdded():
                self._parts.append(_OpenPart(event.part))
            case ev.TextDelta() | ev.RefusalDelta() | ev.ReasoningDelta() | ev.AnnotationAdded():
                self._parts[-1].add_event(event)
            case _:
                pass  # the `done` events of parts repeat the text of the deltas

    def freeze(self) -> OutputItem:
        """Returns the item with the text emitted so far and status `incomplete`, except for a patch."""
        match item := self._item:
            case Message():
                return msgspec.structs.replace(
                    item, status="incomplete", content=tuple(part.build_content() for part in self._parts)
                )
            case Reasoning():
                summary = tuple(SummaryText(text="".join(text)) for text in self._summary)
                raw = {"content": tuple(part.build_content() for part in self._parts)} if self._parts else {}
                return msgspec.structs.replace(item, status="incomplete", summary=summary, **raw)
            case FunctionCall() | CustomToolCall() | McpCall() | CodeInterpreterCall():
                text = {_TEXT_FIELDS[type(item)]: "".join(self._text)}
                return msgspec.structs.replace(item, status="incomplete", **text)
            case ShellCall():
                commands = tuple("".join(command) for command in self._commands)
                action = msgspec.structs.replace(item.action, commands=commands)
                return msgspec.structs.replace(item, status="incomplete", action=action)
            case WebSearchCall():
                return msgspec.structs.replace(item, status="incomplete", action=UNKNOWN_SEARCH)
            case LocalShellCall() | ToolSearchCall() | FileSearchCall():
                return msgspec.structs.replace(item, status="incomplete")
            case ApplyPatchCall(operation=operation) if not isinstance(operation, DeleteFile):
                operation = msgspec.structs.replace(operation, diff="".join(self._text))
                return msgspec.structs.replace(item, operation=operation)
            case _:
                return item


class _OpenPart:
    """A content part of the open item, rebuilt from its events."""

    def __init__(self, empty: OutputText | Refusal | ReasoningText | SummaryText) -> None:
        self._empty = empty
        self._text: list[str] = []
        self._logprobs: list[Logprob] = []
        self._annotations: list[object] = []

    def add_event(self, event: ev.TextDelta | ev.RefusalDelta | ev.ReasoningDelta | ev.AnnotationAdded) -> None:
        if isinstance(event, ev.AnnotationAdded):
            self._annotations.append(event.annotation)
            return
        self._text.append(event.delta)
        if isinstance(event, ev.TextDelta):
            self._logprobs.extend(event.logprobs)

    def build_content(self) -> OutputText | Refusal | ReasoningText | SummaryText:
        text = "".join(self._text)
        if isinstance(self._empty, Refusal):
            return Refusal(refusal=text)
        if isinstance(self._empty, OutputText):
            fields = {"annotations": tuple(self._annotations), "logprobs": tuple(self._logprobs)}
            return msgspec.structs.replace(self._empty, text=text, **fields)
        return msgspec.structs.replace(self._empty, text=text)
