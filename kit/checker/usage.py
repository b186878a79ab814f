"""The token counts of a terminal response."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.checker.schema import as_objects, as_text, has_type
from antiphon.kit.findings import FindingList, quote

JsonResponse = Mapping[str, Any]
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
