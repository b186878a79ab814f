"""The checker of one Responses stream, event by event."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.kit.checker.hosted import check_ended_shape
from antiphon.kit.checker.items import ItemsChecker
from antiphon.kit.checker.lifecycle import STATUSES, LifecycleChecker, check_ending
from antiphon.kit.checker.policy import check_policy
from antiphon.kit.checker.schema import (
    EARLY_API_LACKS,
    EVENT_SHAPES,
    OPEN_RESPONSES_NAMES,
    check_item_shape,
    check_response_shape,
    check_shape,
    is_early_response,
)
from antiphon.kit.checker.sse import END_MARKER, Frame, SseReader, read_json
from antiphon.kit.checker.terminal import check_output, check_usage
from antiphon.kit.findings import Finding, FindingList, quote
from antiphon.kit.json_values import JsonEvent, as_objects

SEQUENCE_KEY = "sequence_number"


class SequenceChecker:
    """Checks that the numbers grow by one from event to event."""

    def __init__(self, findings: FindingList, first_number: int) -> None:
        self._findings = findings
        self._first_number = self._next_number = first_number
        self._num_events = self._num_absent = 0

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Checks the number of an event, the findings' current one."""
        self._num_events += 1
        number = event.get(SEQUENCE_KEY)
        if SEQUENCE_KEY not in event and self._num_absent == self._num_events - 1:
            self._num_absent += 1  # perhaps no event has one
            self._next_number += 1
            return
        self._report_absent()
        if not isinstance(number, int) or isinstance(number, bool):
            self._findings.add("sequence-missing", f"sequence_number {self._next_number}", quote(number))
            self._next_number += 1
            return
        if self._num_events == 1 and number != self._next_number:
            self._findings.add("sequence-start", str(self._next_number), str(number))
        elif number < self._next_number:
            self._findings.add("sequence-repeated", str(self._next_number), str(number))
        elif number > self._next_number:
            self._findings.add("sequence-gap", str(self._next_number), str(number))
        self._next_number = number + 1

    def skip_event(self, event: Mapping[str, Any]) -> None:
        """Counts the number of a keepalive event, which may have one."""
        if event.get(SEQUENCE_KEY) == self._next_number:
            self._next_number += 1

    def finish(self, *, is_early: bool) -> None:
        """Reports a stream without any number. Streams of early 2025 had none."""
        if is_early and 0 < self._num_events == self._num_absent:
            self._findings.add("sequence-absent", "a sequence_number in every event", "none in any")
        else:
            self._report_absent()

    def _report_absent(self) -> None:
        """Reports the events without a number before the first one that has one."""
        for number in range(self._num_absent):
            self._findings.add("sequence-missing", f"sequence_number {self._first_number + number}", "null")
        self._num_absent = 0


IGNORED_TYPES = ("keepalive",)
ENDED_RESPONSE_STATUSES = ("completed", "incomplete", "failed", "cancelled")


