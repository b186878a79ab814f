"""Which part of a list a query asks for."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.app.errors import clip, invalid_type, invalid_value
from antiphon.app.requests import validators as c
from antiphon.events.inputs import AnyInput

MOST = 100
USUAL = "20"


class Page(Struct, frozen=True):
    """A part of a list: items from `start` up to `end`, counted from the end the list is read from."""

    start: int
    end: int
    falling: bool


def page(asked: Mapping[str, str], items: Sequence[AnyInput]) -> Page:
    """The page that the query asks for: `order` (desc), `limit` (20; 1 to 100), `after` an id. Raises `ApiError`."""
    falling = _order(asked) == "desc"
    start, after = 0, asked.get("after")
    if after is not None:
        ids = [item.id for item in (reversed(items) if falling else items)]
        if after not in ids:
            raise invalid_value("after", f"Invalid 'after': there is no item '{clip(after)}' in this list.")
        start = ids.index(after) + 1
    return Page(start, start + _limit(asked), falling)


def _order(asked: Mapping[str, str]) -> str:
    order = asked.get("order", "desc")
    c.one_of(("asc", "desc"))(order, "order")
    return order


def _limit(asked: Mapping[str, str]) -> int:
    sent = asked.get("limit", USUAL)
    if not re.fullmatch(r"-?[0-9]{1,9}", sent):
        raise invalid_type("limit", "an integer", sent)
    c.integer(1, MOST)(int(sent), "limit")
    return int(sent)
