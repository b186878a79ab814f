"""`/v1/conversations`: items that turns lean on, kept by a name of their own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_value, missing_field, not_found, unknown_field
from antiphon.app.projections.item_lists import encode_item_page, listed_item
from antiphon.app.requests import input_items as items_of
from antiphon.app.requests import media
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import METADATA
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.pagination import ListPage, select_page
from antiphon.app.routes.replies import json_reply
from antiphon.app.store.base import StoredConversation
from antiphon.app.turns.manager import new_id
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.inputs import AnyInput

MAX_ITEMS = 20
"""Items that may be added at once."""


@post("/v1/conversations", status_code=200)
async def create_conversation(request: AnyRequest) -> Response[Any]:
    """A new conversation, with items and metadata if there are any."""
    home, body = server_context(request), await _read_body(request, {"items", "metadata"})
    items = _read_items(request, body.get("items") or [])
    created = int(home.turn_manager.current_time())
    made = StoredConversation(id=new_id("conv"), created_at=created, metadata=body.get("metadata") or {})
    home.store.save_conversation(request_owner(request), made)
    home.store.add_items(request_owner(request), made.id, items)
    return _conversation_json(made)


@get("/v1/conversations/{conversation_id:str}")
async def retrieve_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """A conversation, without its items."""
    return _conversation_json(_find_conversation(request, conversation_id))


@post("/v1/conversations/{conversation_id:str}", status_code=200)
async def update_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Other metadata."""
    found, body = _find_conversation(request, conversation_id), await _read_body(request, {"metadata"})
    changed = msgspec.structs.replace(found, metadata=_require_key(body, "metadata"))
    server_context(request).store.save_conversation(request_owner(request), changed)
    return _conversation_json(changed)


@delete("/v1/conversations/{conversation_id:str}", status_code=200)
async def delete_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Forget a conversation and its items. Responses that belonged to it stay."""
    found = _find_conversation(request, conversation_id)
    server_context(request).store.delete_conversation(request_owner(request), found.id)
    return json_reply(msgspec.json.encode({"id": found.id, "object": "conversation.deleted", "deleted": True}))


@post("/v1/conversations/{conversation_id:str}/items", status_code=200)
async def create_items(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """More items, at the end."""
    found, body = _find_conversation(request, conversation_id), await _read_body(request, {"items"})
    items = _read_items(request, _require_key(body, "items"))
    server_context(request).store.add_items(request_owner(request), found.id, items)
    return json_reply(encode_item_page(items, ListPage(0, MAX_ITEMS, descending=False)))


@get("/v1/conversations/{conversation_id:str}/items")
async def list_items(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Its items, the latest first where no other order is asked for."""
    items = server_context(request).store.conversation_items(
        request_owner(request), _find_conversation(request, conversation_id).id
    )
    return json_reply(encode_item_page(items, select_page(request.query_params, items)))


@get("/v1/conversations/{conversation_id:str}/items/{item_id:str}")
async def retrieve_item(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """One of them."""
    for item in server_context(request).store.conversation_items(
        request_owner(request), _find_conversation(request, conversation_id).id
    ):
        if item.id == item_id:
            return json_reply(msgspec.json.encode(listed_item(item)))
    raise _item_not_found(item_id)


@delete("/v1/conversations/{conversation_id:str}/items/{item_id:str}", status_code=200)
async def delete_item(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """One of them less; the conversation."""
    found = _find_conversation(request, conversation_id)
    if not server_context(request).store.delete_item(request_owner(request), found.id, item_id):
        raise _item_not_found(item_id)
    return _conversation_json(found)


async def _read_body(request: AnyRequest, known: set[str]) -> Mapping[str, Any]:
    """The body, which may be empty."""
    sent = await request.body()
    body = parse_object(sent) if sent else {}
    for key, value in body.items():
        if key not in known:
            raise unknown_field(key)
        if key == "metadata" and value is not None:
            METADATA(value, key)
    return body


def _require_key(body: Mapping[str, Any], key: str) -> Any:
    if body.get(key) is None:
        raise missing_field(key)
    return body[key]


def _read_items(request: AnyRequest, sent: Any) -> tuple[AnyInput, ...]:
    c.array_of(c.is_object, MAX_ITEMS)(sent, "items")
    lookup = partial(server_context(request).store.find_item, request_owner(request))
    given = items_of.read_input(sent, lookup, "items") if sent else items_of.RequestInput(())
    media.check_media(sent, "items", refused=server_context(request).settings.unsupported_media == "refuse")
    if given.compact:
        raise invalid_value("items", "A conversation is compacted by a request for a response.")
    return with_ids(given.items, new_id("items"))


def _find_conversation(request: AnyRequest, conversation_id: str) -> StoredConversation:
    found = server_context(request).store.find_conversation(request_owner(request), conversation_id)
    if found is None:
        raise not_found(f"Conversation with id '{clip_text(conversation_id)}' not found.")
    return found


def _item_not_found(item_id: str) -> ApiError:
    return not_found(f"Item with id '{clip_text(item_id)}' not found.")


def _conversation_json(conversation: StoredConversation) -> Response[Any]:
    return json_reply(msgspec.json.encode({"object": "conversation", **msgspec.to_builtins(conversation)}))
