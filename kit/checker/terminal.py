"""The terminal response against the items that were streamed, and responses against each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.kit.checker.items import CALL_TYPES, ItemsChecker
from antiphon.kit.checker.shapes import as_list, has_type
from antiphon.kit.findings import FindingList, quote

Response = Mapping[str, Any]
UNSTABLE_KEYS = ("id", "call_id", "encrypted_content")


def check_output(response: Response, items: ItemsChecker, findings: FindingList) -> None:
    """Checks that `output` is the list of the done items, followed by at most one item that stayed open."""
    output, done = as_list(response.get("output")), items.done_items
    status = response.get("status")
    frozen = items.open_items
    if status == "completed":
        for tracked in frozen:
            findings.add("item-never-done", "output_item.done before response.completed", "none", tracked.label)
    elif status == "incomplete":
        for tracked in frozen:
            if tracked.type not in CALL_TYPES:
                findings.add("item-never-done", "output_item.done of an item that was cut", "none", tracked.label)
    expected_ids = [item.get("id") for item in done]
    actual_ids = [item.get("id") for item in output if isinstance(item, dict)]
    if sorted(map(quote, expected_ids)) == sorted(map(quote, actual_ids)) and expected_ids != actual_ids:
        findings.add("output-order", quote(expected_ids), quote(actual_ids))
        return
    for position, item in enumerate(done):
        if position >= len(output):
            findings.add("output-item-missing", f"{item.get('type')} {item.get('id')} in the output", "no such item")
        else:
            _compare_items(item, output[position], findings)
    _check_rest(output[len(done) :], items, findings)
    _check_statuses(response, output, findings)


def _compare_items(streamed: Mapping[str, Any], final: object, findings: FindingList) -> None:
    label = f"{streamed.get('type')} {streamed.get('id')}"
    if final == streamed:
        return
    if not isinstance(final, dict) or final.get("type") != streamed.get("type"):
        findings.add("output-item-changed", label, quote(final), label)
        return
    if final.get("id") != streamed.get("id"):
        findings.add("output-id-changed", quote(streamed.get("id")), quote(final.get("id")), label)
    for key in sorted(streamed.keys() | final.keys()):
        if key != "id" and final.get(key) != streamed.get(key):
            findings.add("output-item-changed", quote(streamed.get(key)), quote(final.get(key)), f"{label} {key}")


def _check_rest(rest: Sequence[Any], items: ItemsChecker, findings: FindingList) -> None:
    open_items = {tracked.id: tracked for tracked in items.open_items}
    for item in rest:
        tracked = open_items.pop(str(item.get("id")), None) if isinstance(item, dict) else None
        if tracked is None:
            findings.add("output-item-never-streamed", "only items of the stream", quote(item))
            continue
        if item.get("status") != "incomplete" and tracked.type != "reasoning":
            findings.add("open-item-status", "incomplete", quote(item.get("status")), tracked.label)
        tracked.body.check_frozen(item)
    for tracked in open_items.values():
        findings.add("open-item-missing", "the item in the output, as incomplete", "no such item", tracked.label)


def _check_statuses(response: Response, output: Sequence[Any], findings: FindingList) -> None:
    status = response.get("status")
    for position, item in enumerate(output):
        if not isinstance(item, dict):
            continue
        label = f"{item.get('type')} {item.get('id')}"
        if item.get("status") == "in_progress":
            findings.add("output-item-in-progress", "completed or incomplete", '"in_progress"', label)
        if item.get("status") != "incomplete":
            continue
        if status == "completed":
            findings.add("incomplete-item-in-completed", "response.incomplete", f"status {status}", label)
        if position < len(output) - 1:
            findings.add("incomplete-item-not-last", "an incomplete item last", "an item after it", label)
    if len(output) > 1:
        for item in output:
            if isinstance(item, dict) and item.get("type") == "message" and _is_blank(item):
                findings.add(
                    "message-blank", "text in a message", "white space only", f"{item.get('type')} {item.get('id')}"
                )


def check_usage(response: Response, findings: FindingList) -> None:
    """Checks the token counts of a terminal response."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        if response.get("status") in ("completed", "incomplete") and "usage" in response:
            findings.add("usage-missing", "token counts", quote(usage))
        return
    keys = ("input_tokens", "output_tokens", "total_tokens")
    broken = [key for key in keys if not has_type(usage.get(key), (int,))]
    for key in broken:
        findings.add("usage-field", "an integer", quote(usage.get(key)), f"usage.{key}")
    _check_details(usage, "input_tokens", "cached_tokens", findings)
    _check_details(usage, "output_tokens", "reasoning_tokens", findings)
    if broken:
        return
    if usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
        findings.add("usage-total", str(usage["input_tokens"] + usage["output_tokens"]), str(usage["total_tokens"]))
    if any(usage[key] < 0 for key in keys):
        findings.add("usage-field", "counts that are not negative", quote(usage))
    limit = response.get("max_output_tokens")
    if isinstance(limit, int) and usage["output_tokens"] > limit:
        findings.add("usage-limit", f"at most max_output_tokens, {limit}", str(usage["output_tokens"]))


def _check_details(usage: Mapping[str, Any], whole_key: str, part_key: str, findings: FindingList) -> None:
    details, whole = usage.get(f"{whole_key}_details"), usage.get(whole_key)
    part = details.get(part_key) if isinstance(details, dict) else None
    if not isinstance(part, int):
        findings.add("usage-field", "an integer", quote(part), f"usage.{whole_key}_details.{part_key}")
    elif isinstance(whole, int) and not 0 <= part <= whole:
        findings.add("usage-part", f"at most the {whole} {whole_key}", str(part), f"usage.{part_key}")


def compare_responses(streamed: Response, other: Response, code: str, findings: FindingList) -> None:
    """Reports each key in which another copy of a response (GET, a replay) differs from the streamed one."""
    for key in sorted(streamed.keys() | other.keys()):
        if streamed.get(key) != other.get(key):
            findings.add(code, quote(streamed.get(key)), quote(other.get(key)), f"response.{key}")


def _is_blank(item: Mapping[str, Any]) -> bool:
    parts = [part for part in as_list(item.get("content")) if isinstance(part, dict)]
    return not "".join(str(part.get("text", part.get("refusal", ""))) for part in parts).strip()
