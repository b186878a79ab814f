"""`/v1/conversations`: stored lists of items that turns can continue."""

import math
from typing import Any

import msgspec
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, request_query, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_value, not_found
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.requests.fields import AnyBody, decode_body
from antiphon.app.requests.fields.checks import require_value
from antiphon.app.requests.media.sent_media import MediaTaker
from antiphon.app.requests.media.vision import refuses_media
from antiphon.app.requests.pagination import IncludeQuery, ItemPageQuery, ListPage
from antiphon.app.requests.responses import input_items as items_of
from antiphon.app.requests.responses.body import MAX_ADDED_ITEMS, ConversationBody, NewConversationBody, NewItemsBody
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.route_helpers.listed_items import item_page_reply, item_reply, listed_page_reply
from antiphon.app.route_helpers.stored_reads import prepare_read, read_with_history
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.conversation_tables import ITEM_ROW_BYTES
from antiphon.app.store.history.bounded_read import read_in_thread
from antiphon.app.turn_types.blob_urls import BlobContents
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turns.stored_history import StoredHistory, check_conversation_room, with_ids
from antiphon.events.inputs import AnyInput
from antiphon.harmony.prompt.hosted_items import find_newest_answers


@endpoint("POST", "/v1/conversations", body=NewConversationBody, prepare=prepare_read)
async def create_conversation(request: AnyRequest) -> Response[Any]:
    """Creates a conversation, with the items and the metadata of the request, if any."""
    context, body = server_context(request), await _read_body(request, NewConversationBody)
    items, blobs = await _parse_items(request, body.items or [])
    await _check_room(request, blobs)
    created_at = int(context.turn_manager.clock())
    conversation = StoredConversation(id=new_id("conv"), created_at=created_at, metadata=body.metadata or {})
    owner = request_owner(request)
    await context.store.create_conversation(owner, conversation, items, blobs)
    return _conversation_json(conversation)


@endpoint("GET", "/v1/conversations/{conversation_id}", prepare=prepare_read)
async def retrieve_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Returns a conversation without its items."""
    return _conversation_json(_find_conversation(request, conversation_id))


@endpoint("POST", "/v1/conversations/{conversation_id}", body=ConversationBody, prepare=prepare_read)
async def update_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Replaces the metadata of a conversation."""
    conversation, body = (
        _find_conversation(request, conversation_id),
        await _read_body(request, ConversationBody),
    )
    metadata, owner = require_value(body.metadata, "metadata"), request_owner(request)
    store = server_context(request).store
    if not await store.change(lambda database: database.conversations.save_metadata(owner, conversation.id, metadata)):
        raise _conversation_not_found(conversation_id)
    return _conversation_json(msgspec.structs.replace(conversation, metadata=metadata))


@endpoint("DELETE", "/v1/conversations/{conversation_id}", prepare=prepare_read)
async def delete_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Deletes a conversation and its items, but not its responses."""
    conversation, owner = _find_conversation(request, conversation_id), request_owner(request)
    if not await server_context(request).store.delete_conversation(owner, conversation.id):
        raise _conversation_not_found(conversation_id)
    server_context(request).store.history.forget_sizes(owner)
    return json_reply({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


@endpoint(
    "POST", "/v1/conversations/{conversation_id}/items", body=NewItemsBody, query=IncludeQuery, prepare=prepare_read
)
async def create_items(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Appends items to a conversation and returns them."""
    conversation, body = _find_conversation(request, conversation_id), await _read_body(request, NewItemsBody)
    items, blobs = await _parse_items(request, require_value(body.items, "items"))
    await _check_room(request, blobs)
    if not await server_context(request).store.add_items(request_owner(request), conversation.id, items, blobs):
        raise _conversation_not_found(conversation_id)
    return await item_page_reply(
        request, items, ListPage(0, MAX_ADDED_ITEMS, descending=False), request_query(request, IncludeQuery).include
    )


