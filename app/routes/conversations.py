"""`/v1/conversations`: items that turns lean on, kept by a name of their own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, house, owner
from antiphon.app.errors import ApiError, clip, invalid_value, missing, not_found, unknown
from antiphon.app.projections.item_lists import listing, told
from antiphon.app.requests import input_items as items_of
from antiphon.app.requests import media
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import METADATA
from antiphon.app.requests.json_body import document
from antiphon.app.requests.pagination import Page, page
from antiphon.app.routes.replies import json_reply
from antiphon.app.store.base import Conversation
from antiphon.app.turns.manager import mint
from antiphon.app.turns.stored_history import identified
from antiphon.events.inputs import AnyInput

MOST = 20
"""Items that may be added at once."""


@post("/v1/conversations", status_code=200)
async def create(request: AnyRequest) -> Response[Any]:
    """A new conversation, with items and metadata if there are any."""
    home, body = house(request), await _body(request, {"items", "metadata"})
    items = _items(request, body.get("items") or [])
    created = int(home.turns.now())
    made = Conversation(id=mint("conv"), created_at=created, metadata=body.get("metadata") or {})
    home.store.save(owner(request), made)
    home.store.add(owner(request), made.id, items)
    return _told(made)


@get("/v1/conversations/{conversation_id:str}")
async def retrieve(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """A conversation, without its items."""
    return _told(_find(request, conversation_id))


@post("/v1/conversations/{conversation_id:str}", status_code=200)
async def update(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Other metadata."""
    found, body = _find(request, conversation_id), await _body(request, {"metadata"})
    changed = msgspec.structs.replace(found, metadata=_needed(body, "metadata"))
    house(request).store.save(owner(request), changed)
    return _told(changed)


@delete("/v1/conversations/{conversation_id:str}", status_code=200)
async def forget(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Forget a conversation and its items. Responses that belonged to it stay."""
    found = _find(request, conversation_id)
    house(request).store.drop(owner(request), found.id)
    return json_reply(msgspec.json.encode({"id": found.id, "object": "conversation.deleted", "deleted": True}))


@post("/v1/conversations/{conversation_id:str}/items", status_code=200)
async def add(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """More items, at the end."""
    found, body = _find(request, conversation_id), await _body(request, {"items"})
    items = _items(request, _needed(body, "items"))
    house(request).store.add(owner(request), found.id, items)
    return json_reply(listing(items, Page(0, MOST, falling=False)))


@get("/v1/conversations/{conversation_id:str}/items")
async def list_items(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Its items, the latest first where no other order is asked for."""
    items = house(request).store.talk(owner(request), _find(request, conversation_id).id)
    return json_reply(listing(items, page(request.query_params, items)))


@get("/v1/conversations/{conversation_id:str}/items/{item_id:str}")
async def retrieve_item(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """One of them."""
    for item in house(request).store.talk(owner(request), _find(request, conversation_id).id):
        if item.id == item_id:
            return json_reply(msgspec.json.encode(told(item)))
    raise _no_item(item_id)


@delete("/v1/conversations/{conversation_id:str}/items/{item_id:str}", status_code=200)
async def remove(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """One of them less; the conversation."""
    found = _find(request, conversation_id)
    if not house(request).store.remove(owner(request), found.id, item_id):
        raise _no_item(item_id)
    return _told(found)


async def _body(request: AnyRequest, known: set[str]) -> Mapping[str, Any]:
    """The body, which may be empty."""
    sent = await request.body()
    body = document(sent) if sent else {}
    for key, value in body.items():
        if key not in known:
            raise unknown(key)
        if key == "metadata" and value is not None:
            METADATA(value, key)
    return body


def _needed(body: Mapping[str, Any], key: str) -> Any:
    if body.get(key) is None:
        raise missing(key)
    return body[key]


def _items(request: AnyRequest, sent: Any) -> tuple[AnyInput, ...]:
    c.array_of(c.obj, MOST)(sent, "items")
    lookup = partial(house(request).store.item, owner(request))
    given = items_of.read(sent, lookup, "items") if sent else items_of.Input(())
    media.check(sent, "items", refused=house(request).settings.unsupported_media == "refuse")
    if given.compact:
        raise invalid_value("items", "A conversation is compacted by a request for a response.")
    return identified(given.items, mint("items"))


def _find(request: AnyRequest, conversation_id: str) -> Conversation:
    found = house(request).store.conversation(owner(request), conversation_id)
    if found is None:
        raise not_found(f"Conversation with id '{clip(conversation_id)}' not found.")
    return found


def _no_item(item_id: str) -> ApiError:
    return not_found(f"Item with id '{clip(item_id)}' not found.")


def _told(conversation: Conversation) -> Response[Any]:
    return json_reply(msgspec.json.encode({"object": "conversation", **msgspec.to_builtins(conversation)}))
