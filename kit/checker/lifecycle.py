"""The events about the whole response: their order, and what their snapshots of the response may say."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.checker.hosted import SERVER_RUN_TYPES
from antiphon.kit.checker.schema import RESPONSE_SHAPE, check_response_shape
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonEvent, as_list

STATUSES = {
    "response.created": ("in_progress", "queued"),
    "response.queued": ("queued", "in_progress"),
    "response.in_progress": ("in_progress",),
    "response.completed": ("completed",),
    "response.incomplete": ("incomplete", "cancelled"),
    "response.failed": ("failed",),
}
TERMINAL_TYPES = ("response.completed", "response.incomplete", "response.failed")
INCOMPLETE_REASONS = ("max_output_tokens", "content_filter", "max_messages", "steered")
CHANGING_KEYS = ("status", "completed_at", "incomplete_details", "output", "error", "usage", "service_tier")
"""Keys whose values come to be known. `service_tier` is at first the one asked for, then the one that was used."""
ADDED_KEYS = ("conversation", "prompt", "user")
"""Keys that only some responses have."""
CONSTANT_KEYS = (*(key for key in RESPONSE_SHAPE if key not in CHANGING_KEYS), *ADDED_KEYS)
MAX_TIME_S = 100_000_000_000
"""A time in the year 5138. What is larger counts milliseconds."""


class LifecycleChecker:
    """Checks `created`, `queued`, `in_progress`, `error` and the terminal event of one stream."""

    def __init__(self, findings: FindingList) -> None:
        self._findings = findings
        self.first_snapshot: Mapping[str, Any] | None = None
        """The response of the first event that has one."""
        self._last_type: str | None = None
        self._num_events = 0
        self._has_item = False
        self._has_progress = False
        self._is_between_rounds = False
        """True if the last item is done and was run by the server, and nothing but `in_progress` has followed."""
        self._error: Mapping[str, Any] | None = None
        self.terminal_type: str | None = None
        self.final_response: Mapping[str, Any] | None = None

    def check_event(self, kind: str, event: JsonEvent) -> None:
        """Checks an event's place among the others, and its snapshot if it has one."""
        if self.terminal_type is not None:
            code = "terminal-repeated" if kind in TERMINAL_TYPES else "event-after-terminal"
            self._findings.add(code, f"no event after {self.terminal_type}", kind)
        elif self._last_type == "error" and kind != "response.failed":
            self._findings.add("error-without-failed", "response.failed after error", kind)
        self._check_place(kind)
        self._note_round(kind, event)
        if kind == "error":
            self._check_error(event)
        if kind in STATUSES and isinstance(event.get("response"), dict):
            self._check_snapshot(kind, event["response"])
        if kind in TERMINAL_TYPES and self.terminal_type is None:
            if kind == "response.failed" and self._last_type != "error":
                self._findings.add("failed-without-error", "error before response.failed", str(self._last_type))
            self.terminal_type = kind
        self._last_type = kind
        self._num_events += 1

    def finish(self) -> None:
        """Reports a stream without a terminal event. The item checker reports items that stayed open."""
        if self.terminal_type is not None:
            return
        if self._last_type == "error":
            self._findings.add("error-without-failed", "response.failed after error", "the end of the stream")
        else:
            self._findings.add(
                "terminal-missing", "response.completed, .incomplete or .failed", f"the end after {self._last_type}"
            )

    def _check_place(self, kind: str) -> None:
        if self._num_events == 0 and kind != "response.created":
            self._findings.add("first-event", "response.created", kind)
        elif self._num_events > 0 and kind == "response.created":
            self._findings.add("created-repeated", "one response.created", "another one")
        elif kind == "response.queued" and (self._has_progress or self._has_item):
            self._findings.add("queued-late", "response.queued before response.in_progress", "it afterwards")
        elif kind == "response.in_progress" and self._has_item and not self._is_between_rounds:
            expected = "response.in_progress before the first item, or after an item that the server ran"
            self._findings.add("in-progress-late", expected, f"it after {self._last_type}")
        elif kind == "response.output_item.added" and not (self._has_progress or self._has_item):
            self._findings.add("in-progress-missing", "response.in_progress before the first item", "none")
        self._has_progress |= kind == "response.in_progress"
        self._has_item |= kind == "response.output_item.added"

    def _note_round(self, kind: str, event: JsonEvent) -> None:
        if kind == "response.output_item.done":
            item = event.get("item")
            self._is_between_rounds = isinstance(item, dict) and item.get("type") in SERVER_RUN_TYPES
        elif kind != "response.in_progress":
            self._is_between_rounds = False

    def _check_error(self, event: JsonEvent) -> None:
        nested = event.get("error")
        self._error = nested if isinstance(nested, dict) else event
        if not isinstance(nested, dict):
            self._findings.add("error-form", "a nested error beside the flat fields", "no object error")
            return
        for key in ("code", "message", "param"):
            if key not in event or key not in nested:
                self._findings.add("error-form", f"{key} in both forms", "it is missing in one", key)
            elif event[key] != nested[key]:
                self._findings.add("error-forms-differ", quote(nested[key]), quote(event[key]), key)

    def _check_snapshot(self, kind: str, response: Mapping[str, Any]) -> None:
        findings, is_terminal = self._findings, kind in TERMINAL_TYPES
        check_response_shape(response, findings)
        first = self.first_snapshot = self.first_snapshot if self.first_snapshot is not None else response
        if response.get("id") != first.get("id"):
            findings.add("response-id-changed", quote(first.get("id")), quote(response.get("id")))
        for key in CONSTANT_KEYS:
            is_known = key in ADDED_KEYS or (key in first and key in response)
            if key != "id" and is_known and response.get(key) != first.get(key):
                expected, actual = quote(first.get(key)), quote(response.get(key))
                findings.add("response-setting-changed", expected, actual, f"response.{key}")
        if not _may_become(first.get("service_tier"), response.get("service_tier")):
            expected, actual = quote(first.get("service_tier")), quote(response.get("service_tier"))
            findings.add("response-setting-changed", expected, actual, "response.service_tier")
        if response.get("status") not in STATUSES[kind]:
            findings.add("response-status", " or ".join(STATUSES[kind]), quote(response.get("status")), kind)
        if is_terminal:
            self.final_response = response if self.final_response is None else self.final_response
            check_ending(response, findings)
            self._compare_error(response)
            return
        if as_list(response.get("output")):
            findings.add("snapshot-output-early", "an empty output before the terminal event", "items", kind)
        for key in ("usage", "error", "incomplete_details", "completed_at"):
            if response.get(key) is not None:
                findings.add("snapshot-ending-early", "null before the terminal event", quote(response[key]), key)

    def _compare_error(self, response: Mapping[str, Any]) -> None:
        """Reports an error of the response that differs from the error event before it."""
        error = response.get("error")
        if self._error is None or not isinstance(error, dict):
            return
        for key in ("code", "message"):
            if key in self._error and key in error and self._error[key] != error[key]:
                self._findings.add("error-differs", quote(self._error[key]), quote(error[key]), f"response.error.{key}")


