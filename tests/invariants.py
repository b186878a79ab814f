"""Invariants of every Responses stream, checked by all tests that read one, with the checker of the kit."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.kit.checker.stream import StreamChecker

Event = dict[str, Any]
MODEL_FAULTS = {
    "tool-unknown",
    "arguments-not-json",
    "arguments-not-object",
    "arguments-schema-not-strict",
    "text-not-json",
    "text-schema-not-strict",
}
"""Codes of faults of a model, which a script can have: the server passes on what the model writes."""


def check_stream(events: Sequence[Event], request: Mapping[str, Any] | None = None) -> Event:
    """Checks a whole stream, from `response.created` to its terminal event. Returns the terminal response.

    `events` are decoded events, in order. Raises an `AssertionError` that lists the findings, warnings among them.
    """
    checker = StreamChecker(request)
    for event in events:
        checker.check_event(event)
    findings = [finding for finding in checker.finish() if finding.code not in MODEL_FAULTS]
    assert not findings, "\n".join(map(str, findings))
    assert checker.final_response is not None
    return dict(checker.final_response)
