"""Snapshots of streams for syrupy: a text file for each test, and the few lines that differ."""

import dataclasses
import difflib
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from antiphon.kit.snapshot.stream_text import format_stream
from antiphon.kit.terminal_text import show_controls

CONTEXT_LINES = 2
MAX_DIFF_LINES = 40
MAX_DIFF_LINE_CHARS = 160
"""Length to which lines of a difference are cut, around the first character that differs."""
KEPT_CHARS = 40
"""Number of equal characters that stay before the difference."""
LEGEND = "- is the snapshot, + is the stream. To accept the stream: pytest --snapshot-update"


class StreamSnapshot(SingleFileSnapshotExtension):
    """One text file for each snapshot: `__snapshots__/MODULE/TEST.txt`."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"

    def serialize(self, data: Any, **_: Any) -> str:
        """Returns the lines of the stream."""
        return str(format_stream(data))

    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        """Yields the lines that differ, each group with its line number and a little context."""
        lines = list(map(show_controls, compare_lines(str(snapshot_data), str(serialized_data))))
        yield from lines[:MAX_DIFF_LINES]
        if len(lines) > MAX_DIFF_LINES:
            yield f"… and {len(lines) - MAX_DIFF_LINES} more lines"


class StreamSnapshotAssertion(SnapshotAssertion):
    """An assertion that fails with the lines that differ: pytest would cut them to eight."""

    @classmethod
    def create(cls, snapshot: SnapshotAssertion) -> "StreamSnapshotAssertion":
        """Returns the assertion for the test of another one."""
        fields = {field.name: getattr(snapshot, field.name) for field in dataclasses.fields(snapshot) if field.init}
        return cls(**(fields | {"extension_class": StreamSnapshot}))

    def __eq__(self, other: object) -> bool:
        __tracebackhide__ = True
        if self._assert(other):
            return True
        result = self.executions[self.num_executions - 1]
        if result.exception is not None:
            raise result.exception
        if result.recalled_data is None:
            title, hint = "the stream has no snapshot yet:", "To accept it: pytest --snapshot-update"
        else:
            title, hint = "the stream differs from its snapshot:", LEGEND
        raise AssertionError("\n".join([f"{title} {result.snapshot_name}", *self.get_assert_diff(), hint]))

    __hash__ = None  # type: ignore[assignment]  # an assertion is no value

    def __repr__(self) -> str:
        return f"<event_snapshot of {self.test_location.testname}>"


def compare_lines(expected: str, actual: str) -> Iterator[str]:
    """Yields the lines that differ with a mark, and the lines around them."""
    old, new = expected.splitlines(), actual.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        yield f"line {group[0][1] + 1}:"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (f"  {_cut_line(line, 0)}" for line in old[old_start:old_end])
                continue
            yield from _compare_group(old[old_start:old_end], new[new_start:new_end])


def _compare_group(before: list[str], after: list[str]) -> Iterator[str]:
    """Yields lines that differ: pair by pair if each has a counterpart, else the removed before the added."""
    starts = list(map(_find_difference, before, after))
    removed = [f"- {_cut_line(line, start)}" for line, start in zip(before, chain(starts, repeat(0)), strict=False)]
    added = [f"+ {_cut_line(line, start)}" for line, start in zip(after, chain(starts, repeat(0)), strict=False)]
    if len(removed) == len(added):
        yield from chain.from_iterable(zip(removed, added, strict=True))
    else:
        yield from [*removed, *added]


def _find_difference(before: str, after: str) -> int:
    """Returns the position of the first character that differs."""
    pairs = zip(before, after, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


def _cut_line(line: str, difference: int) -> str:
    """Returns the part of a long line around the difference."""
    if len(line) <= MAX_DIFF_LINE_CHARS:
        return line
    start = 0 if difference < MAX_DIFF_LINE_CHARS - KEPT_CHARS else difference - KEPT_CHARS
    end = start + MAX_DIFF_LINE_CHARS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
