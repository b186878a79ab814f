"""Lists of items as the API tells them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.requests.pagination import ListPage
from antiphon.events.inputs import AnyInput, HostedInput, InputMessage


def encode_item_page(items: Sequence[AnyInput], part: ListPage) -> bytes:
    """The page as JSON, as the API lists items."""
    ordered = items[::-1] if part.descending else items
    data = [listed_item(item) for item in ordered[part.start : part.end]]
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


def listed_item(item: AnyInput) -> dict[str, Any]:
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
