"""`/v1/organization/usage/completions`: requests and tokens by time, owner, key and model, in OpenAI's form."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.response import Response
from msgspec import structs

from antiphon.app.base.errors import (
    ApiError,
    clip_text,
    invalid_value,
    missing_field,
    unknown_field,
    unsupported_field,
)
from antiphon.app.context import AnyRequest, server_context
from antiphon.app.http.endpoints.endpoint import Endpoint, endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.usage import DIMENSIONS, UsagePage, build_usage_page, is_selected
from antiphon.app.replies.http_replies import json_reply
from antiphon.app.requests.query_fields import read_integer
from antiphon.app.store.history.usage_tables import UsageQuery
from antiphon.app.usage.recorder import KEPT_MINUTES, MINUTE_S

WIDTHS = {"1m": (MINUTE_S, 60, 1440), "1h": (3600, 24, 168), "1d": (86_400, 7, 31)}
"""Seconds of a bucket, and the default and the largest number of buckets on a page."""
MAX_TIME = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
LISTS = {"group_by": "", "models": "model", "api_key_ids": "key_id", "user_ids": "owner"}
"""Parameters that are lists, and the columns that they select."""
UNSUPPORTED = ("batch", "project_ids")


@endpoint(Endpoint("GET", "/v1/organization/usage/completions"))
async def list_usage(request: AnyRequest) -> Response[Any]:
    """Returns what keys have used. The key of an operator sees all owners, any other key its own owner only."""
    context, key = server_context(request), request_state(request.scope).key
    now = int(time.time())
    owners = {each.name: each.owner for each in context.keys if each.name}
    page = read_query(request.query_params.dict(), now, owners)
    if key.role != "operator":
        page = restrict_to_owner(page, key.owner)
    if page.query.period_s == MINUTE_S:
        rows = [row for row in context.usage.list_minutes() if is_selected(row, page.query)]
    else:
        rows = await context.usage.read_periods(page.query)
    names = {each.owner: each.name for each in context.keys if each.name}
    return json_reply(build_usage_page(page, rows, lambda owner: names.get(owner, owner)))


def restrict_to_owner(page: UsagePage, owner: str) -> UsagePage:
    """Returns a page of the sums of one owner. Raises `ApiError` 403 if it asks for another one."""
    if any(each != owner for each in page.query.only.get("owner", ())):
        message = "Only an API key whose role is 'operator' sees what other owners have used."
        raise ApiError(403, "insufficient_permissions", message, "user_ids")
    query = structs.replace(page.query, only={**page.query.only, "owner": (owner,)})
    return structs.replace(page, query=query)


def read_query(sent: Mapping[str, Any], now: int, owners: Mapping[str, str]) -> UsagePage:
    """Returns the page that the parameters name. `owners`: their ids by name. Raises `ApiError`."""
    lists, single = _split_parameters(sent)
    width = single.get("bucket_width", "1d")
    if width not in WIDTHS:
        raise invalid_value("bucket_width", "Invalid value: expected '1m', '1h' or '1d'.")
    period_s, default, largest = WIDTHS[width]
    if "start_time" not in single:
        raise missing_field("start_time")
    start = read_integer(single, "start_time", 0, 0, MAX_TIME)
    end = read_integer(single, "end_time", now + 1, 0, MAX_TIME)
    if end <= start:
        raise invalid_value("end_time", "Invalid 'end_time': expected a time after 'start_time'.")
    limit = read_integer(single, "limit", default, 1, largest)
    first = start - start % period_s
    if "page" in single:
        first = _read_page(single["page"], first, period_s)
    oldest = now - now % MINUTE_S - KEPT_MINUTES * MINUTE_S
    if width == "1m" and first < oldest:
        raise invalid_value(
            "start_time", f"Minutes are kept for the last hour: 'start_time' must be {oldest} or later."
        )
    last = min(first + limit * period_s, -(-end // period_s) * period_s)
    group_by = _read_group_by(lists.pop("group_by", []))
    only = {LISTS[name]: tuple(values) for name, values in lists.items()}
    if "owner" in only:
        only["owner"] = tuple(owners.get(name, name) for name in only["owner"])
    return UsagePage(
        query=UsageQuery(
            start=first, end=last, period_s=period_s, by=tuple(DIMENSIONS[name] for name in group_by), only=only
        ),
        group_by=group_by,
        next_start=last if last < end else None,
    )


def _split_parameters(sent: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Returns lists, which clients write as `name`, `name[]` or `name[0]`, and single values. Raises `ApiError`."""
    lists: dict[str, list[str]] = {}
    single: dict[str, str] = {}
    for written, value in sent.items():
        values: Sequence[str] = value if isinstance(value, list) else [value]
        name = re.sub(r"\[\d{0,3}\]$", "", written)
        if name in UNSUPPORTED:
            raise unsupported_field(name, "This server has no projects, and sums do not tell batches apart.")
        if name in LISTS:
            lists.setdefault(name, []).extend(values)
        elif written in ("start_time", "end_time", "bucket_width", "limit", "page"):
            if len(values) > 1:
                raise invalid_value(written, f"Invalid '{written}': it is sent more than once.")
            single[written] = values[0]
        else:
            raise unknown_field(written)
    return lists, single


def _read_page(sent: str, first: int, period_s: int) -> int:
    match = re.fullmatch(r"page_([0-9]{1,12})", sent)
    if match is None or int(match[1]) < first or int(match[1]) % period_s:
        raise invalid_value("page", "Invalid 'page': send the 'next_page' of the page before.")
    return int(match[1])


def _read_group_by(names: Sequence[str]) -> tuple[str, ...]:
    unknown = next((name for name in names if name not in DIMENSIONS), None)
    if unknown is not None:
        message = f"Invalid value '{clip_text(unknown)}': expected {', '.join(DIMENSIONS)}."
        raise ApiError(400, "invalid_value", message, "group_by")
    return tuple(dict.fromkeys(names))
