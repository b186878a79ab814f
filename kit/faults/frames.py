"""Frames of server-sent events, as faults see them: their bytes, their type, and the event in them."""

import re
from typing import Any

import msgspec

from antiphon.kit.line_ends import escape_line_separators

DONE_FRAME = b"data: [DONE]\n\n"
_FRAME_END = re.compile(rb"\r?\n\r?\n")
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
"""Keys of a chat delta that carry generated text."""


class EventFrame(msgspec.Struct, frozen=True):
    """One frame: its bytes, its `event:` field, and its data as an object if it is one."""

    raw: bytes
    name: str | None
    event: dict[str, Any] | None
    data: str

    @property
    def is_comment(self) -> bool:
        """True if the frame carries no data."""
        return not self.data and self.name is None

    @property
    def kind(self) -> str:
        """Type of the event: its own, that of the frame, the chunk's object, or `[DONE]`."""
        event = self.event or {}
        return str(event.get("type") or self.name or event.get("object") or self.data)

    @property
    def has_text(self) -> bool:
        """True if the event carries generated text."""
        event = self.event or {}
        kind = event.get("type")
        if isinstance(kind, str):
            return kind.endswith(".delta") or kind == "content_block_delta"
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or any(delta.get(key) for key in TEXT_KEYS):
                return True
        return False

    def replace_event(self, event: dict[str, Any]) -> bytes:
        """Returns the bytes of a frame with the same name and another event."""
        return frame_json(self.name, event)


def parse_frame(raw: bytes) -> EventFrame:
    """Reads one frame, with or without the empty line at its end."""
    name, data = None, []
    for line in raw.decode(errors="replace").replace("\r\n", "\n").split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    text = "\n".join(data)
    try:
        event = msgspec.json.decode(text)
    except msgspec.DecodeError:
        event = None
    return EventFrame(raw, name, event if isinstance(event, dict) else None, text)


def frame_json(name: str | None, value: object) -> bytes:
    """Returns a frame with this value as JSON."""
    data = escape_line_separators(msgspec.json.encode(value).decode()).encode()
    header = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (header, data)


def split_frames(data: bytes) -> list[bytes]:
    """Splits bytes after each empty line. What follows the last one, if anything, is the last piece."""
    frames, start = [], 0
    for end in _FRAME_END.finditer(data):
        frames.append(data[start : end.end()])
        start = end.end()
    return [*frames, data[start:]] if start < len(data) else frames


class FrameSplitter:
    """Splits a stream after each empty line, as its bytes come."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that are complete with these bytes."""
        frames = split_frames(self._buffer + data)
        self._buffer = frames.pop() if frames and _FRAME_END.search(frames[-1]) is None else b""
        return frames

    def take_rest(self) -> bytes:
        """Returns the bytes after the last frame."""
        rest, self._buffer = self._buffer, b""
        return rest
