"""A conversation over Anthropic's Messages API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import ClassVar

from antiphon.console.chat.pieces import ChatApi, ChatSettings, PendingCall, PieceKind, ReplyPiece, ReplyReader
from antiphon.console.client import ReplyFailedError, describe_error
from antiphon.kit.json_values import Json, as_table, as_text, decode_object

INPUT_KEY = "partial_json"
"""Key of the deltas that make up the input of a call, as JSON."""
DEFAULT_MESSAGE_TOKENS = 8192
"""Limit of a reply, which the API requires, if no option sets one."""
DELTA_KEYS: dict[str, tuple[str, PieceKind | None]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "reasoning"),
    "signature_delta": ("signature", None),
    "input_json_delta": (INPUT_KEY, None),
}
"""Kinds of deltas: the key of the block that they extend, and how they are shown."""
INCOMPLETE_STOP_REASONS = ("max_tokens", "refusal", "model_context_window_exceeded", "pause_turn")
TOOL_KEYS = {"name": "name", "description": "description", "parameters": "input_schema", "strict": "strict"}


class MessagesReply(ReplyReader):
    """Reads the events of one message."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, Json] = {}
        self._texts: dict[tuple[int, str], StringIO] = {}
        """The text that deltas have added, by the index of the block and the key."""

    def read_event(self, event: Json) -> Iterator[ReplyPiece]:
        """Yields deltas, whole calls, and a note for each block of another kind."""
        kind, index = as_text(event.get("type")), _as_index(event.get("index"))
        if kind == "content_block_start":
            self._blocks[index] = dict(as_table(event.get("content_block")))
            yield ReplyPiece("break")
        elif kind == "content_block_delta":
            yield from self._add_delta(index, as_table(event.get("delta")))
        elif kind == "content_block_stop":
            yield from self._end_block(index)
        elif kind == "message_delta":
            reason = as_text(as_table(event.get("delta")).get("stop_reason"))
            self.ending = reason if reason in INCOMPLETE_STOP_REASONS else self.ending
        elif kind == "message_stop":
            self.has_ended = True
        elif kind == "error":
            raise ReplyFailedError(describe_error(event))

    def _add_delta(self, index: int, delta: Json) -> Iterator[ReplyPiece]:
        kind = as_text(delta.get("type"))
        if kind not in DELTA_KEYS:
            return
        key, shown_as = DELTA_KEYS[kind]
        text = as_text(delta.get(key))
        self._texts.setdefault((index, key), StringIO()).write(text)
        if shown_as is not None:
            yield self._show_delta(shown_as, text)

    def _end_block(self, index: int) -> Iterator[ReplyPiece]:
        block = self._blocks.get(index, {})
        kind = as_text(block.get("type"))
        for key in ("text", "thinking", "signature"):
            if added := self._take_text(index, key):
                block[key] = as_text(block.get(key)) + added
        if written := self._take_text(index, INPUT_KEY):
            block["input"] = decode_object(written) or {}  # one that is no object cannot be sent back
        if kind == "tool_use":
            call_id, name = as_text(block.get("id")), as_text(block.get("name"))
            arguments = written or json.dumps(block.get("input", {}), ensure_ascii=False)
            yield self._add_call(call_id, name, arguments)
        elif kind not in ("text", "thinking"):
            yield ReplyPiece("note", " ".join(filter(None, (kind, as_text(block.get("name"))))))

    def _take_text(self, index: int, key: str) -> str:
        """Returns what deltas have added to a key, once."""
        added = self._texts.pop((index, key), None)
        return "" if added is None else added.getvalue()

    def list_items(self) -> list[Json]:
        """Returns the assistant's message."""
        return [{"role": "assistant", "content": list(self._blocks.values())}] if self._blocks else []


def _as_index(value: object) -> int:
    return value if isinstance(value, int) else -1


class MessagesApi(ChatApi):
    """The messages of a conversation."""

    path = "/messages"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    open_reply = MessagesReply

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds one message with all outputs."""
        blocks = [{"type": "tool_result", "tool_use_id": call.call_id, "content": output} for call, output in outputs]
        self.items.append({"role": "user", "content": blocks})

    def _list_fields(self, settings: ChatSettings) -> Json:
        return {
            "messages": self.items,
            "max_tokens": settings.max_output_tokens or DEFAULT_MESSAGE_TOKENS,
            "system": settings.instructions,
            "output_config": None if settings.effort is None else {"effort": settings.effort},
            "tools": [_convert_tool(tool) for tool in settings.tools] or None,
        }


def _convert_tool(tool: Json) -> Json:
    """Returns a function in the form of this API."""
    converted = {ours: tool[key] for key, ours in TOOL_KEYS.items() if tool.get(key) is not None}
    return {"input_schema": {"type": "object"}} | converted