class StreamChecker:
    """Checks the events of one stream in order. `request` is the body that asked for it, if it is known.

    Example: `checker = StreamChecker(); [checker.check_event(e) for e in events]; print(checker.finish())`.
    """

    def __init__(self, request: Mapping[str, Any] | None = None, *, first_sequence_number: int = 0) -> None:
        self.findings = FindingList()
        self._request = request
        self._sequence = SequenceChecker(self.findings, first_sequence_number)
        self._position = 0
        self._has_end_marker = False
        self._lifecycle = LifecycleChecker(self.findings)
        self._items = ItemsChecker(self.findings)

    @property
    def final_response(self) -> Mapping[str, Any] | None:
        """The response of the terminal event, None before it."""
        return self._lifecycle.final_response

    @property
    def _is_early(self) -> bool:
        """True if the stream has the form of early 2025."""
        first = self._lifecycle.first_snapshot
        return first is not None and is_early_response(first)

    def check_frame(self, frame: Frame) -> None:
        """Checks a frame of server-sent events, and the event in it."""
        self.findings.set_event(self._position, None)
        if self._has_end_marker:
            self.findings.add("frame-after-done-marker", "no frame after [DONE]", quote(frame.data))
        if frame.data == END_MARKER:
            if frame.name:
                self.findings.add("done-marker-name", "[DONE] without an event name", quote(frame.name))
            self._has_end_marker = True
            return
        event = read_json(frame.data, self.findings)
        if event is None:
            self._position += 1
            return
        if frame.name is None:
            self.findings.add("sse-event-name-missing", f"event: {event.get('type')}", "no event field")
        elif frame.name != event.get("type"):
            self.findings.add("sse-event-name", f"event: {event.get('type')}", f"event: {frame.name}")
        self.check_event(event)

    def check_event(self, event: JsonEvent) -> None:
        """Checks one event, decoded from JSON."""
        number, kind = event.get("sequence_number"), event.get("type")
        self.findings.set_event(self._position, number if isinstance(number, int) else None)
        if not isinstance(kind, str):
            self.findings.add("event-type-missing", "a type", quote(kind))
            self._position += 1
            return
        if kind in IGNORED_TYPES:
            self.findings.add("keepalive-event", "a comment or response.in_progress", kind)
            self._sequence.skip_event(event)
            return
        self._sequence.check_event(event)
        self._position += 1
        if not _is_unicode(event):
            self.findings.add("text-surrogate", "whole characters", "half of a surrogate pair", kind)
        if kind in OPEN_RESPONSES_NAMES:
            self.findings.add("open-responses-name", OPEN_RESPONSES_NAMES[kind], kind, kind)
            kind = OPEN_RESPONSES_NAMES[kind]
        if kind not in EVENT_SHAPES:
            code = "event-extension" if ":" in kind else "event-type-unknown"
            self.findings.add(code, "an event type of the API", kind, kind)
            return
        optional = EARLY_API_LACKS.get(kind, ()) if self._is_early else ()
        check_shape(event, EVENT_SHAPES[kind], kind, self.findings, optional)
        self._lifecycle.check_event(kind, event)
        if kind not in STATUSES and kind != "error" and not kind.startswith("response.audio."):
            self._items.check_event(kind.removeprefix("response."), event)

    def finish(self, *, is_sse: bool = False) -> list[Finding]:
        """Checks what can only be known at the end. Returns all findings."""
        self.findings.set_event(None, None)
        if self._position == 0:
            self.findings.add("stream-empty", "events", "none")
            return self.findings.list_findings()
        if is_sse and not self._has_end_marker:
            self.findings.add("done-marker-missing", "[DONE] after the last event", "none")
        self._sequence.finish(is_early=self._is_early)
        self._lifecycle.finish()
        response = self.final_response
        if response is None:
            for tracked in self._items.open_items:
                self.findings.add("item-never-done", "output_item.done", "the end of the stream", tracked.label)
        else:
            check_output(response, self._items, self.findings)
            check_response(response, self._request, self.findings)
        return self.findings.list_findings()


def check_response(response: Mapping[str, Any], request: Mapping[str, Any] | None, findings: FindingList) -> None:
    """Checks the usage of an ended response, and its output against its settings."""
    check_usage(response, request, findings)
    check_policy(request, response, findings)


def check_whole_response(response: Mapping[str, Any], request: Mapping[str, Any] | None, findings: FindingList) -> None:
    """Checks a Response that came in one piece."""
    check_response_shape(response, findings)
    for item in as_objects(response.get("output")):
        check_item_shape(item, findings)
        check_ended_shape(item, findings)
    if response.get("status") in ENDED_RESPONSE_STATUSES:
        check_ending(response, findings)
        check_response(response, request, findings)


def check_events(events: Iterable[JsonEvent], request: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns the findings about a whole stream of decoded events."""
    checker = StreamChecker(request)
    for event in events:
        checker.check_event(event)
    return checker.finish()


def check_sse(data: bytes, request: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns the findings about a whole stream of server-sent events, as recorded."""
    checker = StreamChecker(request)
    reader = SseReader(checker.findings)
    for frame in reader.feed(data):
        checker.check_frame(frame)
    reader.finish()
    return checker.finish(is_sse=True)


def _is_unicode(event: JsonEvent) -> bool:
    """Returns whether no string in an event has half a surrogate pair."""
    try:
        json.dumps(dict(event), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
