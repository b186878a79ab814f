"""Names that tests of agents and servers import: the checker as an assertion, and the lines of a stream.

`antiphon.kit.pytest_plugin` has the fixtures.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from antiphon.kit.chat.stream import ChatStreamChecker, check_chat_sse
from antiphon.kit.checker.sse import END_MARKER, Frame
from antiphon.kit.checker.stream import IGNORED_TYPES, check_events, check_sse, check_whole_response
from antiphon.kit.findings import Finding, FindingList, load_codes
from antiphon.kit.json_values import Json
from antiphon.kit.snapshot.event_lines import format_event
from antiphon.kit.snapshot.id_numbers import IdNumbers
from antiphon.kit.snapshot.recorded_stream import read_streams
from antiphon.kit.snapshot.sources import (
    is_chat,
    is_whole_response,
    parse_sse,
    read_events,
    read_wire_bytes,
    split_streams,
)
from antiphon.kit.snapshot.stream_text import format_stream
from antiphon.kit.terminal_text import show_line

__all__ = ["assert_conformant", "find_faults", "format_stream", "read_events", "read_streams"]

MAX_SHOWN_EVENT_CHARS = 160


def assert_conformant(
    stream: object, request: Mapping[str, Any] | None = None, ignore: Collection[str] = (), *, notes: bool = False
) -> None:
    """Raises `AssertionError` with the findings about a stream of Responses or of chat, or about a whole response.

    `request` is the body that asked for it, whose settings the stream must follow; the recorded streams of
    `responses_server` know theirs. `ignore` holds codes of findings that are accepted. With `notes`, differences that
    clients are known to accept are findings, too.
    """
    __tracebackhide__ = True
    unknown = sorted(set(ignore) - set(load_codes()))
    if unknown:
        raise ValueError(f"there is no code {unknown[0]!r}: see docs/reference/checks.md for the codes of findings")
    events = _read_once(stream)
    found = [
        (finding, line)
        for finding, line in _check(events, request)
        if finding.code not in ignore and (notes or finding.level != "note")
    ]
    if found:
        title = f"the stream breaks {len(found)} rule{'s' if len(found) > 1 else ''}:"
        raise AssertionError("\n".join([title, *(_describe(finding, line) for finding, line in found)]))


def find_faults(stream: object, request: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns all findings about a stream, notes included."""
    return [finding for finding, _ in _check(_read_once(stream), request)]


def _read_once(stream: object) -> object:
    """Returns the stream in a form that can be read twice."""
    data = read_wire_bytes(stream)
    if data is None:
        return read_events(stream)
    return stream if isinstance(stream, bytes) else data


def _check(stream: object, request: Mapping[str, Any] | None) -> list[tuple[Finding, str | None]]:
    """Returns each finding, and the line of its event if it is about one."""
    request = request if request is not None else getattr(stream, "request", None)
    if isinstance(stream, bytes) and stream.lstrip()[:1] not in (b"{", b"["):
        events = parse_sse(stream)
        check = check_chat_sse if is_chat(events) else check_sse
        return _add_lines(check(stream, request), events)
    events = read_events(stream)
    if is_chat(events):
        return [(finding, None) for finding in _check_chunks(events, request)]
    if len(events) == 1 and is_whole_response(events[0]):
        findings = FindingList()
        check_whole_response(events[0], request, findings)
        return [(finding, None) for finding in findings.list_findings()]
    return [pair for part in split_streams(events) for pair in _add_lines(check_events(part, request), part)]


def _check_chunks(chunks: list[Json], request: Mapping[str, Any] | None) -> list[Finding]:
    checker = ChatStreamChecker(request)
    for chunk in chunks:
        checker.check_frame(Frame(None, json.dumps(chunk)))
    checker.check_frame(Frame(None, END_MARKER))  # SDKs do not pass it on
    return checker.finish()


def _add_lines(findings: list[Finding], events: list[Json]) -> list[tuple[Finding, str | None]]:
    numbers = IdNumbers()
    lines = [format_event(event, numbers) for event in events if event.get("type") not in IGNORED_TYPES]
    return [
        (finding, None if finding.position is None or finding.position >= len(lines) else lines[finding.position])
        for finding in findings
    ]


def _describe(finding: Finding, line: str | None) -> str:
    first = "" if line is None else line.partition("\n")[0]
    shown = "" if line is None else f"\n      {show_line(first, MAX_SHOWN_EVENT_CHARS)}"
    return f"  {finding}{shown}\n    why: {finding.why}"
