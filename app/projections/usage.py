"""Sums of usage as pages of OpenAI's `/v1/organization/usage/completions`."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from antiphon.app.store.history.usage_tables import UsageCounts, UsageQuery, UsageRow

DIMENSIONS = {"user_id": "owner", "api_key_id": "key_id", "model": "model"}
"""Names of OpenAI's API for the columns of the sums."""


class UsagePage(Struct, frozen=True, kw_only=True):
    """A page of buckets: which sums, and the first bucket of the next page, if there is one."""

    query: UsageQuery
    group_by: tuple[str, ...]
    next_start: int | None = None


def build_usage_page(page: UsagePage, rows: Iterable[UsageRow], name_owner: Callable[[str], str]) -> dict[str, Any]:
    """Returns the JSON value of a page. Every bucket is there, also one without a request.

    `name_owner` returns the name of an owner. Beside OpenAI's fields, a result has `output_reasoning_tokens`,
    `num_failed_requests` and `num_rejected_requests`.
    """
    query = page.query
    buckets: dict[int, dict[tuple[str, ...], UsageCounts]] = {
        start: {} for start in range(query.start, query.end, query.period_s)
    }
    for row in rows:
        start = row.start - row.start % query.period_s
        if start in buckets:
            group = tuple(getattr(row, DIMENSIONS[name]) for name in page.group_by)
            buckets[start].setdefault(group, UsageCounts()).add(row.counts)
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": start,
                "end_time": start + query.period_s,
                "results": [_build_result(page.group_by, *group, name_owner) for group in sorted(groups.items())],
            }
            for start, groups in buckets.items()
        ],
        "has_more": page.next_start is not None,
        "next_page": None if page.next_start is None else f"page_{page.next_start}",
    }


def is_selected(row: UsageRow, query: UsageQuery) -> bool:
    """Tells whether a query allows the owner, the key and the model of a row."""
    return all(getattr(row, column) in allowed for column, allowed in query.only.items())


def _build_result(
    group_by: tuple[str, ...], group: tuple[str, ...], counts: UsageCounts, name_owner: Callable[[str], str]
) -> dict[str, Any]:
    named = dict(zip(group_by, group, strict=True))
    if "user_id" in named:
        named["user_id"] = name_owner(named["user_id"])
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": counts.input_tokens,
        "input_cached_tokens": counts.cached_tokens,
        "output_tokens": counts.output_tokens,
        "output_reasoning_tokens": counts.reasoning_tokens,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": counts.requests,
        "num_failed_requests": counts.failures,
        "num_rejected_requests": counts.rejections,
        "project_id": None,
        "user_id": named.get("user_id") or None,
        "api_key_id": named.get("api_key_id") or None,
        "model": named.get("model") or None,
        "batch": None,
        "service_tier": None,
    }
