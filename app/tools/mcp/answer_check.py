"""Checks that the answer in a body over HTTP is to the request that was sent.

The SDK takes any answer of an event stream for that of its request, and waits on after a JSON body with another one.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class _Envelope(Struct, frozen=True):
    """The outer fields of a message."""

    id: Any = UNSET
    method: Any = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def is_answer(self) -> bool:
        return self.method is UNSET and (self.result is not UNSET or self.error is not UNSET)


_decoder = msgspec.json.Decoder(_Envelope)


def read_request_id(body: bytes) -> int | str | None:
    """Returns the id of a message that asks for an answer; None if it is none."""
    envelope = _decode(body)
    if envelope is None or envelope.method is UNSET:  # the client answers requests of the server, too
        return None
    return envelope.id if isinstance(envelope.id, int | str) else None


class AnswerCheck:
    """Reads a body beside its reader. `max_bytes`: a longer message of an event stream is not looked at."""

    def __init__(self, request_id: int | str, max_bytes: int, *, is_stream: bool) -> None:
        self._request_id, self._max_bytes, self._is_stream = request_id, max_bytes, is_stream
        self._line = bytearray()
        """The line of an event stream that has not ended, or the body so far."""
        self._data: list[bytes] = []
        self._num_bytes, self._ends_with_cr = 0, False

    def accepts(self, chunk: bytes) -> bool:
        """Takes the next bytes. Returns False after an answer to another request."""
        if not self._is_stream:
            self._line += chunk
            return True
        text = chunk[1:] if self._ends_with_cr and chunk.startswith(b"\n") else chunk
        self._ends_with_cr = chunk.endswith(b"\r")
        first, *rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line += first
        for line in rest:
            if not self._end_line():
                return False
            self._line += line
        return True

    def accepts_end(self) -> bool:
        """Takes the end of the body."""
        return self._is_stream or self._is_ours(bytes(self._line))

    def _end_line(self) -> bool:
        """Reads a whole line. Returns False if it ends an event with an answer to another request."""
        line, self._line = bytes(self._line), bytearray()
        if line.startswith(b"data:"):
            self._num_bytes += len(line)
            if self._num_bytes <= self._max_bytes:
                self._data.append(line[5:])
            return True
        if line:
            return True
        is_ours = self._num_bytes > self._max_bytes or self._is_ours(b"\n".join(self._data))
        self._data, self._num_bytes = [], 0
        return is_ours

    def _is_ours(self, message: bytes) -> bool:
        envelope = _decode(message)
        return envelope is None or not envelope.is_answer or str(envelope.id) == str(self._request_id)


def _decode(message: bytes) -> _Envelope | None:
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the SDK says so
        return None
