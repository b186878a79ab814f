"""Pagination of lists: the query parameters `order`, `limit` and `after`."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.app.errors import clip_text, invalid_type, invalid_value
from antiphon.app.requests import validators as c
from antiphon.events.inputs import AnyInput

MAX_LIMIT = 100
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
    is_descending = _read_order(query) == "desc"
    start, after = 0, query.get("after")
    if after is not None:
        ids = [item.id for item in (reversed(items) if is_descending else items)]
        if after not in ids:
            raise invalid_value("after", f"Invalid 'after': item '{clip_text(after)}' is not in this list.")
        start = ids.index(after) + 1
    return ListPage(start, start + _read_limit(query), is_descending)


def _read_order(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    c.one_of(("asc", "desc"))(order, "order")
    return order


def _read_limit(query: Mapping[str, str]) -> int:
    limit = query.get("limit", DEFAULT_LIMIT)
    if not re.fullmatch(r"-?[0-9]{1,9}", limit):
        raise invalid_type("limit", "an integer", limit)
    c.integer_between(1, MAX_LIMIT)(int(limit), "limit")
    return int(limit)
