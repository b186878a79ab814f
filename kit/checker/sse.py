"""Server-sent events, read from bytes as they arrive."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.kit.findings import FindingList, quote

END_MARKER = "[DONE]"


class Frame(msgspec.Struct, frozen=True):
    """An event on the wire: its `event:` field, if any, and its joined `data:` lines."""

    name: str | None
    data: str


class SseReader:
    r"""Splits a stream into frames, whatever the sizes of its reads. Comments are skipped.

    Example: `list(SseReader(findings).feed(b'event: a\ndata: {}\n\n'))` is `[Frame("a", "{}")]`.
    """

    def __init__(self, findings: FindingList) -> None:
        self._findings = findings
        self._buffer = b""
        self._name: str | None = None
        self._data: list[str] = []
        self._is_first = True

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete with these bytes."""
        self._buffer += data
        if self._is_first and self._buffer:
            self._is_first = False
            if self._buffer.startswith(b"\xef\xbb\xbf"):
                self._findings.add("sse-byte-order-mark", "no byte order mark", "a byte order mark")
                self._buffer = self._buffer[3:]
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if line.endswith(b"\r"):
                self._findings.add("sse-line-end", "lines that end with LF", "a line that ends with CR LF")
                line = line[:-1]  # noqa: PLW2901
            frame = self._read_line(line)
            if frame is not None:
                yield frame

    def finish(self) -> None:
        """Reports a frame that was cut off."""
        if self._buffer or self._data:
            self._findings.add(
                "sse-cut-frame", "an empty line after the last frame", "the end of the stream inside a frame"
            )

    def _read_line(self, line: bytes) -> Frame | None:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self._findings.add("sse-not-utf8", "UTF-8", quote(line.decode(errors="replace")))
            text = line.decode(errors="replace")
        if not text:
            return self._end_frame()
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            if self._name not in (None, value):
                self._findings.add("sse-event-name", f"one event field, {self._name}", f"another one, {value}")
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field in ("id", "retry"):
            self._findings.add("sse-field", "the fields event and data", f"the field {field}")
        elif field:
            self._findings.add("sse-unknown-field", "the fields event and data", f"the line {quote(text)}")
        return None

    def _end_frame(self) -> Frame | None:
        name, data = self._name, self._data
        self._name, self._data = None, []
        if not data:
            if name is not None:
                self._findings.add("sse-no-data", "a data line in every frame", f"the event {name} without one")
            return None
        if len(data) > 1:
            self._findings.add("sse-data-lines", "one data line", f"{len(data)} data lines")
        return Frame(name, "\n".join(data))


def read_json(data: str, findings: FindingList) -> dict[str, Any] | None:
    """Returns the object in the data of a frame, or None if it is none, which is reported."""
    repeated: list[str] = []

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            repeated.extend(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        return built

    try:
        value = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=build_object)
    except (ValueError, RecursionError):
        findings.add("data-not-json", "a JSON object", quote(data))
        return None
    if repeated:
        findings.add("data-key-repeated", "each key once", f"{repeated[0]} again", repeated[0])
    if not isinstance(value, dict):
        findings.add("data-not-object", "a JSON object", quote(data))
        return None
    return value


def _refuse_constant(name: str) -> None:
    """Raises for NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)
