"""The terminal response against the items that were streamed, its token counts, and responses against each other."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.kit.checker.hosted import FREEZABLE_TYPES, check_ended_shape, has_failed_list, is_same_reading
from antiphon.kit.checker.items import CALL_TYPES, CONSTANT_ITEM_KEYS, ItemsChecker, TrackedItem
from antiphon.kit.checker.schema import check_item_shape, has_type
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonItem, JsonResponse, as_list, as_objects, as_text

SHOWING_REASONING = ("reasoning", "compaction")
"""Kinds of items that reasoning tokens are spent on: what a compaction has thought is sealed in it."""
MAX_BLANK_TOKENS = 2
"""Tokens of reasoning that has white space only, for which no item is made."""
COUNTS = ("input_tokens", "output_tokens", "total_tokens")


def check_usage(response: JsonResponse, request: Mapping[str, Any] | None, findings: FindingList) -> None:
    """Checks the token counts of a terminal response. The limit is that of the request, if it is known."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        if response.get("status") in ("completed", "incomplete"):
            findings.add("usage-missing", "token counts", quote(usage))
        return
    broken = [key for key in COUNTS if not has_type(usage.get(key), (int,))]
    for key in broken:
        findings.add("usage-field", "an integer", quote(usage.get(key)), f"usage.{key}")
    _check_details(usage, "input_tokens", "cached_tokens", findings)
    _check_details(usage, "output_tokens", "reasoning_tokens", findings)
    if broken:
        return
    if usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
        findings.add("usage-total", str(usage["input_tokens"] + usage["output_tokens"]), str(usage["total_tokens"]))
    if any(usage[key] < 0 for key in COUNTS):
        findings.add("usage-field", "counts that are not negative", quote(usage))
    limit = (response if request is None else request).get("max_output_tokens")
    reasoning = _read_reasoning_tokens(usage)
    if isinstance(limit, int) and usage["output_tokens"] > limit:
        is_reasoning = usage["output_tokens"] - reasoning <= limit
        code = "usage-limit-reasoning" if is_reasoning else "usage-limit"
        findings.add(code, f"at most max_output_tokens, {limit}", str(usage["output_tokens"]))
    _check_output(as_objects(response.get("output")), usage["output_tokens"], reasoning, findings)


def _check_output(output: list[dict[str, Any]], count: int, reasoning: int, findings: FindingList) -> None:
    """Compares the counts with what the output shows."""
    if count == 0 and any(map(_has_generated_text, output)):
        findings.add("usage-no-output", "tokens of the output", "0 output_tokens")
    if reasoning > MAX_BLANK_TOKENS and not any(item.get("type") in SHOWING_REASONING for item in output):
        findings.add("usage-hidden-reasoning", "a reasoning item", f"{reasoning} reasoning_tokens without one")


def _has_generated_text(item: Mapping[str, Any]) -> bool:
    """Tells whether tokens of this response are in the item. An approved call was generated in an earlier one."""
    if item.get("type") == "mcp_call" and item.get("approval_request_id"):
        return False
    parts = [*as_objects(item.get("content")), *as_objects(item.get("summary")), item]
    return any(as_text(part.get(key)) for part in parts for key in ("text", "refusal", "arguments", "input"))


def _read_reasoning_tokens(usage: Mapping[str, Any]) -> int:
    details = usage.get("output_tokens_details")
    count = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _check_details(usage: Mapping[str, Any], whole_key: str, part_key: str, findings: FindingList) -> None:
    details, whole = usage.get(f"{whole_key}_details"), usage.get(whole_key)
    parts: dict[str, Any] = details if isinstance(details, dict) else {}
    if not has_type(parts.get(part_key), (int,)):
        findings.add("usage-field", "an integer", quote(parts.get(part_key)), f"usage.{whole_key}_details.{part_key}")
    for key, part in parts.items():
        if isinstance(part, int) and isinstance(whole, int) and not 0 <= part <= whole:
            findings.add("usage-part", f"at most the {whole} {whole_key}", str(part), f"usage.{key}")


