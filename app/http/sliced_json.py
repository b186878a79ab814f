"""Decodes a large JSON body in slices, so that no step keeps other threads waiting for long.

The decoder is C code that holds Python's global lock while it runs, in a thread as well. A body of many values is
therefore split where its structure allows, and each slice is decoded by a call of its own. Between two calls, and
between two steps of the scanner, the interpreter can run the event loop.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.requests.json_body import MAX_BODY_DEPTH, invalid_json, nesting_error

MAX_VALUES = 1_000_000
"""Maximum number of values in a body, keys not counted. Each takes some hundred bytes of memory when it is decoded."""
MAX_CONTAINERS = 300_000
"""Maximum number of objects and arrays. Python's collector visits all of them in one step, which takes 25 ms."""
MAX_KEYS = 100_000
"""Maximum number of keys in an object. A larger one takes long whenever it grows."""
SLICE_VALUES = 20_000
"""Number of values after which a slice ends. If all keys differ, decoding them takes about 10 ms."""
SCAN_BYTES = 256 * 1024
"""Bytes that one call of a regular expression scans: less than 2 ms."""

_STRUCTURE = re.compile(rb'["\[\]{},]')
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")
_COMMA, _QUOTE = b',"'
_BRACKETS = dict(zip(b"[{", b"]}", strict=True))
_decoder = msgspec.json.Decoder()


class _Container:
    """An array or object that is open, and the part of it that has been decoded."""

    __slots__ = ("follows_child", "member_start", "opened_at", "slice_start", "value")

    def __init__(self, opened_at: int) -> None:
        self.opened_at = opened_at
        self.slice_start = self.member_start = opened_at + 1
        self.value: dict[str, Any] | list[Any] | None = None
        """The members before `slice_start`; None if the container is decoded in one piece, or with its parent."""
        self.follows_child = False
        """True if a member ends at `slice_start`, else one begins there."""


