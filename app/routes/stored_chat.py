"""`/v1/chat/completions` as a collection: lists, retrieves, updates and deletes the completions that were stored."""

import asyncio
from typing import Any

import msgspec
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, request_query, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_value, missing_field, not_found
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.projections.chat.stored import stored_completion, stored_messages
from antiphon.app.projections.chat.stream import chat_id
from antiphon.app.projections.item_lists import build_list
from antiphon.app.requests.chat.body import StoredCompletionBody
from antiphon.app.requests.chat.stored import CompletionsQuery, read_completion_id, select_completions
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.pagination import PageQuery, select_ids
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.route_helpers.inspected_turns import forget_records
from antiphon.app.route_helpers.listed_items import message_page_reply
from antiphon.app.route_helpers.stored_reads import prepare_read
from antiphon.app.store.base import StoredCompletion


@endpoint("GET", "/v1/chat/completions", query=CompletionsQuery, prepare=prepare_read)
async def list_completions(request: AnyRequest) -> Response[Any]:
    """Lists the stored completions that have the `model` and `metadata` of the query, earliest first by default."""
    store, owner = server_context(request).store, request_owner(request)
    sent = request_query(request, CompletionsQuery)
    query = select_completions(sent)
    data: list[dict[str, Any]] = []
    while len(data) <= query.limit:  # one more than the page holds tells whether there are more
        missing = query.limit + 1 - len(data)
        batch = store.list_completions(owner, msgspec.structs.replace(query, limit=missing))
        if batch is None:
            after = clip_text(sent.after or "")
            raise invalid_value("after", f"Invalid 'after': there is no chat completion with id '{after}'.")
        for completion in batch:
            if (found := await _load_completion(request, completion)) is not None:
                data.append(found)
            await asyncio.sleep(0)  # a long completion takes a while to read: other requests come between two
        if len(batch) < missing:
            break
        query = msgspec.structs.replace(query, after=batch[-1].id)
    return json_reply(build_list(data[: query.limit], has_more=len(data) > query.limit))


@endpoint("GET", "/v1/chat/completions/{completion_id}", prepare=prepare_read)
async def retrieve_completion(request: AnyRequest, completion_id: FromPath[str]) -> Response[Any]:
    """Returns a stored completion."""
    _, found = await _find_completion(request, completion_id)
    return json_reply(found)


@endpoint("POST", "/v1/chat/completions/{completion_id}", body=StoredCompletionBody, prepare=prepare_read)
async def update_completion(request: AnyRequest, completion_id: FromPath[str]) -> Response[Any]:
    """Replaces the metadata of a stored completion."""
    completion, found = await _find_completion(request, completion_id)
    sent = await parse_body(await request.body())
    metadata = decode_body(StoredCompletionBody, sent).metadata or {}
    if "metadata" not in sent:
        raise missing_field("metadata")
    store, owner = server_context(request).store, request_owner(request)
    if not await store.change(lambda database: database.completions.save_metadata(owner, completion.id, metadata)):
        raise _completion_not_found(completion_id)
    return json_reply({**found, "metadata": metadata})


@endpoint("DELETE", "/v1/chat/completions/{completion_id}", prepare=prepare_read)
async def delete_completion(request: AnyRequest, completion_id: FromPath[str]) -> Response[Any]:
    """Deletes a stored completion with all its choices and its messages."""
    completion, _ = await _find_completion(request, completion_id)
    context, owner = server_context(request), request_owner(request)
    if not await context.store.delete_completion(owner, completion.id):
        raise _completion_not_found(completion_id)
    forget_records(context, owner, completion.choice_ids)
    return json_reply({"id": chat_id(completion.id), "object": "chat.completion.deleted", "deleted": True})


@endpoint("GET", "/v1/chat/completions/{completion_id}/messages", query=PageQuery, prepare=prepare_read)
async def list_messages(request: AnyRequest, completion_id: FromPath[str]) -> Response[Any]:
    """Lists the messages that the client sent for a stored completion, earliest first by default."""
    completion, _ = await _find_completion(request, completion_id)
    messages = server_context(request).store.completion_messages(request_owner(request), completion.id)
    listed = stored_messages(completion, messages)
    page = select_ids(request_query(request, PageQuery), [message["id"] for message in listed], "asc")
    ordered = listed[::-1] if page.descending else listed
    return await message_page_reply(request, ordered[page.start : page.end], has_more=page.end < len(listed))


async def _find_completion(request: AnyRequest, sent_id: str) -> tuple[StoredCompletion, dict[str, Any]]:
    """Returns the owner's completion, and its JSON. Raises `ApiError` 404, also for an id that is malformed."""
    completion_id = read_completion_id(sent_id)
    store = server_context(request).store
    completion = store.find_completion(request_owner(request), completion_id) if completion_id else None
    found = await _load_completion(request, completion) if completion is not None else None
    if completion is None or found is None:
        raise _completion_not_found(sent_id)
    return completion, found


async def _load_completion(request: AnyRequest, completion: StoredCompletion) -> dict[str, Any] | None:
    """Returns the JSON of a completion; None if a choice has failed, whose client got an error, or is unreadable."""
    store, owner = server_context(request).store, request_owner(request)
    logs = [log for choice_id in completion.choice_ids if (log := await store.read_log(owner, choice_id)) is not None]
    if len(logs) < len(completion.choice_ids) or any(log.response.status == "failed" for log in logs):
        return None
    return await stored_completion(completion, logs)


def _completion_not_found(completion_id: str) -> ApiError:
    return not_found(f"Chat completion with id '{clip_text(completion_id)}' not found.")
