"""Fold of one response's events, one by one, into the deltas of a chat message. Pure: it uses no log and no socket.

A complete reply is the sum of the deltas, so a streamed reply and a complete one cannot differ.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from antiphon.app.projections.chat.executed_tools import build_executed_tool
from antiphon.app.projections.chat.schema import (
    CallFragment,
    ChatAnnotation,
    ChatChoice,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatReplyMessage,
    ChatUrlCitation,
    ChunkChoice,
    CustomFragment,
    FunctionFragment,
)
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.hosted import CodeInterpreterCall, FileSearchCall, McpCall, WebSearchCall
from antiphon.events.items import CustomToolCall, FunctionCall, Logprob, UrlCitation
from antiphon.events.response import Response

ReasoningField = Literal["reasoning_content", "reasoning"]
MESSAGE_SEPARATOR = "\n\n"
"""Separator of messages. A chat message is one text, so two messages of the model become two paragraphs."""


class ChatFold:
    """Fold of one choice. `feed_event` returns the delta of an event; `terminal` is the response once it has ended.

    `as_function_call`: the call has the deprecated form, since the request has `functions` instead of `tools`.
    `reasoning_field`: name of the field for reasoning. `num_echoed`: number of characters before those of the model.
    """

    def __init__(
        self,
        *,
        as_function_call: bool = False,
        reasoning_field: ReasoningField = "reasoning_content",
        num_echoed: int = 0,
    ) -> None:
        self._as_function_call, self._reasoning_field = as_function_call, reasoning_field
        self.terminal: Response | None = None
        self._calls: dict[str, int] = {}
        self._message: str | None = None
        self._num_executed, self._num_chars = 0, num_echoed
        self._part: tuple[str, int] | None = None
        """The text part that was appended to last; its offset in the content is `_part_start`."""
        self._part_start = 0
        self._reasoning: dict[str, type[Event]] = {}

    def feed_event(self, event: Event) -> tuple[ChatDelta, tuple[Logprob, ...]] | None:
        """Returns what an event adds to the message, with the log probabilities of its text; None if nothing."""
        match event:
            case ev.TextDelta(delta=text, logprobs=logprobs):
                return ChatDelta(content=self._add_text(event, text)), logprobs
            case ev.RefusalDelta(delta=text):
                return ChatDelta(refusal=text), ()
            case ev.ReasoningDelta(delta=text) | ev.SummaryDelta(delta=text):
                return self._reasoning_delta(event.item_id, type(event), text)
            case ev.ItemAdded(item=FunctionCall() | CustomToolCall() as call):
                return self._call_delta(self._begin_call(call)), ()
            case ev.ArgumentsDelta(delta=text):
                part = CallFragment(index=self._calls[event.item_id], function=FunctionFragment(arguments=text))
                return self._call_delta(part), ()
            case ev.CustomInputDelta(delta=text):
                part = CallFragment(index=self._calls[event.item_id], custom=CustomFragment(input=text))
                return ChatDelta(tool_calls=(part,)), ()
            case ev.ItemDone() | ev.AnnotationAdded():
                delta = self._hosted_delta(event)
                return None if delta is None else (delta, ())
            case ev.Completed() | ev.Incomplete() | ev.Failed():
                self.terminal = event.response
        return None

    @property
    def finish_reason(self) -> ChatFinishReason:
        """Finish reason in terms of chat completions."""
        response = self.terminal
        if response and response.incomplete_details and response.incomplete_details.reason:
            return "content_filter" if response.incomplete_details.reason == "content_filter" else "length"
        if response and response.status == "cancelled":
            return "length"  # the only reason that means truncated: no client may run a partial call
        if not self._calls:
            return "stop"
        return "function_call" if self._as_function_call else "tool_calls"

    def _call_delta(self, fragment: CallFragment) -> ChatDelta:
        if self._as_function_call:
            return ChatDelta(function_call=fragment.function)
        return ChatDelta(tool_calls=(fragment,))

    def _hosted_delta(self, event: ev.ItemDone | ev.AnnotationAdded) -> ChatDelta | None:
        """Returns the delta of a call that the server ran, or of a source that it found; None for another event."""
        match event:
            case ev.ItemDone(item=McpCall() | WebSearchCall() | CodeInterpreterCall() | FileSearchCall() as call):
                self._num_executed += 1
                return ChatDelta(executed_tools=(build_executed_tool(call, self._num_executed - 1),))
            case ev.AnnotationAdded(annotation=UrlCitation() as citation):
                return ChatDelta(annotations=(self._place_citation(citation),))
        return None

    def _add_text(self, event: ev.TextDelta, text: str) -> str:
        """Returns the text with the separator before it, if it needs one."""
        added = self._separator_before(event.item_id) + text
        part = event.item_id, event.content_index
        if part != self._part:
            self._part, self._part_start = part, self._num_chars + len(added) - len(text)
        self._num_chars += len(added)
        return added

    def _place_citation(self, citation: UrlCitation) -> ChatAnnotation:
        """Returns a citation of the part that was appended to last. Its offsets are those of the whole content."""
        start = self._part_start
        return ChatAnnotation(
            url_citation=ChatUrlCitation(
                url=citation.url,
                title=citation.title,
                start_index=start + citation.start_index,
                end_index=start + citation.end_index,
            )
        )

    def _separator_before(self, item_id: str) -> str:
        """Returns the separator if the text starts another message, else an empty string."""
        if item_id == self._message:
            return ""
        is_first, self._message = self._message is None, item_id
        return "" if is_first else MESSAGE_SEPARATOR

    def _reasoning_delta(
        self, item_id: str, event_type: type[Event], text: str
    ) -> tuple[ChatDelta, tuple[Logprob, ...]] | None:
        """Returns the delta of reasoning. If an item has it raw and as a summary, the later kind is left out."""
        if self._reasoning.setdefault(item_id, event_type) is not event_type:
            return None
        if self._reasoning_field == "reasoning":
            return ChatDelta(reasoning=text), ()
        return ChatDelta(reasoning_content=text), ()

    def _begin_call(self, call: FunctionCall | CustomToolCall) -> CallFragment:
        index = self._calls[call.id] = len(self._calls)
        if isinstance(call, CustomToolCall):
            custom = CustomFragment(name=call.name, input="")
            return CallFragment(index=index, id=call.call_id, type="custom", custom=custom)
        function = FunctionFragment(name=call.name, arguments="")
        return CallFragment(index=index, id=call.call_id, type="function", function=function)


def join_parts(parts: Sequence[ChunkChoice], index: int, *, logprobs: bool, token_ids: bool = False) -> ChatChoice:
    """Returns the sum of a choice's parts. `logprobs` and `token_ids` are true if the client requested them."""
    deltas, ending = [part.delta for part in parts], parts[-1]
    entries = (entry for part in parts if part.logprobs is not None for entry in part.logprobs.content or ())
    message = ChatReplyMessage(
        content=_join_texts(delta.content for delta in deltas) or None,
        refusal=_join_texts(delta.refusal for delta in deltas) or None,
        reasoning=_join_texts(delta.reasoning for delta in deltas) or UNSET,
        reasoning_content=_join_texts(delta.reasoning_content for delta in deltas) or UNSET,
        tool_calls=_join_calls(fragment for delta in deltas for fragment in delta.tool_calls or ()) or UNSET,
        function_call=_join_fragments([delta.function_call for delta in deltas if delta.function_call is not UNSET]),
        executed_tools=tuple(tool for delta in deltas for tool in delta.executed_tools or ()) or UNSET,
        annotations=tuple(annotation for delta in deltas for annotation in delta.annotations or ()),
    )
    return ChatChoice(
        index=index,
        message=message,
        logprobs=ChatLogprobs(content=tuple(entries)) if logprobs else None,
        finish_reason=ending.finish_reason or "stop",
        stop_reason=None if ending.stop_reason is UNSET else ending.stop_reason,
        token_ids=tuple(token for part in parts for token in part.token_ids or ()) if token_ids else UNSET,
    )


