"""Pagination of lists: the query parameters `order`, `limit` and `after`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, get_args

from litestar.datastructures import MultiDict
from msgspec import Meta, Struct

from antiphon.app.base.errors import clip_text, invalid_value
from antiphon.app.requests.fields.checks import build_check, check_choice
from antiphon.app.requests.query_fields import parse_integer
from antiphon.app.requests.responses.body import Includable
from antiphon.events.inputs import AnyInput

MAX_LIMIT = 100
MAX_FILES_LIMIT = 10_000
"""Largest and default `limit` of a list of files."""
MAX_ANTHROPIC_FILES = 1000
"""Largest `limit` of a list of files in Anthropic's API."""
MAX_LISTED_IDS = 100
PAGE_PREFIX = "page_"
"""Begins the name of a page in Anthropic's API. The rest is the id of the last entry before it."""
DEFAULT_LIMIT = "20"


class ListPage(Struct, frozen=True):
    """A page of a list: items `start` to `end` (exclusive), counted from the end of the list if `descending`."""

    start: int
    end: int
    descending: bool


def select_page(query: Mapping[str, str], items: Sequence[AnyInput]) -> ListPage:
    """Returns the page for a query: `order` (default desc), `limit` (1 to 100, default 20), `after` (an id).

    Raises `ApiError` 400.
    """
    return select_ids(query, [item.id for item in items], "desc")


def select_ids(query: Mapping[str, str], ids: Sequence[str | None], default_order: str) -> ListPage:
    """Returns the page of a list with these ids. Raises `ApiError` 400."""
    is_descending = read_order(query, default_order) == "desc"
    start, after = 0, query.get("after")
    if after is not None:
        ordered = ids[::-1] if is_descending else ids
        if after not in ordered:
            raise invalid_value("after", f"Invalid 'after': item '{clip_text(after)}' is not in this list.")
        start = ordered.index(after) + 1
    return ListPage(start, start + read_limit(query), is_descending)


def read_include(query: MultiDict[str]) -> frozenset[str]:
    """Returns the values of `include`, which SDKs also send as `include[]`. Raises `ApiError` 400."""
    sent = [value for name in ("include", "include[]") for value in query.getall(name, [])]
    for value in sent:
        check_choice(value, get_args(Includable), "include")
    return frozenset(sent)


def read_ids(query: MultiDict[str]) -> list[str]:
    """Returns the ids that a list of Anthropic's API is limited to, each once; none if it is not. Raises `ApiError`."""
    ids = [*dict.fromkeys(value for name in ("ids", "ids[]") for value in query.getall(name, []))]
    if ids and ("page" in query or "limit" in query):
        raise invalid_value("ids", "Invalid 'ids': it cannot be combined with 'page' or 'limit'.")
    if len(ids) > MAX_LISTED_IDS:
        raise invalid_value("ids", f"Invalid 'ids': at most {MAX_LISTED_IDS} are allowed.")
    return ids


def read_page(query: Mapping[str, str]) -> str | None:
    """Returns the id of the last entry before a page of Anthropic's API. Raises `ApiError` 400."""
    page = query.get("page")
    if page is None:
        return None
    if not page.startswith(PAGE_PREFIX):
        raise invalid_value("page", "Invalid 'page': it is not the 'next_page' of a list.")
    return page.removeprefix(PAGE_PREFIX)


def read_order(query: Mapping[str, str], default_order: str) -> str:
    """Returns `order`. Raises `ApiError` 400."""
    order = query.get("order", default_order)
    check_choice(order, ("asc", "desc"), "order")
    return order


def read_limit(query: Mapping[str, str], default: str = DEFAULT_LIMIT, largest: int = MAX_LIMIT) -> int:
    """Returns `limit`. Raises `ApiError` 400."""
    limit = query.get("limit", default)
    number = parse_integer(limit, "limit")
    build_check(Annotated[int, Meta(ge=1, le=largest)])(number, "limit")
    return number
