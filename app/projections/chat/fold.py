"""Fold of one response's events, one by one, into the deltas of a chat message. Pure: it uses no log and no socket.

A complete reply is the sum of the deltas, so a streamed reply and a complete one cannot differ.
"""

from typing import Literal

from msgspec import UNSET, UnsetType

from antiphon.app.projections.chat.schema import (
    CallFragment,
    ChatChoice,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatReplyMessage,
    ChunkChoice,
    CustomFragment,
    FunctionFragment,
)
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import CustomToolCall, FunctionCall, Logprob
from antiphon.events.response import Response

ReasoningField = Literal["reasoning_content", "reasoning"]
MESSAGE_SEPARATOR = "\n\n"
"""Separator of messages. A chat message is one text, so two messages of the model become two paragraphs."""


class ChatFold:
    """Fold of one choice. `feed_event` returns the delta of an event; `terminal` is the response once it has ended.

    `as_function_call`: the call has the deprecated form, since the request has `functions` instead of `tools`.
    `reasoning_field`: name of the field for reasoning.
    """

    def __init__(
        self, *, as_function_call: bool = False, reasoning_field: ReasoningField = "reasoning_content"
    ) -> None:
        self._as_function_call, self._reasoning_field = as_function_call, reasoning_field
        self.terminal: Response | None = None
        self._calls: dict[str, int] = {}
        self._message: str | None = None
        self._reasoning: dict[str, type[Event]] = {}

    def feed_event(self, event: Event) -> tuple[ChatDelta, tuple[Logprob, ...]] | None:
        """Returns what an event adds to the message, with the log probabilities of its text; None if nothing."""
        match event:
            case ev.TextDelta(delta=text, logprobs=logprobs):
                return ChatDelta(content=self._separator_before(event.item_id) + text), logprobs
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


class ChatAccumulator:
    """Sum of the parts of one choice."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_content: list[str] = []
        self._logprobs: list[Logprob] = []
        self._calls: list[tuple[CallFragment, list[str]]] = []
        self._function_call: list[FunctionFragment] = []
        self._token_ids: list[int] = []
        self._stop_reason: int | str | None = None
        self._finish_reason: ChatFinishReason = "stop"

    def add_part(self, part: ChunkChoice) -> None:
        """Adds a part. The last one has the finish reason."""
        delta = part.delta
        self._token_ids.extend(part.token_ids or ())
        if part.finish_reason is not None:
            self._finish_reason = part.finish_reason
            self._stop_reason = None if part.stop_reason is UNSET else part.stop_reason
        self._content.append(delta.content or "")
        self._refusal.append(delta.refusal or "")
        self._reasoning.append(delta.reasoning or "")
        self._reasoning_content.append(delta.reasoning_content or "")
        if part.logprobs is not None:
            self._logprobs.extend(part.logprobs.content or ())
        if delta.function_call is not UNSET:
            self._function_call.append(delta.function_call)
        for fragment in delta.tool_calls or ():
            if fragment.id is not UNSET:
                self._calls.append((fragment, []))
            elif fragment.function is not UNSET:
                self._calls[fragment.index or 0][1].append(fragment.function.arguments or "")
            elif fragment.custom is not UNSET:
                self._calls[fragment.index or 0][1].append(fragment.custom.input or "")

    def build_choice(self, index: int, *, logprobs: bool, token_ids: bool = False) -> ChatChoice:
        """Returns the complete choice. `logprobs` and `token_ids` are true if the client requested them."""
        message = ChatReplyMessage(
            content="".join(self._content) or None,
            refusal="".join(self._refusal) or None,
            reasoning="".join(self._reasoning) or UNSET,
            reasoning_content="".join(self._reasoning_content) or UNSET,
            tool_calls=tuple(_joined_call(first, "".join(texts)) for first, texts in self._calls) or UNSET,
            function_call=_join_fragments(self._function_call),
        )
        chat_logprobs = ChatLogprobs(content=tuple(self._logprobs)) if logprobs else None
        return ChatChoice(
            index=index,
            message=message,
            logprobs=chat_logprobs,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            token_ids=tuple(self._token_ids) if token_ids else UNSET,
        )


def _join_fragments(fragments: list[FunctionFragment]) -> FunctionFragment | UnsetType:
    """Returns the sum of a call's fragments, of which the first has the name; `UNSET` if there is none."""
    if not fragments:
        return UNSET
    return FunctionFragment(name=fragments[0].name, arguments="".join(part.arguments or "" for part in fragments))


def _joined_call(first: CallFragment, text: str) -> CallFragment:
    if first.custom is not UNSET:
        return CallFragment(id=first.id, type=first.type, custom=CustomFragment(name=first.custom.name, input=text))
    name = first.function.name if first.function is not UNSET else UNSET
    return CallFragment(id=first.id, type=first.type, function=FunctionFragment(name=name, arguments=text))
