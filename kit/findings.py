"""Findings of the checker, and the table of their codes in `codes.toml`."""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from antiphon.kit.terminal_text import show_line

Level = Literal["error", "warning", "note"]
"""An error breaks some client, a warning may, a note is a known difference between servers that clients accept."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a stream can break. Its name never changes its meaning: build scripts may depend on it."""

    name: str
    group: str
    level: Level
    title: str
    """The rule, as a sentence."""
    why: str
    """One line: why clients care."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was broken, where, and how.

    `sequence_number` is the event's own, None if it has none; `position` counts events from 0, None if the finding is
    about the stream as a whole or about an HTTP reply. `count` is the number of times that the same was found.
    """

    code: str
    expected: str
    actual: str
    sequence_number: int | None = None
    position: int | None = None
    subject: str = ""
    """The item, field or reply that the finding is about."""
    count: int = 1

    @property
    def level(self) -> Level:
        """The level of the code."""
        return load_codes()[self.code].level

    @property
    def why(self) -> str:
        """Why clients care, in one line."""
        return load_codes()[self.code].why

    def __str__(self) -> str:
        place = "" if self.position is None else f" at event {self.position}"
        if self.sequence_number is not None and self.sequence_number != self.position:
            place += f" (sequence_number {self.sequence_number})"
        subject = f" {self.subject}:" if self.subject else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.level} {self.code}{place}:{subject} expected {self.expected}, but got {self.actual}{times}"


@cache
def load_codes() -> dict[str, Code]:
    """Returns the codes by name, in the order of `codes.toml`."""
    text = resources.files("antiphon.kit").joinpath("codes.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return {
        name: msgspec.convert(fields | {"name": name, "group": group}, Code)
        for group, codes in table.items()
        for name, fields in codes.items()
    }


class FindingList:
    """Collects findings. What is found again about the same subject is counted, not repeated."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str], Finding] = {}
        self._position: int | None = None
        self._sequence_number: int | None = None

    def set_event(self, position: int | None, sequence_number: int | None) -> None:
        """Sets the event that the next findings are about. None: the stream as a whole."""
        self._position, self._sequence_number = position, sequence_number

    def add(self, code: str, expected: str, actual: str, subject: str = "") -> None:
        """Adds a finding about the current event. The texts may hold what a server sent."""
        expected, actual, subject = map(show_line, (expected, actual, subject))
        key = code, subject
        if (known := self._findings.get(key)) is not None:
            self._findings[key] = msgspec.structs.replace(known, count=known.count + 1)
            return
        self._findings[key] = Finding(
            code=code,
            expected=expected,
            actual=actual,
            subject=subject,
            position=self._position,
            sequence_number=self._sequence_number,
        )

    def extend(self, findings: Iterable[Finding]) -> None:
        """Adds findings of another list."""
        for finding in findings:
            self._findings.setdefault((finding.code, finding.subject), finding)

    def list_findings(self) -> list[Finding]:
        """Returns the findings in the order in which each was first found."""
        return list(self._findings.values())


def quote(value: object, limit: int = 120) -> str:
    """Returns the value as JSON in one line of at most `limit` characters, safe for a terminal."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return show_line(text, limit)


def quote_start(data: bytes) -> str:
    """Returns the beginning of a body, for a finding."""
    return quote(data[:200].decode(errors="replace"))
