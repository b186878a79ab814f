"""Which part of a list a query asks for."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.app.errors import clip_text, invalid_type, invalid_value
from antiphon.app.requests import validators as c
from antiphon.events.inputs import AnyInput

MAX_LIMIT = 100
DEFAULT_LIMIT = "20"


class ListPage(Struct, frozen=True):
    """A part of a list: items from `start` up to `end`, counted from the end the list is read from."""

    start: int
    end: int
    descending: bool


def select_page(asked: Mapping[str, str], items: Sequence[AnyInput]) -> ListPage:
    """The page that the query asks for: `order` (desc), `limit` (20; 1 to 100), `after` an id. Raises `ApiError`."""
    falling = _read_order(asked) == "desc"
    start, after = 0, asked.get("after")
    if after is not None:
        ids = [item.id for item in (reversed(items) if falling else items)]
        if after not in ids:
            raise invalid_value("after", f"Invalid 'after': there is no item '{clip_text(after)}' in this list.")
        start = ids.index(after) + 1
    return ListPage(start, start + _read_limit(asked), falling)


def _read_order(asked: Mapping[str, str]) -> str:
    order = asked.get("order", "desc")
    c.one_of(("asc", "desc"))(order, "order")
    return order


def _read_limit(asked: Mapping[str, str]) -> int:
    sent = asked.get("limit", DEFAULT_LIMIT)
    if not re.fullmatch(r"-?[0-9]{1,9}", sent):
        raise invalid_type("limit", "an integer", sent)
    c.integer_between(1, MAX_LIMIT)(int(sent), "limit")
    return int(sent)
