"""The sequence numbers of one stream."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.findings import FindingList, quote

KEY = "sequence_number"


class SequenceChecker:
    """Checks that the numbers grow by one from event to event."""

    def __init__(self, findings: FindingList, first_number: int) -> None:
        self._findings = findings
        self._first_number = self._next_number = first_number
        self._num_events = self._num_absent = 0

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Checks the number of an event, the findings' current one."""
        self._num_events += 1
        number = event.get(KEY)
        if KEY not in event and self._num_absent == self._num_events - 1:
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
        if event.get(KEY) == self._next_number:
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
