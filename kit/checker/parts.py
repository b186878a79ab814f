"""Bodies of messages and reasoning items: parts, their deltas, their done events."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.kit.checker.schema import check_part_shape
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonEvent, JsonItem, as_list, as_objects, as_text

ROUNDING = 1e-6
"""Difference of a log-probability between the deltas and the item, where OpenAI rounds it to six digits."""
PART_KINDS = {
    "output_text": "output_text",
    "refusal": "refusal",
    "reasoning_text": "reasoning_text",
    "reasoning_summary_text": "summary_text",
}
"""Kind of part by the prefix of the events of its text."""
KINDS_OF_ITEM = {"message": ("output_text", "refusal"), "reasoning": ("reasoning_text", "summary_text")}


class _StreamedPart(msgspec.Struct):
    """A part between its added and its done event."""

    kind: str
    is_summary: bool
    text: str = ""
    is_text_done: bool = False
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ItemBody:
    """The events between `added` and `done` of one item. All are accepted if its kind is unknown, which is reported."""

    def check_event(self, kind: str, event: JsonEvent) -> None:
        """Checks an event; `kind` is its type without `response.`."""

    def finish(self, item: JsonItem) -> None:
        """Checks the item of `output_item.done` against the events."""

    def check_frozen(self, item: JsonItem) -> None:
        """Checks an item that stayed open, as the terminal response has it, against the events."""


class PartsBody(ItemBody):
    """Checks the events of one message or reasoning item."""

    def __init__(self, item_type: str, item_id: str, findings: FindingList) -> None:
        self._item_type = item_type
        self._subject = item_id
        self._findings = findings
        self._open: _StreamedPart | None = None
        self._content: list[Mapping[str, Any]] = []
        self._summary: list[Mapping[str, Any]] = []

    def check_event(self, kind: str, event: JsonEvent) -> None:
        """Checks an event; `kind` is its type without `response.`."""
        prefix, _, action = kind.rpartition(".")
        if prefix in ("content_part", "reasoning_summary_part"):
            is_summary = prefix == "reasoning_summary_part"
            if action == "added":
                self._add_part(is_summary, event)
            else:
                self._end_part(is_summary, event)
            return
        if prefix == "output_text.annotation":
            self._add_annotation(event)
            return
        if prefix not in PART_KINDS or PART_KINDS[prefix] not in KINDS_OF_ITEM[self._item_type]:
            self._findings.add("event-kind", f"events of a {self._item_type}", kind, self._subject)
            return
        part = self._find_part(kind, prefix, event)
        if part is None:
            return
        if action == "delta":
            self._add_delta(part, event)
        else:
            self._end_text(part, prefix, event)

    def finish(self, item: Mapping[str, Any]) -> None:
        """Checks the item of `output_item.done` against the parts."""
        if self._open is not None:
            self._findings.add("part-never-done", "content_part.done before output_item.done", "none", self._subject)
        for key, parts in (("content", self._content), ("summary", self._summary)):
            if not _is_same(as_list(item.get(key)), parts) and self._open is None:
                self._findings.add("item-differs-from-parts", quote(parts), quote(item.get(key)), self._subject)

    def check_frozen(self, item: Mapping[str, Any]) -> None:
        """Checks an item that stayed open, as the terminal response has it, against what was streamed."""
        for key, parts in (("content", self._content), ("summary", self._summary)):
            expected = [_part_text(part) for part in parts]
            if self._open is not None and self._open.is_summary == (key == "summary"):
                expected.append(self._open.text)
            actual = [_part_text(part) for part in as_objects(item.get(key))]
            if actual != expected:
                self._findings.add("open-item-differs", quote(expected), quote(actual), self._subject)

    def _add_part(self, is_summary: bool, event: JsonEvent) -> None:
        part = event.get("part")
        if not isinstance(part, dict):
            return
        check_part_shape(part, self._findings)
        kind = as_text(part.get("type"))
        if self._open is not None:
            self._findings.add("part-interleaved", "content_part.done of the part before", "a new part", self._subject)
        if kind not in KINDS_OF_ITEM[self._item_type] or is_summary != (kind == "summary_text"):
            self._findings.add("part-type", f"a part of a {self._item_type}", quote(kind), self._subject)
        if _part_text(part) or as_list(part.get("annotations")):
            self._findings.add("part-not-empty", "an empty part", quote(part), self._subject)
        self._check_index(is_summary, event)
        self._open = _StreamedPart(kind, is_summary)

    def _end_part(self, is_summary: bool, event: JsonEvent) -> None:
        part, opened = event.get("part"), self._open
        if opened is None:
            self._findings.add("part-never-added", "content_part.added before", "content_part.done", self._subject)
            if isinstance(part, dict):
                (self._summary if is_summary else self._content).append(part)
            return
        if not isinstance(part, dict):
            return
        check_part_shape(part, self._findings)
        self._check_index(is_summary, event)
        if part.get("type") != opened.kind:
            self._findings.add("part-type", quote(opened.kind), quote(part.get("type")), self._subject)
        if not opened.is_text_done:
            self._findings.add("part-text-never-done", "the done event of the text", "content_part.done", self._subject)
        if _part_text(part) != opened.text:
            self._findings.add("part-differs-from-deltas", quote(opened.text), quote(_part_text(part)), self._subject)
        if as_list(part.get("annotations")) != opened.annotations:
            self._findings.add(
                "annotations-differ", quote(opened.annotations), quote(part.get("annotations")), self._subject
            )
        if "logprobs" in part and as_list(part["logprobs"]) != opened.logprobs:
            code = "logprobs-differ" if as_list(part["logprobs"]) else "part-logprobs-empty"
            self._findings.add(code, quote(opened.logprobs), quote(part["logprobs"]), self._subject)
            part = {**part, "logprobs": opened.logprobs}  # the item is compared with what was streamed
        (self._summary if opened.is_summary else self._content).append(part)
        self._open = None

    def _find_part(self, kind: str, prefix: str, event: JsonEvent) -> _StreamedPart | None:
        part = self._open
        if part is None:
            self._findings.add("content-outside-part", "content_part.added before it", kind, self._subject)
            self._open = _StreamedPart(PART_KINDS[prefix], prefix == "reasoning_summary_text")
            return self._open
        if part.kind != PART_KINDS[prefix]:
            self._findings.add("part-type", f"events of a part {part.kind}", kind, self._subject)
            return None
        self._check_index(part.is_summary, event)
        return part

    def _check_index(self, is_summary: bool, event: JsonEvent) -> None:
        expected = len(self._summary if is_summary else self._content)
        actual = event.get("summary_index" if is_summary else "content_index", expected)
        if actual != expected:
            self._findings.add("part-index", str(expected), quote(actual), self._subject)

    def _add_delta(self, part: _StreamedPart, event: JsonEvent) -> None:
        delta = event.get("delta")
        if part.is_text_done:
            self._findings.add("delta-after-done", "no delta after the done event", quote(delta), self._subject)
        if delta == "":
            self._findings.add("delta-empty", "text in a delta", "an empty delta", self._subject)
        part.text += as_text(delta)
        part.logprobs += as_list(event.get("logprobs"))

    def _end_text(self, part: _StreamedPart, prefix: str, event: JsonEvent) -> None:
        text = event.get("refusal" if prefix == "refusal" else "text")
        if part.is_text_done:
            self._findings.add("done-repeated", "one done event", "another one", self._subject)
        if isinstance(text, str) and text != part.text:
            self._findings.add("done-differs-from-deltas", quote(part.text), quote(text), self._subject)
        if "logprobs" in event and as_list(event["logprobs"]) != part.logprobs:
            self._findings.add("logprobs-differ", quote(part.logprobs), quote(event["logprobs"]), self._subject)
        part.is_text_done = True

    def _add_annotation(self, event: JsonEvent) -> None:
        part = self._open
        if part is None or part.kind != "output_text":
            self._findings.add(
                "content-outside-part", "content_part.added before it", "output_text.annotation.added", self._subject
            )
            return
        self._check_index(part.is_summary, event)
        if event.get("annotation_index") != len(part.annotations):
            self._findings.add(
                "annotation-index", str(len(part.annotations)), quote(event.get("annotation_index")), self._subject
            )
        part.annotations.append(event.get("annotation"))


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are the same, apart from the last digits of log-probabilities."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, abs_tol=ROUNDING)
    return bool(one == other)


def _part_text(part: Mapping[str, Any]) -> str:
    return as_text(part.get("text")) + as_text(part.get("refusal"))
