"""Reads the input file of a batch: checks every line, and notes where it is, but does not parse its body.

A fault of a line fails the whole batch. A fault of a body is that request's alone, and is found when it runs.
"""

from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.app.errors import clip_text
from antiphon.app.store.batches.records import BatchLine, LineError

MAX_BATCH_LINES = 50_000
MAX_BATCH_LINE_BYTES = 4 << 20
MAX_LINE_ERRORS = 100
"""Faults to report. The file is read no further after these."""
MAX_CUSTOM_ID_CHARS = 512
COMPARED_BYTES = 4096
"""Bytes at the begin of a body that decide which lines follow each other, so that their prompts share a prefix."""
MAX_RANKED_LINES = 1 << 31
"""Factor of a group in ranks: more lines than a file has."""


class InputLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line as it was sent. `body` is checked when it runs."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: Raw = Raw(b"")


class _BodyModel(Struct, frozen=True):
    model: Any = None


_line_decoder = msgspec.json.Decoder(InputLine)
_model_decoder = msgspec.json.Decoder(_BodyModel)


class LineScanner:
    """Reads the pieces of a file whose lines are for `endpoint`.

    `lines` are those that were found since the caller last emptied it, without the faulty ones. Example: the pieces
    `{"custom_id":"a",` and `"method":"POST","url":"/v1/responses","body":{}}` give one line after `finish`.
    """

    def __init__(self, endpoint: str, max_lines: int = MAX_BATCH_LINES) -> None:
        self._endpoint, self._max_lines = endpoint, max_lines
        self.lines: list[BatchLine] = []
        self.errors: list[LineError] = []
        self.total = 0
        """Number of lines that are not blank."""
        self.models: set[str | None] = set()
        """Names of models that the bodies have, None for a body without one."""
        self._number = 0
        self._offset = 0  # of the incomplete line
        self._pending = b""
        self._is_skipping = False  # the rest of a line that is too long
        self._custom_ids: set[str] = set()
        self._groups: dict[bytes, int] = {}

    @property
    def is_done(self) -> bool:
        """True if nothing more needs to be read, because there are too many faults."""
        return len(self.errors) >= MAX_LINE_ERRORS or self.total > self._max_lines

    def feed(self, piece: bytes) -> None:
        """Reads the next piece."""
        *complete, rest = (self._pending + piece).split(b"\n")
        for line in complete:
            if self.is_done:
                return
            self._end_line(line)
            self._offset += len(line) + 1
        self._pending = rest
        if len(rest) > MAX_BATCH_LINE_BYTES:
            if not self._is_skipping:
                self._number += 1
                self._add_too_long()
            self._is_skipping = True
            self._offset, self._pending = self._offset + len(rest), b""

    def finish(self) -> Sequence[LineError]:
        """Reads the last line, which needs no line break. Returns all faults, in the order of their lines."""
        if self._pending and not self.is_done:
            self._end_line(self._pending)
        if not self.errors and not self.total:
            self._add_error("empty_file", "The input file has no requests.", line=None)
        return self.errors[:MAX_LINE_ERRORS]

    def _end_line(self, line: bytes) -> None:
        if self._is_skipping:
            self._is_skipping = False
            return
        self._number += 1
        start = self._offset
        if self._number == 1 and line.startswith(BOM_UTF8):
            line, start = line.removeprefix(BOM_UTF8), start + len(BOM_UTF8)
        if not line.strip():
            return
        self.total += 1
        if self.total > self._max_lines:
            self._add_error("too_many_tasks", f"The input file has more than {self._max_lines} requests.", line=None)
        elif len(line) > MAX_BATCH_LINE_BYTES:
            self._add_too_long()
        elif (sent := self._decode_line(line)) is not None and self._check_line(sent):
            self._add_line(sent, start, len(line))

    def _decode_line(self, line: bytes) -> InputLine | None:
        try:
            return _line_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._add_error("invalid_json_line", f"This line is not a valid request: {clip_text(str(error), 200)}.")
            return None

    def _check_line(self, sent: InputLine) -> bool:
        """Tells whether a line is complete and names the batch's endpoint; adds its first fault."""
        body = bytes(sent.body)
        values = {"custom_id": sent.custom_id, "method": sent.method, "url": sent.url, "body": body}
        for name, value in values.items():
            if value in (None, "", b"", b"null"):
                self._add_error("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
                return False
        custom_id = sent.custom_id
        if not isinstance(custom_id, str) or len(custom_id) > MAX_CUSTOM_ID_CHARS:
            message = f"'custom_id' must be a string of at most {MAX_CUSTOM_ID_CHARS} characters."
            self._add_error("invalid_custom_id", message, "custom_id")
        elif custom_id in self._custom_ids:
            message = f"The 'custom_id' '{clip_text(custom_id)}' occurs more than once."
            self._add_error("duplicate_custom_id", message, "custom_id")
        elif sent.method != "POST":
            self._add_error("invalid_method", "The method must be 'POST'.", "method")
        elif sent.url != self._endpoint:
            self._add_error("invalid_url", f"The URL must be that of the batch, '{self._endpoint}'.", "url")
        else:
            self._custom_ids.add(custom_id)
            return True
        return False

    def _add_line(self, sent: InputLine, start: int, length: int) -> None:
        body = bytes(sent.body)
        group = self._groups.setdefault(body[:COMPARED_BYTES], len(self._groups))
        model = _read_model(body)
        self.models.add(model)
        self.lines.append(
            BatchLine(
                number=self._number,
                rank=group * MAX_RANKED_LINES + self.total,
                start=start,
                length=length,
                custom_id=sent.custom_id,
                model=model,
            )
        )

    def _add_too_long(self) -> None:
        self._add_error("line_too_long", f"This line has more than {MAX_BATCH_LINE_BYTES} bytes.")

    def _add_error(self, code: str, message: str, param: str | None = None, line: int | None = -1) -> None:
        number = self._number if line == -1 else line
        self.errors.append(LineError(code=code, message=message, param=param, line=number))


def decode_line_body(line: bytes) -> bytes:
    """Returns the body of a line that the scanner has accepted, as it was sent."""
    return bytes(_line_decoder.decode(line).body)


def _read_model(body: bytes) -> str | None:
    """Returns the model that a body names, if it can be read."""
    try:
        model = _model_decoder.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return model if isinstance(model, str) else None
