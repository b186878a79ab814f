"""Bodies of items: the events between `added` and `done`, and the text that they carry."""

from typing import Any

from antiphon.kit.checker.grammar import BODIES, DONE_FIELDS, ITEM_FIELDS, OPTIONAL_TEXTS, BodyGrammar, BodyMatcher
from antiphon.kit.checker.hosted import ENDED_TYPES, check_hosted_end
from antiphon.kit.checker.parts import KINDS_OF_ITEM, ItemBody, PartsBody
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonEvent, JsonItem, as_text

COUNTED_PLACES = {
    "shell_call_command": "command_index",
    "image_generation_call.partial_image": "partial_image_index",
}
"""Fields that count places in one item, by the events that have them."""


class SequenceBody(ItemBody):
    """Checks an item whose events are one sequence, with at most one streamed text at a time."""

    def __init__(self, item_type: str, subject: str, findings: FindingList) -> None:
        self._type = item_type
        self._subject = subject
        self._findings = findings
        self._matcher = BodyMatcher(BODIES.get(item_type, BodyGrammar()))
        self._text = ""
        self._all_texts: list[str] = []
        """Texts of an item that has several, the open one last."""
        self._has_events = False
        self._ending: str | None = None
        self._num_places = dict.fromkeys(COUNTED_PLACES, 0)

    def check_event(self, kind: str, event: JsonEvent) -> None:
        """Checks the order of the event, and its text if it has one."""
        prefix, _, action = kind.rpartition(".")
        if not self._is_known(kind):
            self._findings.add("event-kind", f"events of a {self._type}", kind, self._subject)
            return
        self._check_order(kind, action)
        self._check_place(kind, event)
        if prefix in ENDED_TYPES and action in ("completed", "failed"):
            self._ending = action
        if prefix not in DONE_FIELDS:
            return
        self._has_events = True
        if action == "added":
            self._text = ""
            self._all_texts.append("")
        elif action == "delta":
            if event.get("delta") == "":
                self._findings.add("delta-empty", "text in a delta", "an empty delta", self._subject)
            self._text += as_text(event.get("delta"))
            self._all_texts[-1:] = [self._text]
        elif action == "done":
            text = event.get(DONE_FIELDS[prefix])
            if isinstance(text, str) and text != self._text:
                self._findings.add("done-differs-from-deltas", quote(self._text), quote(text), self._subject)

    def _check_order(self, kind: str, action: str) -> None:
        expected = self._matcher.list_expected()
        if self._matcher.accept(kind):
            return
        code = "delta-after-done" if action == "delta" else "done-repeated" if action == "done" else "body-order"
        if kind in expected or any(missing.endswith(".done") for missing in expected):
            code = "body-order"
        self._findings.add(code, " or ".join(expected) or "output_item.done", kind, self._subject)

    def finish(self, item: JsonItem) -> None:
        """Reports events that never came, and a text that differs from the streamed one."""
        missing = self._matcher.list_missing()
        if item.get("status") == "failed":  # a tool may fail before it begins to search
            missing = [kind for kind in missing if kind.endswith((".in_progress", ".done"))]
        if missing:
            self._findings.add("body-unfinished", " and ".join(missing), "output_item.done", self._subject)
        check_hosted_end(item, self._ending, self._subject, self._findings)
        expected, actual = self._compare_text(item)
        if actual is not None and actual != expected:
            self._findings.add("item-differs-from-deltas", quote(expected), quote(actual), self._subject)

    def check_frozen(self, item: JsonItem) -> None:
        """Checks the text of an item that stayed open, and that its tool had not ended."""
        if self._ending is not None:
            expected = f"output_item.done after {self._type}.{self._ending}"
            self._findings.add("item-never-done", expected, "none", self._subject)
        expected, actual = self._compare_text(item)
        if (self._type in ITEM_FIELDS and actual is None and expected) or actual not in (None, expected):
            self._findings.add("open-item-differs", quote(expected), quote(actual), self._subject)

    def _compare_text(self, item: JsonItem) -> tuple[Any, Any]:
        """Returns the streamed text and the item's; the same for both if the item need not have what was streamed."""
        value: Any = item
        for key in ITEM_FIELDS.get(self._type, ()):
            value = value.get(key) if isinstance(value, dict) else None
        if self._type not in ITEM_FIELDS or (self._type in OPTIONAL_TEXTS and not self._has_events):
            return None, None
        streamed = self._all_texts if isinstance(value, list) else self._text
        return streamed, value if isinstance(value, str | list) else None

    def _check_place(self, kind: str, event: JsonEvent) -> None:
        """Checks the index of a command or of a picture. The last event of a place ends it."""
        prefix, _, action = kind.rpartition(".")
        name = prefix if prefix in COUNTED_PLACES else kind
        if name not in COUNTED_PLACES:
            return
        field, expected = COUNTED_PLACES[name], self._num_places[name]
        if event.get(field, expected) != expected:
            self._findings.add("command-index", str(expected), quote(event[field]), self._subject)
        if action in ("done", "partial_image"):
            self._num_places[name] += 1

    def _is_known(self, kind: str) -> bool:
        return any(kind in step.kinds for step in BODIES.get(self._type, BodyGrammar()).steps)


def create_body(item_type: str, subject: str, findings: FindingList) -> ItemBody:
    """Returns the checker for the events of an item of this kind."""
    if item_type in KINDS_OF_ITEM:
        return PartsBody(item_type, subject, findings)
    if not item_type or ":" in item_type:
        return ItemBody()
    return SequenceBody(item_type, subject, findings)