def _join_texts(texts: Iterable[str | None | UnsetType]) -> str:
    return "".join(text or "" for text in texts)


def _join_calls(fragments: Iterable[CallFragment]) -> tuple[CallFragment, ...]:
    """Returns whole calls. The first fragment of each has its id; the others have its index."""
    calls: list[tuple[CallFragment, list[str]]] = []
    for fragment in fragments:
        if fragment.id is not UNSET:
            calls.append((fragment, []))
        elif fragment.function is not UNSET:
            calls[fragment.index or 0][1].append(fragment.function.arguments or "")
        elif fragment.custom is not UNSET:
            calls[fragment.index or 0][1].append(fragment.custom.input or "")
    return tuple(_joined_call(first, "".join(texts)) for first, texts in calls)


def _join_fragments(fragments: list[FunctionFragment]) -> FunctionFragment | UnsetType:
    """Returns the sum of a call's fragments, of which the first has the name; `UNSET` if there is none."""
    if not fragments:
        return UNSET
    return FunctionFragment(name=fragments[0].name, arguments=_join_texts(part.arguments for part in fragments))


def _joined_call(first: CallFragment, text: str) -> CallFragment:
    if first.custom is not UNSET:
        return CallFragment(id=first.id, type=first.type, custom=CustomFragment(name=first.custom.name, input=text))
    name = first.function.name if first.function is not UNSET else UNSET
    return CallFragment(id=first.id, type=first.type, function=FunctionFragment(name=name, arguments=text))