class _SlicedDecoder:
    """Decodes one body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._open: list[_Container] = []
        self._num_values = self._num_containers = self._num_in_slice = 0
        self._result: Any = None

    def decode(self) -> Any:
        """Returns the decoded value. Raises `ApiError` or an error of the decoder."""
        for position, character in _find_structure(self._body):
            if character in _BRACKETS:
                self._count_value()
                self._num_containers += 1
                if self._num_containers > MAX_CONTAINERS:
                    raise _too_many(f"more than {MAX_CONTAINERS} objects and arrays")
                if len(self._open) == MAX_BODY_DEPTH:
                    raise nesting_error()
                if not self._open:
                    self._skip_blank(0, position)
                self._open.append(_Container(position))
            elif not self._open:
                break
            elif character == _COMMA:
                self._count_value()
                self._on_comma(self._open[-1], position)
            elif self._on_close(self._open.pop(), position) and not self._open:
                return self._finish(position + 1)
        if any(container.value is not None for container in self._open):
            raise invalid_json("Input data was truncated")
        return _decoder.decode(self._body)

    def _count_value(self) -> None:
        self._num_in_slice += 1
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise _too_many(f"more than {MAX_VALUES} values")

    def _on_comma(self, container: _Container, position: int) -> None:
        if container.follows_child:
            self._skip_blank(container.slice_start, position)
            container.slice_start, container.follows_child = position + 1, False
        elif self._num_in_slice >= SLICE_VALUES:
            for parent in self._open[:-1]:
                self._decode_before_child(parent)
            self._decode_members(container, position)
        container.member_start = position + 1

    def _decode_before_child(self, parent: _Container) -> None:
        """Decodes what precedes the member that is open now, which will be added on its own."""
        if parent.slice_start < parent.member_start:
            self._decode_members(parent, parent.member_start - 1)
        elif parent.value is None:
            parent.value = {} if self._is_object(parent) else []

    def _on_close(self, container: _Container, position: int) -> bool:
        """Ends a container. Returns True if it was split."""
        if container.value is None:
            return False
        if self._body[position] != _BRACKETS[self._body[container.opened_at]]:
            raise invalid_json(f"JSON is malformed: mismatched brackets (byte {position})")
        if container.follows_child:
            self._skip_blank(container.slice_start, position)
        elif self._body[container.slice_start : position].strip():
            self._decode_members(container, position)
        else:
            raise invalid_json(f"JSON is malformed: trailing comma (byte {position})")
        if self._open:
            self._add_child(self._open[-1], container, position)
        else:
            self._result = container.value
        return True

    def _add_child(self, parent: _Container, child: _Container, end: int) -> None:
        if isinstance(parent.value, dict):
            (key,) = self._decode_slice(parent.member_start, child.opened_at, b"{", b"null}")
            parent.value[key] = child.value
        elif parent.value is not None:
            self._skip_blank(parent.member_start, child.opened_at)
            parent.value.append(child.value)
        parent.slice_start, parent.follows_child = end + 1, True

    def _decode_members(self, container: _Container, end: int) -> None:
        """Decodes the members from the start of the slice to `end`, where a comma or the closing bracket is."""
        opening, closing = (b"{", b"}") if self._is_object(container) else (b"[", b"]")
        members = self._decode_slice(container.slice_start, end, opening, closing)
        if container.value is None:
            container.value = members
        elif isinstance(container.value, dict):
            container.value.update(members)
            if len(container.value) > MAX_KEYS:
                raise _too_many(f"an object with more than {MAX_KEYS} keys")
        else:
            container.value.extend(members)
        container.slice_start = end + 1

    def _decode_slice(self, start: int, end: int, opening: bytes, closing: bytes) -> Any:
        self._num_in_slice = 0
        part = self._body[start:end]
        if not part.strip():
            raise invalid_json(f"JSON is malformed: a value is missing (byte {start})")
        try:
            return _decoder.decode(b"%b%b%b" % (opening, part, closing))
        except msgspec.DecodeError as error:
            message = _BYTE_OFFSET.sub(lambda match: f"(byte {int(match[1]) + start - 1})", str(error))
            raise invalid_json(message) from None

    def _is_object(self, container: _Container) -> bool:
        return self._body[container.opened_at : container.opened_at + 1] == b"{"

    def _skip_blank(self, start: int, end: int) -> None:
        if self._body[start:end].strip():
            raise invalid_json(f"JSON is malformed: unexpected characters (byte {start})")

    def _finish(self, end: int) -> Any:
        self._skip_blank(end, len(self._body))
        return self._result


def decode_in_slices(body: bytes) -> Any:
    """Returns the value of a JSON text that has at most `MAX_VALUES` values and `MAX_BODY_DEPTH` levels.

    Raises `ApiError`, `msgspec.DecodeError` or `UnicodeDecodeError`.
    """
    return _SlicedDecoder(body).decode()


def _too_many(what: str) -> ApiError:
    return ApiError(413, "request_too_large", f"The body has {what}. Send less in one request.")


def _find_structure(body: bytes) -> Iterator[tuple[int, int]]:
    """Yields position and code of each bracket and comma outside strings; ends at a string that does not."""
    position, size = 0, len(body)
    while position < size:
        found = _STRUCTURE.search(body, position, position + SCAN_BYTES)
        if found is None:
            position += SCAN_BYTES
        elif body[found.start()] != _QUOTE:
            yield found.start(), body[found.start()]
            position = found.end()
        elif (position := _find_string_end(body, found.end())) < 0:
            return


def _find_string_end(body: bytes, position: int) -> int:
    """Returns the position after a string's closing quote; -1 if there is none."""
    while position < len(body) and body[position] != _QUOTE:
        part = _STRING_PART.match(body, position, position + SCAN_BYTES)
        if part is None or part.end() == position:
            return -1
        position = part.end()
    return position + 1 if position < len(body) else -1
