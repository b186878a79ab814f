"""Lists of items as the API pages through them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.errors import ApiError, clip, invalid_type, invalid_value
from events.inputs import AnyInput, HostedInput, InputMessage

MOST = 100
USUAL = 20


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


def listing(items: Sequence[AnyInput], part: Page) -> bytes:
    """The page as JSON, as the API lists items."""
    ordered = items[::-1] if part.falling else items
    data = [told(item) for item in ordered[part.start : part.end]]
    ids = [one["id"] for one in data]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": part.end < len(items),
        }
    )


def told(item: AnyInput) -> dict[str, Any]:
    """An input item as it is listed: a string spelled out as a part, a status where there is none, no empty keys."""
    if isinstance(item, HostedInput):
        return {**item.payload, "id": item.id, "type": item.kind}
    said: dict[str, Any] = {key: value for key, value in msgspec.to_builtins(item).items() if value is not None}
    if isinstance(item, InputMessage):
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            said["content"] = [{"type": kind, "text": item.content}]
        for part in said["content"]:
            if part["type"] == "output_text":
                part.setdefault("annotations", [])
    if said["type"] not in ("reasoning", "additional_tools", "compaction"):
        said.setdefault("status", "completed")
    return said


def _order(asked: Mapping[str, str]) -> str:
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        message = f"Invalid value: '{clip(order)}'. Supported values are: 'asc' and 'desc'."
        raise invalid_value("order", message)
    return order


def _limit(asked: Mapping[str, str]) -> int:
    sent = asked.get("limit")
    if sent is None:
        return USUAL
    if not re.fullmatch(r"-?[0-9]{1,9}", sent):
        raise invalid_type("limit", "an integer", sent)
    if int(sent) < 1:
        message = f"Invalid 'limit': integer below minimum value. Expected a value >= 1, but got {sent} instead."
        raise ApiError(400, "integer_below_min_value", message, "limit")
    if int(sent) > MOST:
        message = f"Invalid 'limit': integer above maximum value. Expected a value <= {MOST}, but got {sent} instead."
        raise ApiError(400, "integer_above_max_value", message, "limit")
    return int(sent)
