"""A conversation over the chat completions API."""

from collections.abc import Iterator, Sequence
from io import StringIO

from antiphon.console.chat.pieces import ChatApi, ChatSettings, PendingCall, ReplyPiece, ReplyReader
from antiphon.console.client import ReplyFailedError, describe_error
from antiphon.kit.json_values import Json, as_objects, as_table, as_text

REASONING_KEYS = ("reasoning_content", "reasoning")
"""Names of reasoning in the deltas of different servers."""
INCOMPLETE_FINISH_REASONS = ("length", "content_filter")


class ChatReply(ReplyReader):
    """Reads the chunks of one completion: of its first choice."""

    def __init__(self) -> None:
        super().__init__()
        self._reasoning: dict[str, StringIO] = {}
        self._fragments: dict[int, Json] = {}

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
                    yield self._show_delta("text", text)
            for fragment in as_objects(delta.get("tool_calls")):
                self._add_fragment(fragment)
            if reason := as_text(choice.get("finish_reason")):
                self.has_ended, self.ending = True, reason if reason in INCOMPLETE_FINISH_REASONS else ""

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
        """Yields the calls, which are whole only now."""
        yield from super().finish()
        for index in () if self.ending else sorted(self._fragments):
            call = self._fragments[index]
            yield self._add_call(call["id"], call["name"], call["arguments"].getvalue(), is_custom=call["is_custom"])

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


class ChatCompletionsApi(ChatApi):
    """The messages of a conversation."""

    path = "/chat/completions"
    open_reply = ChatReply

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds a message for each output."""
        self.items += [{"role": "tool", "tool_call_id": call.call_id, "content": output} for call, output in outputs]

    def _list_fields(self, settings: ChatSettings) -> Json:
        """The instructions are a system message."""
        system = [] if settings.instructions is None else [{"role": "system", "content": settings.instructions}]
        return {
            "messages": [*system, *self.items],
            "reasoning_effort": settings.effort,
            "tools": [_convert_tool(tool) for tool in settings.tools] or None,
            "max_completion_tokens": settings.max_output_tokens,
        }


def _convert_tool(tool: Json) -> Json:
    """Returns a tool in the form of this API: the fields are in an object under the type."""
    kind = tool["type"]
    return {"type": kind, kind: {key: value for key, value in tool.items() if key != "type"}}
