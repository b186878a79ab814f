"""`/v1/organization/usage/completions`: requests and tokens by time, owner, key and model, in OpenAI's form."""

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from litestar.response import Response
from msgspec import Meta, structs

from antiphon.app.context import AnyRequest, request_query, server_context
from antiphon.app.errors import (
    ApiError,
    invalid_value,
)
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.usage import DIMENSIONS, UsagePage, build_usage_page, is_selected
from antiphon.app.requests.fields.checks import require_value
from antiphon.app.requests.query_fields import Query
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.store.history.usage_tables import UsageQuery
from antiphon.app.usage.recorder import KEPT_MINUTES, MINUTE_S

BUCKET_WIDTHS = {"1m": (MINUTE_S, 60, 1440), "1h": (3600, 24, 168), "1d": (86_400, 7, 31)}
"""Seconds of a bucket, and the default and the largest number of buckets on a page."""
MAX_TIME = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
Time = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class CompletionsUsageQuery(Query, frozen=True, kw_only=True):
    """Query of the sums of what keys have used."""

    refused = dict.fromkeys(
        ("batch", "project_ids"), "This server has no projects, and sums do not tell batches apart."
    )

    start_time: Time | None = None
    """Required. Start in seconds since 1970."""
    end_time: Time | None = None
    """End, exclusive. Default: now."""
    bucket_width: Literal["1m", "1h", "1d"] = "1d"
    """Period of a bucket."""
    limit: Annotated[int, Meta(ge=1, le=1440)] | None = None
    """Most buckets: 31 days, 168 hours, 1440 minutes."""
    page: str | None = None
    """The `next_page` of the page before."""
    group_by: tuple[Literal["model", "api_key_id", "user_id"], ...] = ()
    """Sums of each of these."""
    models: tuple[str, ...] = ()
    """Only these."""
    api_key_ids: tuple[str, ...] = ()
    """Only these."""
    user_ids: tuple[str, ...] = ()
    """Only these."""


@endpoint("GET", "/v1/organization/usage/completions", query=CompletionsUsageQuery)
async def list_usage(request: AnyRequest) -> Response[Any]:
    """Returns what keys have used. The key of an operator sees all owners, any other key its own owner only."""
    context, key = server_context(request), request_state(request.scope).key
    now = int(time.time())
    owners = {each.name: each.owner for each in context.keys if each.name}
    page = read_query(request_query(request, CompletionsUsageQuery), now, owners)
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


def read_query(query: CompletionsUsageQuery, now: int, owners: Mapping[str, str]) -> UsagePage:
    """Returns the page that the query names. `owners`: their ids by name. Raises `ApiError`."""
    period_s, default, largest = BUCKET_WIDTHS[query.bucket_width]
    start, end = require_value(query.start_time, "start_time"), now + 1 if query.end_time is None else query.end_time
    if end <= start:
        raise invalid_value("end_time", "Invalid 'end_time': expected a time after 'start_time'.")
    limit = default if query.limit is None else query.limit
    if limit > largest:
        raise invalid_value("limit", f"Invalid 'limit': it must be between 1 and {largest}.")
    first = start - start % period_s
    if query.page is not None:
        first = _read_page(query.page, first, period_s)
    oldest = now - now % MINUTE_S - KEPT_MINUTES * MINUTE_S
    if query.bucket_width == "1m" and first < oldest:
        raise invalid_value(
            "start_time", f"Minutes are kept for the last hour: 'start_time' must be {oldest} or later."
        )
    last = min(first + limit * period_s, -(-end // period_s) * period_s)
    group_by = tuple(dict.fromkeys(query.group_by))
    wanted = {"model": query.models, "key_id": query.api_key_ids, "owner": query.user_ids}
    only = {column: values for column, values in wanted.items() if values}
    if "owner" in only:
        only["owner"] = tuple(owners.get(name, name) for name in only["owner"])
    return UsagePage(
        query=UsageQuery(
            start=first, end=last, period_s=period_s, by=tuple(DIMENSIONS[name] for name in group_by), only=only
        ),
        group_by=group_by,
        next_start=last if last < end else None,
    )


def _read_page(sent: str, first: int, period_s: int) -> int:
    match = re.fullmatch(r"page_([0-9]{1,12})", sent)
    if match is None or int(match[1]) < first or int(match[1]) % period_s:
        raise invalid_value("page", "Invalid 'page': send the 'next_page' of the page before.")
    return int(match[1])
