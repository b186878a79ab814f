"""Encoding of item lists in the format of the API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.requests.pagination import ListPage
from antiphon.events.inputs import AnyInput, HostedInput, InputMessage


def encode_item_page(items: Sequence[AnyInput], part: ListPage) -> bytes:
    """Returns the page as JSON in the list format of the API."""
    ordered = items[::-1] if part.descending else items
    return encode_list([listed_item(item) for item in ordered[part.start : part.end]], has_more=part.end < len(items))


def encode_list(data: Sequence[dict[str, Any]], *, has_more: bool) -> bytes:
    """Returns entries, each with an id, as JSON in the list format of the API."""
    ids = [entry["id"] for entry in data]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": has_more,
        }
    )


def listed_item(item: AnyInput) -> dict[str, Any]:
    """Returns an item as lists show it: text content as a part, with a status, without null keys."""
    if isinstance(item, HostedInput):
        return {**item.payload, "id": item.id, "type": item.kind}
    fields: dict[str, Any] = {key: value for key, value in msgspec.to_builtins(item).items() if value is not None}
    if isinstance(item, InputMessage):
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": item.content}]
        for part in fields["content"]:
            if part["type"] == "output_text":
                part.setdefault("annotations", [])
    if fields["type"] not in ("reasoning", "additional_tools", "compaction"):
        fields.setdefault("status", "completed")
    return fields
