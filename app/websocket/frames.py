"""Frames of a WebSocket: requests of the client → what they ask for; errors of the server → frames."""

import re
import time
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, invalid_type, missing_field, unsupported_field

CREATE, STEER = "response.create", "response.steer"
STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class CreateFrame(Struct, frozen=True, kw_only=True):
    """A request for a response: the body of a POST, and the lane that runs it. None is the default lane."""

    body: dict[str, Any]
    stream_id: str | None
    is_prefill: bool
    """True if the turn only prefills the prompt for a later one."""
    num_bytes: int
    arrived: float = msgspec.field(default_factory=time.monotonic)
    """Time of the monotonic clock at which the frame was read."""


def read_stream_id(frame: dict[str, Any]) -> str | None:
    """Returns the `stream_id` of a frame. Raises `ApiError`, which belongs to no lane."""
    value = frame.get("stream_id")
    if value is None:
        return None
    if not isinstance(value, str) or not STREAM_ID.fullmatch(value):
        message = "Invalid 'stream_id': it must be a string of 1 to 256 letters, digits, '_', '.' and '-'."
        raise ApiError(400, "invalid_stream_id", message, "stream_id")
    return value


def read_create_frame(frame: dict[str, Any], stream_id: str | None, num_bytes: int) -> CreateFrame:
    """Reads a frame as a request for a response. Raises `ApiError`."""
    if frame.get("type") is None:
        raise missing_field("type")
    if frame["type"] != CREATE:
        message = f"Invalid value: '{clip_text(str(frame['type']))}'. Supported values are: '{CREATE}' and '{STEER}'."
        raise ApiError(400, "invalid_value", message, "type")
    if not isinstance(frame.get("generate", True), bool):
        raise invalid_type("generate", "a boolean", frame["generate"])
    if frame.get("background"):
        raise unsupported_field(
            "background", "Background responses are not supported over WebSocket. Use POST /v1/responses."
        )
    if frame.get("stream", True) is not True:
        raise unsupported_field("stream", "Responses over WebSocket are always streamed.")
    body = {key: value for key, value in frame.items() if key not in ("type", "stream_id", "generate")}
    return CreateFrame(
        body={**body, "stream": True},
        stream_id=stream_id,
        is_prefill=frame.get("generate", True) is False,
        num_bytes=num_bytes,
    )


def write_error(error: ApiError, stream_id: str | None) -> str:
    """Returns the frame of an error of a request, which names its lane."""
    fields = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    event: dict[str, Any] = {"type": "error", "status": int(error.status)}
    if stream_id is not None:
        event["stream_id"] = stream_id
    event["error"] = fields
    if error.headers:
        event["headers"] = dict(error.headers)
    return msgspec.json.encode(event).decode()


def write_event(data: bytes, lane_suffix: bytes) -> str:
    """Returns the frame of an event, whose JSON is `data`."""
    return (data[:-1] + lane_suffix if lane_suffix else data).decode()


def lane_suffix(stream_id: str | None) -> bytes:
    """Returns what ends the JSON of each event of a lane; nothing for the default lane."""
    return b"" if stream_id is None else b',"stream_id":"%b"}' % stream_id.encode()
