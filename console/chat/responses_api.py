"""A conversation over the Responses API. Nothing is stored: each request has all items."""

from collections.abc import Iterator, Sequence

from antiphon.console.chat.pieces import ChatApi, ChatSettings, PendingCall, PieceKind, ReplyPiece, ReplyReader
from antiphon.console.client import ReplyFailedError, describe_error
from antiphon.kit.json_values import Json, as_objects, as_table, as_text

DELTA_KINDS: dict[str, PieceKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
CALL_TEXT_KEYS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that the user answers, and the key of what the model wrote."""
SHOWN_TYPES = ("message", "reasoning", *CALL_TEXT_KEYS)
"""Items whose parts are shown; of others, the type and the status."""


class ResponsesReply(ReplyReader):
    """Reads the events of one response."""

    def __init__(self) -> None:
        super().__init__()
        self._done_items: list[Json] = []
        self._response: Json = {}

    def read_event(self, event: Json) -> Iterator[ReplyPiece]:
        """Yields deltas, whole calls, and a note for each item of another kind."""
        kind = as_text(event.get("type"))
        if kind in DELTA_KINDS:
            yield self._show_delta(DELTA_KINDS[kind], as_text(event.get("delta")))
        elif kind in ("response.output_item.added", "response.reasoning_summary_part.added"):
            yield ReplyPiece("break")
        elif kind == "response.output_item.done":
            yield from self._read_item(as_table(event.get("item")))
        elif kind in ("response.completed", "response.incomplete"):
            self._response, self.has_ended = as_table(event.get("response")), True
            if kind == "response.incomplete":
                reason = as_table(self._response.get("incomplete_details")).get("reason")
                self.ending = as_text(reason) or "without a reason"
        elif kind == "response.failed":
            raise ReplyFailedError(describe_error(as_table(event.get("response"))))
        elif kind == "error":
            raise ReplyFailedError(describe_error(event))

    def _read_item(self, item: Json) -> Iterator[ReplyPiece]:
        kind = as_text(item.get("type"))
        self._done_items.append(item)
        if kind in CALL_TEXT_KEYS:
            names = [as_text(item.get(key)) for key in ("namespace", "name")]
            name, arguments = ".".join(filter(None, names)), as_text(item.get(CALL_TEXT_KEYS[kind]))
            yield self._add_call(as_text(item.get("call_id")), name, arguments, is_custom=kind == "custom_tool_call")
        elif kind not in SHOWN_TYPES:
            yield ReplyPiece("note", " ".join(filter(None, (kind, as_text(item.get("status"))))))

    def list_items(self) -> list[Json]:
        """Returns the output of the response, else the items that were done."""
        return as_objects(self._response.get("output")) or self._done_items


class ResponsesApi(ChatApi):
    """The items of a conversation."""

    path = "/responses"
    open_reply = ResponsesReply

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds an item for each output."""
        for call, output in outputs:
            kind = "custom_tool_call_output" if call.is_custom else "function_call_output"
            self.items.append({"type": kind, "call_id": call.call_id, "output": output})

    def _list_fields(self, settings: ChatSettings) -> Json:
        """The reply has reasoning in a form that can be sent back."""
        return {
            "input": self.items,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "instructions": settings.instructions,
            "reasoning": None if settings.effort is None else {"effort": settings.effort},
            "tools": list(settings.tools) or None,
            "max_output_tokens": settings.max_output_tokens,
        }