def _may_become(asked: object, used: object) -> bool:
    """Returns whether a service tier that was asked for may become the other: auto any, and each of them default."""
    return used == asked or (asked in (None, "auto") and isinstance(used, str) and bool(used)) or used == "default"


def check_ending(response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports fields about the end of a response that contradict its status."""
    status = response.get("status")
    for key, owner in (("completed_at", "completed"), ("error", "failed"), ("incomplete_details", "incomplete")):
        has_value = response.get(key) is not None
        is_late_key = key == "completed_at" and key not in response
        if has_value != (status == owner) and not is_late_key:
            expected = "a value" if status == owner else "null"
            findings.add(
                "response-ending", f"{expected} with status {status}", quote(response.get(key)), f"response.{key}"
            )
    check_times(response, findings)
    details, error = response.get("incomplete_details"), response.get("error")
    if isinstance(details, dict) and details.get("reason") not in INCOMPLETE_REASONS:
        findings.add("incomplete-reason", " or ".join(INCOMPLETE_REASONS), quote(details.get("reason")))
    if isinstance(error, dict) and not (isinstance(error.get("code"), str) and isinstance(error.get("message"), str)):
        findings.add("response-error", "an error with a code and a message", quote(error))


def check_times(response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports times that are no seconds since 1970, and an end before the beginning."""
    times = {
        key: value
        for key in ("created_at", "completed_at")
        if isinstance(value := response.get(key), int | float) and not isinstance(value, bool)
    }
    for key, value in times.items():
        if not 0 <= value < MAX_TIME_S:
            findings.add("time-unit", "seconds since 1970", quote(value), f"response.{key}")
    if len(times) == 2 and times["completed_at"] < times["created_at"]:
        findings.add("time-order", f"at least created_at, {times['created_at']}", quote(times["completed_at"]))
