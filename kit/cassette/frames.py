"""The form of a stream's frames in a cassette."""

import base64
from typing import Any

import msgspec


def describe_frame(frame: bytes) -> dict[str, str]:
    """Returns the keys that stand for a frame in a cassette. `build_frame` makes the same bytes of them.

    `data` alone is a frame whose event field is the type in the data, as Responses streams have it, or that has no
    event field and no type in the data, as chat streams have it. Other names are in `event`, "" for none. What was
    written in another way, such as with other line ends, is the text in `raw`, or `base64` if it is no UTF-8.
    """
    try:
        text = frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}
    lines = text.removesuffix("\n\n").split("\n")
    keys: dict[str, str] = {"raw": text}
    if len(lines) == 1 and lines[0].startswith(": "):
        keys = {"comment": lines[0].removeprefix(": ")}
    elif lines[-1].startswith("data: ") and len(lines) <= 2:
        data = lines[-1].removeprefix("data: ")
        name = lines[0].removeprefix("event: ") if len(lines) == 2 else ""
        keys = {"data": data} if name == _find_type(data) else {"event": name, "data": data}
    return keys if build_frame(keys) == frame else {"raw": text}


def build_frame(keys: dict[str, Any]) -> bytes:
    """Returns the bytes of a frame."""
    if "base64" in keys:
        return base64.b64decode(keys["base64"])
    if "raw" in keys:
        return str(keys["raw"]).encode()
    if "comment" in keys:
        return f": {keys['comment']}\n\n".encode()
    data = str(keys["data"])
    name = keys["event"] if "event" in keys else _find_type(data)
    head = f"event: {name}\n" if name else ""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"{head}{lines}\n".encode()


def _find_type(data: str) -> str:
    """Returns the type of the event in the data, "" if it has none."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError):
        return ""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""
