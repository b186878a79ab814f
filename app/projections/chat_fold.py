"""The fold: one response's events, one by one, into the deltas of a chat message. Pure; knows no log and no socket.

A whole reply is the sum of the deltas, so a streamed and a whole reply cannot differ.
"""

from collections.abc import Iterable

from msgspec import UNSET

from antiphon.app.projections.chat_schema import (
    CallFragment,
    ChatChoice,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatReplyMessage,
    CustomFragment,
    FunctionFragment,
)
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import CustomToolCall, FunctionCall, Logprob
from antiphon.events.response import Response

MESSAGE_SEPARATOR = "\n\n"
"""A chat message is one text. Where the model wrote two messages, they stay two paragraphs."""


class ChatFold:
    """One choice. `feed` gives the deltas of an event; `terminal` is the response once it has ended."""

    def __init__(self) -> None:
        self.terminal: Response | None = None
        self._calls: dict[str, int] = {}
        self._message: str | None = None
        self._reasoning: dict[str, type[Event]] = {}

    def feed_event(self, event: Event) -> tuple[ChatDelta, tuple[Logprob, ...]] | None:
        """What the event adds to the message, with the log-probabilities of its text; None for nothing."""
        match event:
            case ev.TextDelta(delta=text, logprobs=logprobs):
                return ChatDelta(content=self._separator_before(event.item_id) + text), logprobs
            case ev.RefusalDelta(delta=text):
                return ChatDelta(refusal=text), ()
            case ev.ReasoningDelta(delta=text) | ev.SummaryDelta(delta=text):
                return self._reasoning_delta(event.item_id, type(event), text)
            case ev.ItemAdded(item=FunctionCall() | CustomToolCall() as call):
                return ChatDelta(tool_calls=(self._begin_call(call),)), ()
            case ev.ArgumentsDelta(delta=text):
                part = CallFragment(index=self._calls[event.item_id], function=FunctionFragment(arguments=text))
                return ChatDelta(tool_calls=(part,)), ()
            case ev.CustomInputDelta(delta=text):
                part = CallFragment(index=self._calls[event.item_id], custom=CustomFragment(input=text))
                return ChatDelta(tool_calls=(part,)), ()
            case ev.Completed() | ev.Incomplete() | ev.Failed():
                self.terminal = event.response
        return None

    @property
    def finish_reason(self) -> ChatFinishReason:
        """Why it ended, in chat's words."""
        response = self.terminal
        if response and response.incomplete_details and response.incomplete_details.reason:
            return "content_filter" if response.incomplete_details.reason == "content_filter" else "length"
        if response and response.status == "cancelled":
            return "length"  # the only word for what was cut short: half a call must not be taken for a whole one
        return "tool_calls" if self._calls else "stop"

    def _separator_before(self, item_id: str) -> str:
        """What goes before the first text of another message."""
        if item_id == self._message:
            return ""
        first, self._message = self._message is None, item_id
        return "" if first else MESSAGE_SEPARATOR

    def _reasoning_delta(
        self, item_id: str, told_as: type[Event], text: str
    ) -> tuple[ChatDelta, tuple[Logprob, ...]] | None:
        """Reasoning may be told twice, raw and as a summary; the first of the two is taken."""
        if self._reasoning.setdefault(item_id, told_as) is not told_as:
            return None
        return ChatDelta(reasoning=text, reasoning_content=text), ()

    def _begin_call(self, call: FunctionCall | CustomToolCall) -> CallFragment:
        index = self._calls[call.id] = len(self._calls)
        if isinstance(call, CustomToolCall):
            custom = CustomFragment(name=call.name, input="")
            return CallFragment(index=index, id=call.call_id, type="custom", custom=custom)
        function = FunctionFragment(name=call.name, arguments="")
        return CallFragment(index=index, id=call.call_id, type="function", function=function)


class ChatAccumulator:
    """Adds up deltas to a whole choice."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[Logprob] = []
        self._calls: list[tuple[CallFragment, list[str]]] = []

    def add_delta(self, delta: ChatDelta, logprobs: Iterable[Logprob]) -> None:
        """One delta more."""
        self._content.append(delta.content or "")
        self._refusal.append(delta.refusal or "")
        self._reasoning.append(delta.reasoning or "")
        self._logprobs.extend(logprobs)
        for fragment in delta.tool_calls or ():
            if fragment.id is not UNSET:
                self._calls.append((fragment, []))
            elif fragment.function is not UNSET:
                self._calls[fragment.index or 0][1].append(fragment.function.arguments or "")
            elif fragment.custom is not UNSET:
                self._calls[fragment.index or 0][1].append(fragment.custom.input or "")

    def build_choice(self, index: int, finish_reason: ChatFinishReason, *, logprobs: bool) -> ChatChoice:
        """The whole. `logprobs`: they were asked for."""
        reasoning = "".join(self._reasoning) or UNSET
        message = ChatReplyMessage(
            content="".join(self._content) or None,
            refusal="".join(self._refusal) or None,
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=tuple(_joined_call(first, "".join(rest)) for first, rest in self._calls) or UNSET,
        )
        scored = ChatLogprobs(content=tuple(self._logprobs)) if logprobs else None
        return ChatChoice(index=index, message=message, logprobs=scored, finish_reason=finish_reason)


def _joined_call(first: CallFragment, text: str) -> CallFragment:
    if first.custom is not UNSET:
        return CallFragment(id=first.id, type=first.type, custom=CustomFragment(name=first.custom.name, input=text))
    name = first.function.name if first.function is not UNSET else UNSET
    return CallFragment(id=first.id, type=first.type, function=FunctionFragment(name=name, arguments=text))