FROZEN_STATUSES = {
    "apply_patch_call": "in_progress",
    "compaction": None,
    "mcp_list_tools": None,
    "mcp_approval_request": None,
}
"""Statuses of cut items other than `incomplete`."""
UNSTABLE_KEYS = ("id", "call_id", "encrypted_content")


def check_output(response: JsonResponse, items: ItemsChecker, findings: FindingList) -> None:
    """Checks that `output` is the list of the done items, followed by at most one item that stayed open."""
    output = as_list(response.get("output"))
    status = response.get("status")
    frozen = items.open_items
    if status == "completed":
        for tracked in frozen:
            found = next((item for item in as_objects(output) if item.get("id") == tracked.id), {})
            code = "together-never-done" if _is_whole(tracked, found) else "item-never-done"
            findings.add(code, "output_item.done before response.completed", "none", tracked.label)
    elif status == "incomplete":
        for tracked in frozen:
            if tracked.type not in (*CALL_TYPES, *FREEZABLE_TYPES, "compaction", "tool_search_call"):
                findings.add("item-never-done", "output_item.done of an item that was cut", "none", tracked.label)
    rest = _compare_output(items.done_items, output, [tracked.id for tracked in frozen], findings)
    _check_rest(rest, items, findings)
    _check_statuses(response, output, findings)
    if status != "failed" and has_failed_list(items.done_items):
        findings.add("failed-list", "response.failed after a list of tools that failed", f"status {quote(status)}")


def _is_whole(tracked: TrackedItem, item: JsonItem) -> bool:
    """Returns whether an open item that was beside others of its kind has its list, or an error, at the end."""
    return tracked.is_together and bool(item.get("tools") or item.get("error"))


def _compare_output(
    done: Sequence[JsonItem], output: Sequence[Any], open_ids: Sequence[str], findings: FindingList
) -> list[Any]:
    """Compares the done items with those of the final output. Returns entries of the output that are none of them.

    Items belong together by their ids, so that one item too many or too few is one finding. What is left belongs
    together by kind and order: those ids have changed.
    """
    by_id = _group_positions(output, lambda entry: quote(_read_id(entry)))
    pairs = {number: found.popleft() for number, item in enumerate(done) if (found := by_id[quote(item.get("id", ""))])}
    taken = set(pairs.values())
    changed = [each for number, each in enumerate(output) if number not in taken and _read_id(each) not in open_ids]
    by_type = _group_positions(changed, lambda entry: quote(_read_type(entry)))
    for number, item in enumerate(done):
        if number in pairs:
            continue
        if found := by_type[quote(item.get("type"))]:
            entry = changed[found.popleft()]
            pairs[number] = next(position for position, each in enumerate(output) if each is entry)
        else:
            findings.add("output-item-missing", f"{item.get('type')} {item.get('id')} in the output", "no such item")
    _check_order(done, pairs, findings)
    for number in sorted(pairs):
        _compare_items(done[number], output[pairs[number]], findings)
    taken = set(pairs.values())
    return [entry for position, entry in enumerate(output) if position not in taken]


def _group_positions(entries: Sequence[Any], read_key: Callable[[Any], str]) -> defaultdict[str, deque[int]]:
    """Returns the positions of the entries by a key, each in order."""
    positions: defaultdict[str, deque[int]] = defaultdict(deque)
    for position, entry in enumerate(entries):
        positions[read_key(entry)].append(position)
    return positions


def _check_order(done: Sequence[JsonItem], pairs: Mapping[int, int], findings: FindingList) -> None:
    """Checks that pairs of a done item and its place in the output have one order."""
    expected = sorted(pairs)
    actual = sorted(pairs, key=lambda number: pairs[number])
    if expected != actual:
        ids = [[done[number].get("id") for number in numbers] for numbers in (expected, actual)]
        findings.add("output-order", quote(ids[0]), quote(ids[1]))


def _read_id(entry: object) -> object:
    return entry.get("id", "") if isinstance(entry, dict) else None


def _read_type(entry: object) -> object:
    return entry.get("type") if isinstance(entry, dict) else None


