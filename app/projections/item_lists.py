"""Lists of items in the format of the API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.events.hosted_inputs import InputHostedItem
from antiphon.events.inputs import AnyInput, HostedInput, InputMessage

_WITHOUT_STATUS = ("reasoning", "additional_tools", "compaction", "configuration_update")
"""Types of items that get no status from the list."""


def build_list(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns entries, each with an id, in the list format of the API."""
    ids = [entry["id"] for entry in data]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def listed_item(item: AnyInput) -> dict[str, Any]:
    """Returns an item as lists show it: text content as a part, with a status, without null keys.

    Items of hosted tools have the status that the client sent: some types have none. The caller may change the objects
    of its parts.
    """
    if isinstance(item, HostedInput):
        output = item.payload.get("output")
        copied = {"output": dict(output)} if isinstance(output, dict) else {}
        return {**item.payload, **copied, "id": item.id, "type": item.kind}
    fields: dict[str, Any] = {key: value for key, value in msgspec.to_builtins(item).items() if value is not None}
    if isinstance(item, InputMessage):
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": item.content}]
        for part in fields["content"]:
            if part["type"] == "output_text":
                part.setdefault("annotations", [])
    if fields["type"] not in _WITHOUT_STATUS and not isinstance(item, InputHostedItem):
        fields.setdefault("status", "completed")
    return fields
