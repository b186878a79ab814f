"""The end of a stream that fails: the error, and for the Responses API the failed response with its partial output."""

from antiphon.kit.faults.frames import DONE_FRAME, EventFrame, frame_json
from antiphon.kit.json_values import Json

_PAYLOADS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "code",
}
"""Field of an item that a delta extends, by the delta's type."""
_PART_FIELDS = {
    "response.output_text.delta": ("content", "text"),
    "response.refusal.delta": ("content", "refusal"),
    "response.reasoning_text.delta": ("content", "text"),
    "response.reasoning_summary_text.delta": ("summary", "text"),
}
"""List of parts and field of a part that a delta extends, by the delta's type."""


class FailureBuilder:
    """Follows a stream of any API, so that it can be ended as failed after any of its frames."""

    def __init__(self) -> None:
        self._response: Json = {}
        self._next_number = 0
        self._items: list[Json] = []
        self._is_open = False
        self._is_message = False
        self._is_chat = False

    def add_frame(self, frame: EventFrame) -> None:
        """Reads the next frame of the stream."""
        event = frame.event
        if event is None:
            return
        kind = frame.kind
        self._is_message |= kind == "message_start"
        self._is_chat |= "choices" in event
        number = event.get("sequence_number")
        if isinstance(number, int):
            self._next_number = number + 1
        if isinstance(event.get("response"), dict):
            self._response = event["response"]
        elif kind == "response.output_item.added":
            self._items.append(event["item"])
            self._is_open = True
        elif kind == "response.output_item.done":
            self._items = [*(self._items[:-1] if self._is_open else self._items), event["item"]]
            self._is_open = False
        elif self._is_open:
            _extend_item(self._items[-1], kind, event)

    def build_frames(self, code: str, message: str) -> list[bytes]:
        """Returns the frames that end the stream as failed."""
        if self._is_message:
            event = {"type": "error", "error": {"type": code, "message": message}}
            return [frame_json("error", event)]
        nested = {"type": "server_error", "code": code, "message": message, "param": None}
        if self._is_chat:
            return [frame_json(None, {"error": nested}), DONE_FRAME]
        if self._is_open and "status" in self._items[-1]:
            self._items[-1]["status"] = "incomplete"
        error = {
            "type": "error",
            "sequence_number": self._next_number,
            "error": nested,
            "code": code,
            "message": message,
            "param": None,
        }
        response = self._response | {
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": self._items,
        }
        failed = {"type": "response.failed", "sequence_number": self._next_number + 1, "response": response}
        return [frame_json("error", error), frame_json("response.failed", failed), DONE_FRAME]


def _extend_item(item: Json, kind: str, event: Json) -> None:
    """Adds what an event says to the item that is open."""
    if kind in _PAYLOADS:
        field = _PAYLOADS[kind]
        item[field] = (item.get(field) or "") + event.get("delta", "")
    elif kind in ("response.content_part.added", "response.content_part.done"):
        _put_part(item, "content", event.get("content_index"), event.get("part"))
    elif kind in ("response.reasoning_summary_part.added", "response.reasoning_summary_part.done"):
        _put_part(item, "summary", event.get("summary_index"), event.get("part"))
    elif kind in _PART_FIELDS:
        key, field = _PART_FIELDS[kind]
        parts = item.get(key) or []
        if parts:
            parts[-1][field] = parts[-1].get(field, "") + event.get("delta", "")


def _put_part(item: Json, key: str, index: object, part: object) -> None:
    parts = item[key] = item.get(key) or []
    if isinstance(index, int) and index < len(parts):
        parts[index] = part
    else:
        parts.append(part)