@endpoint("GET", "/v1/conversations/{conversation_id}/items", query=ItemPageQuery, prepare=prepare_read)
async def list_items(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Lists the items of a conversation, latest first by default."""
    conversation, query = _find_conversation(request, conversation_id), request_query(request, ItemPageQuery)
    is_descending, after, limit = query.order != "asc", query.after, query.limit
    load_page = server_context(request).store.history.load_page
    owner = request_owner(request)
    page = await read_in_thread(load_page, owner, conversation.id, after, limit, descending=is_descending)
    if page is None:
        raise invalid_value("after", f"Invalid 'after': item '{clip_text(after or '')}' is not in this list.")
    return await listed_page_reply(request, page.items, query.include, has_more=page.has_more)


@endpoint("GET", "/v1/conversations/{conversation_id}/items/{item_id}", query=IncludeQuery, prepare=prepare_read)
async def retrieve_item(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """Returns an item of a conversation."""
    include = request_query(request, IncludeQuery).include
    conversation, history = _find_conversation(request, conversation_id), server_context(request).store.history
    item = await read_in_thread(history.find_conversation_item, request_owner(request), conversation.id, item_id)
    if item is None:
        raise _item_not_found(item_id)
    return await item_reply(request, item, include)


@endpoint("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", prepare=prepare_read)
async def delete_item(request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]) -> Response[Any]:
    """Deletes an item and returns the conversation."""
    conversation, owner = _find_conversation(request, conversation_id), request_owner(request)
    if not await server_context(request).store.delete_item(owner, conversation.id, item_id):
        raise _item_not_found(item_id)
    server_context(request).store.history.forget_sizes(owner)
    return _conversation_json(conversation)


async def _read_body(request: AnyRequest, kind: type[AnyBody]) -> AnyBody:
    """Returns the body, without any field if it is empty. Raises `ApiError` 400."""
    content = await request.body()
    body = await parse_body(content) if content else {}
    return await run_parser(len(content), lambda: decode_body(kind, remove_secrets(body)))


async def _parse_items(request: AnyRequest, sent: Any) -> tuple[tuple[AnyInput, ...], BlobContents]:
    """Returns the items, and the contents of their images and files. Raises `ApiError` 400."""
    context, owner = server_context(request), request_owner(request)
    is_refused = all(refuses_media(model, context.settings) for model in context.models.served)
    taker = MediaTaker("responses", "items", context.settings, refused=is_refused)

    def read(history: StoredHistory) -> tuple[AnyInput, ...]:
        entries = taker.take_entries(sent)
        parsed = items_of.read_input(entries, history.find_item, "items") if sent else items_of.RequestInput(())
        if parsed.compact:
            raise invalid_value(
                "items", "To compact a conversation, send the 'compaction_trigger' item to POST /v1/responses."
            )
        for request_id in find_newest_answers(parsed.items):
            message = f"Send the answer to approval request '{clip_text(request_id)}' in the input of a response."
            raise invalid_value("items", f"Invalid 'items': only a response answers it. {message}")
        return with_ids(parsed.items, new_id("items"))

    size = request_state(request.scope).body_bytes
    items = await read_with_history(context, owner, {"items": sent}, size, read)
    return await context.turn_manager.preparer.read_items(items, taker.taken, owner)


async def _check_room(request: AnyRequest, blobs: BlobContents) -> None:
    """Raises `ApiError` 400 if the store takes no more items of the owner than it has: those of this request count."""
    state = request_state(request.scope)
    num_added = state.body_bytes + ITEM_ROW_BYTES + sum(map(len, blobs.values()))
    max_bytes = math.inf if state.key.store_gib is None else state.key.store_gib * 2**30
    store = server_context(request).store
    await read_in_thread(check_conversation_room, store, state.owner, num_added, max_bytes)


def _find_conversation(request: AnyRequest, conversation_id: str) -> StoredConversation:
    conversation = server_context(request).store.find_conversation(request_owner(request), conversation_id)
    if conversation is None:
        raise _conversation_not_found(conversation_id)
    return conversation


def _conversation_not_found(conversation_id: str) -> ApiError:
    return not_found(f"Conversation with id '{clip_text(conversation_id)}' not found.")


def _item_not_found(item_id: str) -> ApiError:
    return not_found(f"Item with id '{clip_text(item_id)}' not found.")


def _conversation_json(conversation: StoredConversation) -> Response[Any]:
    return json_reply({"object": "conversation", **msgspec.to_builtins(conversation)})
