"""Splits a stream of server-sent events into the payloads of its events."""

MAX_EVENT_BYTES = 1 << 20
"""Maximum size of an event."""


class OversizedEventError(ValueError):
    """An event is longer than its limit."""


class SseSplitter:
    """Takes the bytes of a body, however they are cut, and returns the `data` of each complete event.

    Line ends may be LF, CRLF or CR. Several `data` lines of an event are joined with LF; comments and other fields
    are ignored. `max_first_bytes`: maximum size of the first event with data. vLLM repeats the whole prompt in it.
    """

    def __init__(self, max_first_bytes: int = MAX_EVENT_BYTES) -> None:
        self._buffer = bytearray()
        self._searched = 0  # a blank line begins at this offset or later
        self._ends_with_cr = False
        self.max_bytes = max_first_bytes

    @property
    def num_buffered_bytes(self) -> int:
        """Bytes of the event that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the payloads that these bytes complete. Raises `OversizedEventError`."""
        if self._is_one_event(data):  # nearly always
            self.max_bytes = MAX_EVENT_BYTES
            return [data[6:-2]]
        if self._ends_with_cr or b"\r" in data:
            data = self._normalize_line_ends(data)
        events = self._split_buffered(data)
        payloads = [payload for event in events if (payload := _read_payload(event)) is not None]
        if payloads:
            self.max_bytes = MAX_EVENT_BYTES
        return payloads

    def _is_one_event(self, data: bytes) -> bool:
        return (
            data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
            and not (self._buffer or self._ends_with_cr or b"\r" in data)
        )

    def _split_buffered(self, data: bytes) -> list[bytes]:
        self._buffer += data
        end = self._buffer.rfind(b"\n\n", self._searched)
        if end < 0:
            if len(self._buffer) > self.max_bytes:
                raise OversizedEventError(f"an event has more than {self.max_bytes} bytes")
            self._searched = max(len(self._buffer) - 1, 0)
            return []
        events = bytes(self._buffer[:end]).split(b"\n\n")
        del self._buffer[: end + 2]
        self._searched = 0
        return events

    def _normalize_line_ends(self, data: bytes) -> bytes:
        """Replaces CRLF and CR by LF. A CR at the end waits: an LF that belongs to it may follow."""
        if self._ends_with_cr:
            data = b"\r" + data
        self._ends_with_cr = data.endswith(b"\r")
        if self._ends_with_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _read_payload(event: bytes) -> bytes | None:
    """Returns the data of one event, None if it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly always
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
