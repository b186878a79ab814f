"""A conversation over the Responses API. Nothing is stored: each request has all items."""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import ClassVar

from antiphon.console.chat.pieces import ChatSettings, PendingCall, PieceKind, ReplyPiece, show_call
from antiphon.console.client import Json, ReplyFailedError, describe_error
from antiphon.kit.checker.schema import as_objects, as_table, as_text

DELTA_KINDS: dict[str, PieceKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
CALL_TYPES = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that the user answers, and the key of what the model wrote."""
SHOWN_TYPES = ("message", "reasoning", *CALL_TYPES)
"""Items whose parts are shown; of others, the type and the status."""


class ResponsesApi:
    """The items of a conversation."""

    path: ClassVar[str] = "/responses"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.items: list[Json] = []

    def add_text(self, text: str) -> None:
        """Adds a message of the user."""
        self.items.append({"role": "user", "content": text})

    def add_outputs(self, outputs: Sequence[tuple[PendingCall, str]]) -> None:
        """Adds an item for each output."""
        for call, output in outputs:
            kind = "custom_tool_call_output" if call.is_custom else "function_call_output"
            self.items.append({"type": kind, "call_id": call.call_id, "output": output})

    def build_body(self, settings: ChatSettings) -> Json:
        """Returns the body, which asks for reasoning in a form that can be sent back."""
        body: Json = {
            "model": settings.model,
            "input": self.items,
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if settings.instructions is not None:
            body["instructions"] = settings.instructions
        if settings.effort is not None:
            body["reasoning"] = {"effort": settings.effort}
        if settings.tools:
            body["tools"] = list(settings.tools)
        if settings.max_output_tokens is not None:
            body["max_output_tokens"] = settings.max_output_tokens
        return body

    def open_reply(self) -> "ResponsesReply":
        """Returns a reader of the reply."""
        return ResponsesReply()


class ResponsesReply:
    """Reads the events of one response."""

    def __init__(self) -> None:
        self.answer, self.ending = StringIO(), ""
        self.calls: list[PendingCall] = []
        self._done_items: list[Json] = []
        self._response: Json | None = None

    def read_event(self, event: Json) -> Iterator[ReplyPiece]:
        """Yields deltas, whole calls, and a note for each item of another kind."""
        kind = as_text(event.get("type"))
        if kind in DELTA_KINDS:
            delta = as_text(event.get("delta"))
            self.answer.write(delta if DELTA_KINDS[kind] == "text" else "")
            yield ReplyPiece(DELTA_KINDS[kind], delta)
        elif kind in ("response.output_item.added", "response.reasoning_summary_part.added"):
            yield ReplyPiece("break")
        elif kind == "response.output_item.done":
            yield from self._read_item(as_table(event.get("item")))
        elif kind in ("response.completed", "response.incomplete"):
            self._response = as_table(event.get("response"))
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
        if kind in CALL_TYPES:
            names = [as_text(item.get(key)) for key in ("namespace", "name")]
            call = PendingCall(
                call_id=as_text(item.get("call_id")),
                name=".".join(filter(None, names)),
                arguments=as_text(item.get(CALL_TYPES[kind])),
                is_custom=kind == "custom_tool_call",
            )
            self.calls.append(call)
            yield show_call(call)
        elif kind not in SHOWN_TYPES:
            yield ReplyPiece("note", " ".join(filter(None, (kind, as_text(item.get("status"))))))

    def finish(self) -> Iterator[ReplyPiece]:
        """Yields nothing. Raises `ReplyFailedError` without a terminal event."""
        if self._response is None:
            raise ReplyFailedError("the server closed the connection before the end of the reply")
        yield from ()

    def list_items(self) -> list[Json]:
        """Returns the output of the response, else the items that were done."""
        return as_objects((self._response or {}).get("output")) or self._done_items
