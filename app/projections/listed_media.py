"""Pictures and files in lists of items: which URLs a list shows, and where their bytes go.

An http or https URL and a `file_id` are shown as they came. A data URL is shown only if the request includes it, and
`file_data` never. A list finds the places first and loads only the bytes that it shows.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.turn_types.blob_urls import BlobReference, media_place, parse_blob_url
from antiphon.events.inputs import HOSTED_ITEM_TYPES

INCLUDE_PICTURES = "message.input_image.image_url"
"""Value of `include` that shows the pictures of messages and of outputs of functions and custom tools."""
INCLUDE_SCREENSHOTS = "computer_call_output.output.image_url"
MAX_LISTED_BYTES = 16 << 20
"""Bytes of pictures after which a page ends, although it has fewer entries than it may have."""
_SLICE_BYTES = 768 << 10
"""Bytes that are encoded at a time, a multiple of 3: the encoder keeps all other threads waiting."""


class MediaSlot(Struct, frozen=True):
    """A place in a list for the content of a blob: `holder[key]`, which is null until `fill`."""

    holder: dict[str, Any]
    key: str
    reference: BlobReference

    def fill(self, encoded: msgspec.Raw | None) -> None:
        """Puts the content there, as `encode_content` returns it."""
        self.holder[self.key] = encoded


def encode_content(reference: BlobReference, content: bytes) -> msgspec.Raw:
    """Returns the content of a blob as the client sent it, as JSON: a data URL, or base64 alone. Takes 3 ms a MB."""
    view = memoryview(content)
    parts = [base64.b64encode(view[start : start + _SLICE_BYTES]) for start in range(0, len(view), _SLICE_BYTES)]
    head = f"data:{reference.media_type};base64,".encode() if reference.media_type else b""
    return msgspec.Raw(b"".join((b'"', head, *parts, b'"')))


def open_item_slots(fields: Mapping[str, Any], include: frozenset[str]) -> list[MediaSlot]:
    """Sets what a listed item does not show to null. Returns the places whose content the list shows."""
    slots: list[MediaSlot] = []
    for part, is_shown in _item_parts(fields, include):
        if part.get("file_data") is not None:
            part["file_data"] = None
        url = part.get("image_url")
        if (reference := parse_blob_url(url if isinstance(url, str) else None)) is not None:
            part["image_url"] = reference.source_url or None
            if is_shown and not reference.source_url and part.get("file_id") is None:
                slots.append(MediaSlot(part, "image_url", reference))
        elif isinstance(url, str) and url[:5].lower() == "data:" and not is_shown:  # a row of an older version
            part["image_url"] = None
    return slots


def open_whole_slots(fields: Mapping[str, Any]) -> list[MediaSlot]:
    """Returns the places of a listed item whose content a client needs that sends the item back: all that it sent."""
    slots: list[MediaSlot] = []
    for part, _ in _item_parts(fields, frozenset()):
        for key in ("image_url", "file_data"):
            url = part.get(key)
            if (reference := parse_blob_url(url if isinstance(url, str) else None)) is not None:
                part[key] = reference.source_url or None
                if not reference.source_url and all(part.get(each) is None for each in ("file_id", "file_url")):
                    slots.append(MediaSlot(part, key, reference))
    return slots


def open_message_slots(messages: Iterable[Mapping[str, Any]]) -> list[MediaSlot]:
    """Returns the places of chat messages that have blob URLs. All of them are shown, so that parts are whole."""
    slots: list[MediaSlot] = []
    for message in messages:
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            holder, key = media_place(part)
            if holder is not None and (reference := parse_blob_url(holder[key])) is not None:
                holder[key] = reference.source_url or None
                if not reference.source_url:
                    slots.append(MediaSlot(holder, key, reference))
    return slots


def fitting_length(slots: Sequence[Sequence[MediaSlot]]) -> int:
    """Returns how many entries, of which each has these slots, a page has: those within `MAX_LISTED_BYTES`, or one."""
    total = 0
    for index, of_entry in enumerate(slots):
        total += sum(slot.reference.size for slot in of_entry)
        if total > MAX_LISTED_BYTES and index:
            return index
    return len(slots)


def _item_parts(fields: Mapping[str, Any], include: frozenset[str]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yields the parts of a listed item that may have media, each with whether its picture is shown."""
    output = fields.get("output")
    if (kind := fields.get("type")) in HOSTED_ITEM_TYPES:
        if kind == "computer_call_output" and isinstance(output, dict):
            yield output, INCLUDE_SCREENSHOTS in include
        return  # the rest is shown as it came
    for parts in (fields.get("content"), output):
        for part in parts if isinstance(parts, list | tuple) else ():
            if isinstance(part, dict) and part.get("type") in ("input_image", "input_file"):
                yield part, INCLUDE_PICTURES in include
