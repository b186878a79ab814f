"""Replies that list items or chat messages, with the pictures that they show."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.projections.included_outputs import hide_listed_outputs
from antiphon.app.projections.item_lists import build_list, listed_item
from antiphon.app.projections.listed_media import (
    MediaSlot,
    encode_content,
    fitting_length,
    open_item_slots,
    open_message_slots,
    open_whole_slots,
)
from antiphon.app.requests.pagination import ListPage
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.turn_types.blob_urls import NO_BLOBS, BlobContents
from antiphon.events.inputs import AnyInput


async def item_page_reply(
    request: AnyRequest, items: Sequence[AnyInput], page: ListPage, include: Sequence[str]
) -> Response[bytes]:
    """Returns the page of a list of items. It ends early where its pictures would become too large."""
    ordered = items[::-1] if page.descending else items
    return await listed_page_reply(request, ordered[page.start : page.end], include, has_more=page.end < len(items))


async def listed_page_reply(
    request: AnyRequest, items: Sequence[AnyInput], include: Sequence[str], *, has_more: bool
) -> Response[bytes]:
    """Returns these items as a page, which may end early. `include` names what it shows besides."""
    listed = [listed_item(item) for item in items]
    slots = [_open_shown(fields, frozenset(include)) for fields in listed]
    return await _page_reply(request, listed, slots, has_more=has_more)


async def item_reply(request: AnyRequest, item: AnyInput, include: Sequence[str]) -> Response[bytes]:
    """Returns one item as lists show it. `include` names what the list shows besides."""
    fields = listed_item(item)
    await _fill_slots(request, _open_shown(fields, frozenset(include)))
    return json_reply(fields)


async def list_whole_items(
    request: AnyRequest, items: Iterable[AnyInput], contents: BlobContents
) -> list[dict[str, Any]]:
    """Returns items for a client that sends them back, with all pictures and files.

    `contents` has those of the request; the others are stored.
    """
    listed = [listed_item(item) for item in items]
    await _fill_slots(request, [slot for fields in listed for slot in open_whole_slots(fields)], contents)
    return listed


async def message_page_reply(
    request: AnyRequest, messages: Sequence[Mapping[str, Any]], *, has_more: bool
) -> Response[bytes]:
    """Returns a page of listed chat messages with their pictures and files. It ends early where they are too large."""
    slots = [open_message_slots(({"content": message["content_parts"]},)) for message in messages]
    return await _page_reply(request, [dict(message) for message in messages], slots, has_more=has_more)


def _open_shown(fields: dict[str, Any], include: frozenset[str]) -> list[MediaSlot]:
    """Sets what a listed item does not show to null. Returns the places whose content the list shows."""
    hide_listed_outputs(fields, include)
    return open_item_slots(fields, include)


async def _page_reply(
    request: AnyRequest, listed: list[dict[str, Any]], slots: Sequence[Sequence[MediaSlot]], *, has_more: bool
) -> Response[bytes]:
    length = fitting_length(slots)
    await _fill_slots(request, [slot for of_entry in slots[:length] for slot in of_entry])
    return json_reply(build_list(listed[:length], has_more=has_more or length < len(listed)))


async def _fill_slots(request: AnyRequest, slots: Sequence[MediaSlot], contents: BlobContents = NO_BLOBS) -> None:
    """Loads the contents, each once, unless `contents` has them. One that was deleted meanwhile stays null."""
    store, owner = server_context(request).store, request_owner(request)
    encoded: dict[object, msgspec.Raw | None] = {}
    for slot in slots:
        if slot.reference not in encoded:
            sha256 = slot.reference.sha256
            content = contents[sha256] if sha256 in contents else await store.read_blob(owner, sha256)
            encoded[slot.reference] = (
                None if content is None else await asyncio.to_thread(encode_content, slot.reference, content)
            )
        slot.fill(encoded[slot.reference])
