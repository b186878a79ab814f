"""Streams of any source as a list of events: SDK objects, dicts, server-sent events, recorded files.

A stream is read once: a source that can be read only once, such as an iterator, is used up.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.kit.checker.lifecycle import TERMINAL_TYPES
from antiphon.kit.checker.sse import END_MARKER, SseReader
from antiphon.kit.findings import FindingList
from antiphon.kit.json_values import Json, decode_object
from antiphon.kit.snapshot.event_lines import UNREADABLE_TYPE
from antiphon.kit.snapshot.recorded_stream import read_streams

AGENTS_EVENT_TYPES = ("run_item_stream_event", "agent_updated_stream_event")
"""Events of openai-agents that it derives from the events of the API."""
SDK_KEYS = ("parsed", "parsed_arguments")
"""Keys that the stream helpers of the openai SDK add to items and parts."""


def read_events(source: object) -> list[Json]:
    """Returns the events of a stream, decoded. Raises `TypeError` for a source that holds none."""
    data = read_wire_bytes(source)
    if data is not None:
        return _parse_json(data) if data.lstrip()[:1] in (b"{", b"[") else parse_sse(data)
    if isinstance(source, Mapping) or _is_model(source):
        return _decode_all([source])
    if hasattr(source, "__aiter__") and not hasattr(source, "__iter__"):
        raise TypeError("the stream is asynchronous: pass [event async for event in stream]")
    if not isinstance(source, Iterable):
        raise TypeError(f"cannot read events from {type(source).__name__}: pass events, server-sent events or a Path")
    return _decode_all(source)


def read_wire_bytes(source: object) -> bytes | None:
    """Returns the bytes of a source that holds the reply as it came; None if it holds decoded events."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str):
        return source.encode("utf-8", "surrogatepass")
    if isinstance(source, os.PathLike):
        return _read_file(Path(source))
    content = getattr(source, "content", None)
    if isinstance(content, bytes):  # an HTTP reply, as httpx and requests have it
        return content
    if isinstance(source, list | tuple) and source and all(isinstance(piece, bytes) for piece in source):
        return b"".join(source)
    if isinstance(source, list | tuple) and source and all(isinstance(piece, str) for piece in source):
        separator = "" if any("\n" in piece for piece in source) else "\n"
        return (separator.join(source) + "\n").encode("utf-8", "surrogatepass")
    return None


def _read_file(path: Path) -> bytes:
    """Returns the content of a recorded file, or the one stream of a cassette."""
    if path.suffix != ".toml":
        return path.read_bytes()
    streams = read_streams(path)
    if len(streams) != 1:
        raise ValueError(f"{path.name} has {len(streams)} streams: pass one of antiphon.kit.testing.read_streams(path)")
    return streams[0]


def parse_sse(data: bytes) -> list[Json]:
    """Returns the events of a recorded stream. A frame without a JSON object, or cut off, is an unreadable event."""
    events = [
        _parse_frame(frame.data) for frame in SseReader(FindingList()).feed(data) if frame.data.strip() != END_MARKER
    ]
    last = data.replace(b"\r\n", b"\n").rpartition(b"\n\n")[2]
    cut = b"\n".join(line for line in last.splitlines() if line and not line.startswith(b":"))
    return [*events, {"type": UNREADABLE_TYPE, "data": cut.decode(errors="replace")}] if cut else events


def is_chat(events: Iterable[Json]) -> bool:
    """Returns whether the events are chat chunks."""
    return any("choices" in event or str(event.get("object")).startswith("chat.completion") for event in events)


def is_whole_response(event: Json) -> bool:
    """Returns whether this is no event but a response that was not streamed."""
    return event.get("object") == "response" and "type" not in event


def split_streams(events: Iterable[Json]) -> list[list[Json]]:
    """Returns one list for each response: an agent's stream holds those of several turns."""
    streams: list[list[Json]] = [[]]
    has_ended = False
    for event in events:
        if event.get("type") == "response.created" and has_ended:
            streams.append([])
            has_ended = False
        streams[-1].append(event)
        has_ended = has_ended or event.get("type") in TERMINAL_TYPES
    return streams


def _parse_frame(data: str) -> Json:
    value = decode_object(data)
    return {"type": UNREADABLE_TYPE, "data": data} if value is None else value


def _parse_json(data: bytes) -> list[Json]:
    """Returns the events of a JSON array, of one JSON object, or of an object a line."""
    try:
        value = json.loads(data)
    except ValueError:
        return [_parse_frame(line) for line in data.decode(errors="replace").splitlines() if line.strip()]
    return _decode_all(value if isinstance(value, list) else [value])


def _decode_all(values: Iterable[object]) -> list[Json]:
    return [event for value in values if (event := _decode_event(value)) is not None]


def _is_model(value: object) -> bool:
    return hasattr(value, "model_dump") or isinstance(value, msgspec.Struct)


def _decode_event(value: Any) -> Json | None:
    """Returns one event as a dict; None for an event that a framework derives from others."""
    if isinstance(value, Mapping):
        return dict(value)
    kind = getattr(value, "type", None)
    if kind == "raw_response_event":
        return _decode_event(value.data)
    if kind in AGENTS_EVENT_TYPES:
        return None
    if type(value).__module__.startswith("openai.lib.streaming.chat"):
        return _decode_event(value.chunk) if kind == "chunk" else None
    if isinstance(value, msgspec.Struct):
        return _drop_sdk_keys(msgspec.to_builtins(value))
    if hasattr(value, "model_dump"):
        # The openai SDK's own generic types do not match each other, and pydantic warns about it.
        return _drop_sdk_keys(value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
    raise TypeError(f"{type(value).__name__} is no event: pass dicts, objects of an SDK or server-sent events")


def _drop_sdk_keys(event: Any) -> Json:
    """Returns an event without the keys that the SDK adds."""
    event = {key: value for key, value in event.items() if key != "snapshot"}
    for key in ("item", "part", "response"):
        if isinstance(event.get(key), dict):
            event[key] = _drop_parsed(event[key])
    whole: Json = _drop_parsed(event)
    return whole


def _drop_parsed(value: Any) -> Any:
    """Drops the keys in an item, its parts, and the items of a response, but not inside what the client sent."""
    if not isinstance(value, dict):
        return value
    kept = {key: inside for key, inside in value.items() if key not in SDK_KEYS}
    for key in ("output", "content"):
        if isinstance(kept.get(key), list):
            kept[key] = [_drop_parsed(inside) for inside in kept[key]]
    return kept