def _compare_items(streamed: JsonItem, final: JsonItem, findings: FindingList) -> None:
    label = f"{streamed.get('type')} {streamed.get('id')}"
    if final == streamed:
        return
    if final.get("type") != streamed.get("type"):
        findings.add("output-item-changed", label, quote(final), label)
        return
    if final.get("id") != streamed.get("id"):
        findings.add("output-id-changed", quote(streamed.get("id")), quote(final.get("id")), label)
    for key in sorted(streamed.keys() | final.keys()):
        before, after = streamed.get(key), final.get(key)
        if key == "id" or before == after:
            continue
        is_reencrypted = key == "encrypted_content" and bool(as_text(before)) and bool(as_text(after))
        code = "output-reencrypted" if is_reencrypted else "output-item-changed"
        findings.add(code, quote(before), quote(after), f"{label} {key}")


def _check_rest(rest: Sequence[Any], items: ItemsChecker, findings: FindingList) -> None:
    open_items = {tracked.id: tracked for tracked in items.open_items}
    for item in rest:
        tracked = open_items.pop(str(item.get("id")), None) if isinstance(item, dict) else None
        if tracked is None:
            findings.add("output-item-never-streamed", "only items of the stream", quote(item))
            continue
        check_item_shape(item, findings)
        check_ended_shape(item, findings)
        for key in ("type", *CONSTANT_ITEM_KEYS):
            if item.get(key) != tracked.added.get(key):
                expected, actual = quote(tracked.added.get(key)), quote(item.get(key))
                findings.add("open-item-changed", expected, actual, f"{tracked.label} {key}")
        status = _frozen_status(item)
        if item.get("status") != status and tracked.type != "reasoning":
            findings.add("open-item-status", quote(status), quote(item.get("status")), tracked.label)
        (tracked.body.finish if _is_whole(tracked, item) else tracked.body.check_frozen)(item)
    for tracked in open_items.values():
        findings.add("open-item-missing", "the item in the output, as incomplete", "no such item", tracked.label)


def _frozen_status(item: JsonItem) -> str | None:
    """Returns the status of an item of this kind that was cut; None for a kind without a status."""
    return FROZEN_STATUSES.get(as_text(item.get("type")), "incomplete")


def _check_statuses(response: JsonResponse, output: Sequence[Any], findings: FindingList) -> None:
    status = response.get("status")
    for position, item in enumerate(output):
        if not isinstance(item, dict):
            continue
        label = f"{item.get('type')} {item.get('id')}"
        if item.get("status") == "in_progress" != _frozen_status(item):
            findings.add("output-item-in-progress", "completed or incomplete", '"in_progress"', label)
        if item.get("status") is None or item["status"] != _frozen_status(item):
            continue
        if status == "completed":
            findings.add("incomplete-item-in-completed", "response.incomplete", f"status {status}", label)
        if position < len(output) - 1:
            findings.add("incomplete-item-not-last", "an incomplete item last", "an item after it", label)
    if len(output) > 1:
        for position, item in enumerate(output):
            if _read_type(item) == "message" and _is_blank(item) and not _follows_image(output, position):
                findings.add("message-blank", "text in a message", "white space only", f"message {item.get('id')}")


def compare_responses(streamed: JsonResponse, other: JsonResponse, code: str, findings: FindingList) -> None:
    """Reports each key in which another copy of a response (GET, a replay) differs from the streamed one."""
    for key in sorted(streamed.keys() | other.keys()):
        if not is_same_reading(streamed.get(key), other.get(key)):
            findings.add(code, quote(streamed.get(key)), quote(other.get(key)), f"response.{key}")


def _follows_image(output: Sequence[Any], position: int) -> bool:
    """Returns whether an item follows a picture. OpenAI ends such a turn with an empty message."""
    return position > 0 and _read_type(output[position - 1]) == "image_generation_call"


def _is_blank(item: Mapping[str, Any]) -> bool:
    parts = as_objects(item.get("content"))
    return not "".join(str(part.get("text", part.get("refusal", ""))) for part in parts).strip()
