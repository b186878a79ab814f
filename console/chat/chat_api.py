"""A conversation over the chat completions API."""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import ClassVar

from antiphon.console.chat.pieces import ChatSettings, PendingCall, ReplyPiece, show_call
from antiphon.console.client import Json, ReplyFailedError, describe_error
from antiphon.kit.checker.schema import as_objects, as_table, as_text

REASONING_KEYS = ("reasoning_content", "reasoning")
"""Names of reasoning in the deltas of different servers."""


class ChatCompletionsApi:
    """The messages of a conversation."""

    path: ClassVar[str] = "/chat/completions"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.items: list[Json] = []

    def add_text(self, text: str) -> None:
        """Adds a message of the user."""
        self.items.append({"role": "user", "content": text})

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds a message for each output."""
        self.items += [{"role": "tool", "tool_call_id": call.call_id, "content": output} for call, output in outputs]

    def build_body(self, settings: ChatSettings) -> Json:
        """Returns the body. The instructions are a system message."""
        system = [] if settings.instructions is None else [{"role": "system", "content": settings.instructions}]
        body: Json = {"model": settings.model, "messages": [*system, *self.items], "stream": True}
        if settings.effort is not None:
            body["reasoning_effort"] = settings.effort
        if settings.tools:
            body["tools"] = [_convert_tool(tool) for tool in settings.tools]
        if settings.max_output_tokens is not None:
            body["max_completion_tokens"] = settings.max_output_tokens
        return body

    def open_reply(self) -> "ChatReply":
        """Returns a reader of the reply."""
        return ChatReply()


def _convert_tool(tool: Json) -> Json:
    """Returns a tool in the form of this API: the fields are in an object under the type."""
    kind = tool["type"]
    return {"type": kind, kind: {key: value for key, value in tool.items() if key != "type"}}


class ChatReply:
    """Reads the chunks of one completion: of its first choice."""

    def __init__(self) -> None:
        self.answer, self.ending = StringIO(), ""
        self.calls: list[PendingCall] = []
        self._reasoning: dict[str, StringIO] = {}
        self._fragments: dict[int, Json] = {}
        self._finish_reason: str | None = None

    def read_event(self, event: Json) -> Iterator[ReplyPiece]:
        """Yields the texts of a chunk."""
        if event.get("error") is not None:
            raise ReplyFailedError(describe_error(event))
        for choice in as_objects(event.get("choices"))[:1]:
            delta = as_table(choice.get("delta"))
            for key in REASONING_KEYS:
                if text := as_text(delta.get(key)):
                    self._reasoning.setdefault(key, StringIO()).write(text)
                    yield ReplyPiece("reasoning", text)
                    break  # some servers send it under both names
            for key in ("content", "refusal"):
                if text := as_text(delta.get(key)):
                    self.answer.write(text)
                    yield ReplyPiece("text", text)
            for fragment in as_objects(delta.get("tool_calls")):
                self._add_fragment(fragment)
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason

    def _add_fragment(self, fragment: Json) -> None:
        index = fragment.get("index")
        call = self._fragments.setdefault(
            index if isinstance(index, int) else len(self._fragments), {"arguments": StringIO()}
        )
        function = as_table(fragment.get("function"))
        custom = as_table(fragment.get("custom"))
        call["id"] = as_text(fragment.get("id")) or call.get("id", "")
        call["name"] = as_text(function.get("name")) or as_text(custom.get("name")) or call.get("name", "")
        call["arguments"].write(as_text(function.get("arguments")) + as_text(custom.get("input")))
        call["is_custom"] = call.get("is_custom", False) or bool(custom)

    def finish(self) -> Iterator[ReplyPiece]:
        """Yields the calls, which are whole only now. Raises `ReplyFailedError` without a finish reason."""
        if self._finish_reason is None:
            raise ReplyFailedError("the server closed the connection before the end of the reply")
        if self._finish_reason in ("length", "content_filter"):
            self.ending = self._finish_reason
            return
        for index in sorted(self._fragments):
            call = self._fragments[index]
            arguments = call["arguments"].getvalue()
            self.calls.append(
                PendingCall(call_id=call["id"], name=call["name"], arguments=arguments, is_custom=call["is_custom"])
            )
            yield show_call(self.calls[-1])

    def list_items(self) -> list[Json]:
        """Returns the assistant's message. It has reasoning only beside calls: between turns, servers may refuse it."""
        text = self.answer.getvalue()
        message: Json = {"role": "assistant", "content": text or None}
        if self.calls:
            message |= {key: reasoning.getvalue() for key, reasoning in self._reasoning.items()}
            message["tool_calls"] = [_format_call(call) for call in self.calls]
        return [message] if text or self.calls else []


def _format_call(call: PendingCall) -> Json:
    if call.is_custom:
        return {"id": call.call_id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
