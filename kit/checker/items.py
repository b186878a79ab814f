"""The output items of one stream: their ids, indices and life from `added` to `done`."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.checker.hosted import FREEZABLE_TYPES, check_ended_shape, check_hosted_added
from antiphon.kit.checker.item_grammar import create_body
from antiphon.kit.checker.parts import ItemBody
from antiphon.kit.checker.schema import check_item_shape
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonEvent, as_list, as_text

CONSTANT_ITEM_KEYS = (
    "role",
    "name",
    "namespace",
    "phase",
    "server_label",
    "call_id",
    "approval_request_id",
    "container_id",
    "execution",
)
WHOLE_WHEN_ADDED = {"mcp_approval_request": ("arguments",)}
"""Keys that do not change either, by the kind of an item that is added and done at once."""
NAMED_CALL_TYPES = ("function_call", "custom_tool_call")
CALL_TYPES = (*NAMED_CALL_TYPES, "shell_call", "apply_patch_call", "local_shell_call")
"""Calls that the client runs."""
ADDED_STATUSES = ("in_progress", "completed", "incomplete", "failed", "searching", "interpreting", "generating", None)
"""Statuses of added items whose content does not come in events: they may be whole."""
DONE_STATUSES = ("completed", "incomplete", "failed", None)
EXTRA_DONE_STATUSES = {"image_generation_call": ("generating",)}
"""Statuses of done items besides those of all. OpenAI leaves an image that is done in the status generating."""
TOGETHER_TYPES = ("mcp_list_tools",)
"""Kinds of items that OpenAI opens together: it asks all servers for their tools at once."""
PAYLOAD_KEYS = ("content", "summary", "arguments", "input", "code")


class TrackedItem:
    """An item that a stream has added."""

    def __init__(self, index: int, item: Mapping[str, Any], body: ItemBody) -> None:
        self.index = index
        self.id = as_text(item.get("id"))
        self.type = as_text(item.get("type"))
        self.added = item
        self.body = body
        self.done: Mapping[str, Any] | None = None
        self.is_together = False
        """True for a kind of `TOGETHER_TYPES` if another one was open at the same time."""
        self.next_label = ""
        """Name of the first item of another kind that began while this one was open, if it is beside others."""

    @property
    def label(self) -> str:
        """Name for findings."""
        return f"{self.type} {self.id}" if self.id else f"{self.type} at output_index {self.index}"


class ItemsChecker:
    """Checks the item events of one stream."""

    def __init__(self, findings: FindingList) -> None:
        self._findings = findings
        self._ids: set[str] = set()
        self._call_ids: set[str] = set()
        self.items: dict[int, TrackedItem] = {}
        """Added items by output index, in the order of the stream."""

    @property
    def open_items(self) -> list[TrackedItem]:
        """Items without a done event."""
        return [tracked for tracked in self.items.values() if tracked.done is None]

    @property
    def done_items(self) -> list[Mapping[str, Any]]:
        """The items of the done events, in order."""
        return [tracked.done for tracked in self.items.values() if tracked.done is not None]

    def check_event(self, kind: str, event: JsonEvent) -> None:
        """Checks an event of an item; `kind` is its type without `response.`."""
        if kind not in ("output_item.added", "output_item.done"):
            self._check_content(kind, event)
        elif isinstance(item := event.get("item"), dict):
            check_item_shape(item, self._findings)
            check = self._check_added if kind == "output_item.added" else self._check_done
            check(event, item, f"{item.get('type')} {item.get('id')}")

    def _check_added(self, event: JsonEvent, item: Mapping[str, Any], label: str) -> None:
        is_together = self._check_open_items(item, label)
        if any(done.get("status") == "incomplete" for done in self.done_items):
            self._findings.add("item-after-incomplete", "no item after an incomplete one", "a new item", label)
        self._check_ids(item, label)
        if (filled := [key for key in PAYLOAD_KEYS if item.get(key) not in (None, "", [])]) and _is_streamed(item):
            self._findings.add("item-not-empty", "an added item without content", quote(item[filled[0]]), label)
        statuses = ("in_progress", None) if _is_streamed(item) else ADDED_STATUSES
        if item.get("status") not in statuses:
            self._findings.add("item-status", "in_progress", quote(item["status"]), label)
        check_hosted_added(item, label, self._findings)
        self._track(event, item, label)
        for tracked in self.open_items if is_together else ():
            tracked.is_together = True

    def _check_open_items(self, item: Mapping[str, Any], label: str) -> bool:
        """Reports that an item begins while others are open. Returns whether all are of a kind of `TOGETHER_TYPES`."""
        open_items, may_wait = self.open_items, item.get("type") in TOGETHER_TYPES
        if may_wait and all(tracked.type in TOGETHER_TYPES for tracked in open_items):
            code = "items-together"
        elif not may_wait and all(tracked.is_together for tracked in open_items):
            for tracked in open_items:  # it may lack its end; if that follows, the items are interleaved
                tracked.next_label = tracked.next_label or label
            return False
        else:
            code = "item-interleaved"
        for tracked in open_items[:1]:
            self._findings.add(code, f"output_item.done of {tracked.label}", "a new item", label)
        return bool(open_items) and code == "items-together"

    def _track(self, event: JsonEvent, item: Mapping[str, Any], label: str) -> None:
        expected = max(self.items, default=-1) + 1
        index = event.get("output_index", expected)
        if isinstance(index, int) and index in self.items:
            self._findings.add("output-index-reused", f"output_index {expected}", f"{index}, as the item before", label)
            index = expected
        elif index != expected or isinstance(index, bool):
            self._findings.add("output-index", f"output_index {expected}", quote(index), label)
            index = index if isinstance(index, int) and index > expected else expected
        body = create_body(as_text(item.get("type")), as_text(item.get("id")) or label, self._findings)
        self.items[index] = TrackedItem(index, item, body)

    def _check_ids(self, item: Mapping[str, Any], label: str) -> None:
        item_id, call_id = item.get("id"), item.get("call_id")
        if not item_id or not isinstance(item_id, str):
            self._findings.add("item-id-empty", "an id", quote(item_id), label)
        elif item_id in self._ids:
            self._findings.add("item-id-repeated", "an id of its own", quote(item_id), label)
        self._ids.add(as_text(item_id))
        if item.get("type") not in CALL_TYPES:
            return
        if not call_id:
            self._findings.add("call-id-empty", "a call_id", quote(call_id), label)
        elif as_text(call_id) in self._call_ids:
            self._findings.add("call-id-repeated", "a call_id of its own", quote(call_id), label)
        elif call_id == item_id:
            self._findings.add("call-id-is-item-id", "a call_id that differs from the id", quote(call_id), label)
        self._call_ids.add(as_text(call_id))
        if item.get("type") in NAMED_CALL_TYPES and not item.get("name"):
            self._findings.add("call-name-empty", "the name of a tool", quote(item.get("name")), label)

    def _check_done(self, event: JsonEvent, item: Mapping[str, Any], label: str) -> None:
        tracked = self._find_item(event, as_text(item.get("id")))
        if tracked is None:
            self._findings.add("item-never-added", "output_item.added before", "output_item.done", label)
            index = max(self.items, default=-1) + 1
            self.items[index] = tracked = TrackedItem(index, item, create_body("", label, self._findings))
            self._ids.add(tracked.id)
        elif tracked.done is not None:
            self._findings.add("item-done-repeated", "one output_item.done", "another one", tracked.label)
            return
        else:
            self._check_index(event, tracked, "output_item.done")
            self._check_constants(tracked, item)
            tracked.body.finish(item)
            if tracked.next_label:
                self._findings.add("item-interleaved", f"{label} done before", "a new item", tracked.next_label)
        check_ended_shape(item, self._findings)
        status = item.get("status", "completed")
        if status not in (*DONE_STATUSES, *EXTRA_DONE_STATUSES.get(as_text(item.get("type")), ())):
            self._findings.add("item-status", "completed or incomplete", quote(status), label)
        if status == "incomplete" and item.get("type") in (*CALL_TYPES, *FREEZABLE_TYPES):
            self._findings.add("incomplete-call-done", "no output_item.done of a call that was cut", "one", label)
        if item.get("type") == "message" and not as_list(item.get("content")):
            self._findings.add("message-without-parts", "a message with content", "none", label)
        tracked.done = item

    def _check_constants(self, tracked: TrackedItem, item: Mapping[str, Any]) -> None:
        if item.get("type") != tracked.added.get("type"):
            self._findings.add("item-type-changed", quote(tracked.type), quote(item.get("type")), tracked.label)
        if item.get("id") != tracked.added.get("id"):
            self._findings.add("item-id-changed", quote(tracked.id), quote(item.get("id")), tracked.label)
        for key in (*CONSTANT_ITEM_KEYS, *WHOLE_WHEN_ADDED.get(tracked.type, ())):
            self._check_constant(key, tracked, item)
        before, after = _read_target(tracked.added), _read_target(item)
        if before != after:
            self._findings.add("item-key-changed", quote(before), quote(after), f"{tracked.label} operation")

    def _check_constant(self, key: str, tracked: TrackedItem, later: Mapping[str, Any]) -> None:
        """Reports a key that differs from that of the added item."""
        if later.get(key) != tracked.added.get(key):
            code = "call-id-changed" if key == "call_id" else "item-key-changed"
            expected, actual = quote(tracked.added.get(key)), quote(later.get(key))
            self._findings.add(code, expected, actual, f"{tracked.label} {key}")

    def _check_content(self, kind: str, event: JsonEvent) -> None:
        item_id = as_text(event.get("item_id"))
        tracked = self._find_item(event, item_id)
        if tracked is None:
            self._findings.add(
                "event-outside-item", "output_item.added before it", kind, item_id or quote(event.get("output_index"))
            )
            return
        if tracked.done is not None:
            self._findings.add("event-of-closed-item", "no event after output_item.done", kind, tracked.label)
            return
        if "item_id" in event and item_id != tracked.id:
            self._findings.add("item-id-changed", quote(tracked.id), quote(event["item_id"]), tracked.label)
        self._check_index(event, tracked, kind)
        tracked.body.check_event(kind, event)
        if kind == "function_call_arguments.done" and "name" in event:
            self._check_constant("name", tracked, event)

    def _check_index(self, event: JsonEvent, tracked: TrackedItem, kind: str) -> None:
        index = event.get("output_index", tracked.index)
        if index != tracked.index:
            self._findings.add(
                "output-index-changed", f"output_index {tracked.index}", f"{quote(index)} in {kind}", tracked.label
            )

    def _find_item(self, event: JsonEvent, item_id: str) -> TrackedItem | None:
        """Returns the item with this id, else the one with the event's index, else the open one if it is alone."""
        if item_id:
            with_id = [tracked for tracked in self.items.values() if tracked.id == item_id]
            if with_id:
                return next((tracked for tracked in with_id if tracked.done is None), with_id[-1])
        index = event.get("output_index")
        if isinstance(index, int):
            return self.items.get(index)
        open_items = self.open_items
        return open_items[0] if len(open_items) == 1 else None


def _read_target(item: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Returns kind and path of a patch's operation."""
    operation = item.get("operation")
    return (operation.get("type"), operation.get("path")) if isinstance(operation, dict) else None


def _is_streamed(item: Mapping[str, Any]) -> bool:
    """Returns whether the content of an item of this kind comes in events of its own."""
    return item.get("type") in ("message", "reasoning", *NAMED_CALL_TYPES, "mcp_call", "code_interpreter_call")
