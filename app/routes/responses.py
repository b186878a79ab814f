"""`/v1/responses`: creates, retrieves, cancels and deletes responses, lists their input and counts input tokens."""

import asyncio
from typing import Annotated, Any

from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from antiphon.app.context import AnyRequest, request_models, request_owner, request_query, server_context
from antiphon.app.errors import ApiError, clip_text, not_found
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections import responses
from antiphon.app.projections.included_outputs import shown_response
from antiphon.app.requests.pagination import IncludeQuery, ItemPageQuery, select_page
from antiphon.app.requests.responses.body import RESPONSE_ID_PATTERN, ResponsesBody
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest
from antiphon.app.route_helpers.engine_ready import wait_until_known, wait_until_ready
from antiphon.app.route_helpers.http_replies import (
    cancel_on_disconnect,
    final_reply,
    json_reply,
    start_turns,
    stream_reply,
)
from antiphon.app.route_helpers.inspected_turns import forget_records
from antiphon.app.route_helpers.listed_items import item_page_reply
from antiphon.app.route_helpers.stored_reads import prepare_read, read_with_history
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ResponsesForm
from antiphon.events.response import Response as ResponseObject

MAX_CANCEL_WAIT_S = 15.0
"""Time for which a cancellation waits for the end of the response: for longer than another server takes to notice that
the one which generates it is dead."""
CANCEL_PENDING_MESSAGE = (
    "The response has not ended yet: the server that generates it, or the database, does not answer. "
    "The cancellation is recorded. Retrieve the response later, or retry."
)


class ResumeQuery(IncludeQuery, frozen=True, kw_only=True):
    """Query of a stored response."""

    stream: bool = False
    """Streams the events instead."""
    include_obfuscation: bool = False
    """With `stream`: pads every delta."""
    starting_after: Annotated[int, Meta(ge=-1)] = -1
    """With `stream`: the last event that is known already."""


@endpoint("POST", "/v1/responses", body=ResponsesBody, starts="responses", batch=True, reply=ResponseObject)
async def create_response(request: AnyRequest) -> Response[Any]:
    """Runs one turn of a model. Returns it as a stream or in one piece; a background turn, before it has run."""
    context, parsed = server_context(request), await _read_request(request)
    logs = await start_turns(request, parsed)
    form = parsed.form
    if form.stream:
        return stream_reply(responses.ResponsesStream(logs[0], form=form), context)
    if parsed.spec.base_response.background:
        return json_reply(responses.initial_response(logs[0]))
    return json_reply(await final_reply(request, responses.final_response(logs[0], form.include), logs))


@endpoint("POST", "/v1/responses/input_tokens", body=ResponsesBody)
async def count_input_tokens(request: AnyRequest) -> Response[Any]:
    """Returns the number of input tokens of a Responses request. Nothing is generated or stored."""
    parsed = await _read_request(request, generates=False)
    preparer = server_context(request).turn_manager.preparer
    rendering = preparer.render_prompt(parsed.model, parsed.spec, request_owner(request))
    prompt = await cancel_on_disconnect(request, rendering)
    return json_reply({"object": "response.input_tokens", "input_tokens": prompt.num_tokens})


@endpoint(
    "GET", "/v1/responses/{response_id}", query=ResumeQuery, head=False, prepare=prepare_read, reply=ResponseObject
)
async def retrieve_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Returns a stored response as it is now or, with `stream=true`, streams its events after `starting_after`."""
    query, log = request_query(request, ResumeQuery), await _find_log(request, response_id)
    include, start = frozenset(query.include), query.starting_after + 1
    if not query.stream:
        return json_reply(shown_response(log.response, include))
    form = ResponsesForm(stream=True, obfuscate=query.include_obfuscation, include=include)
    return stream_reply(responses.ResponsesStream(log, start, form), server_context(request))


@endpoint("DELETE", "/v1/responses/{response_id}", prepare=prepare_read)
async def delete_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Deletes a stored response. One that still runs in the background, or without a reader, is cancelled."""
    context, log = server_context(request), await _find_log(request, response_id)
    if log.base_response.background or not context.turn_manager.is_read_here(log):
        context.turn_manager.cancel_turn(log.id)
    await context.store.delete_response(log.owner, log.id)
    forget_records(context, log.owner, [log.id])
    return json_reply({"id": log.id, "object": "response", "deleted": True})


@endpoint("POST", "/v1/responses/{response_id}/cancel", prepare=prepare_read, reply=ResponseObject)
async def cancel_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Cancels a response that runs in the background, or without a reader, and returns it.

    A background response that has ended is returned unchanged.
    Raises `ApiError` 503 if it has not ended after `MAX_CANCEL_WAIT_S`.
    """
    log = await _find_log(request, response_id)
    context = server_context(request)
    if not log.base_response.background and (log.ended or context.turn_manager.is_read_here(log)):
        raise ApiError(400, None, "Cannot cancel a synchronous response.")
    if context.turn_manager.is_running(log):
        context.turn_manager.cancel_turn(log.id)
    elif not log.ended:
        await context.store.request_cancel(log)
    try:
        async with asyncio.timeout(MAX_CANCEL_WAIT_S):
            return json_reply(await cancel_on_disconnect(request, responses.final_response(log)))
    except TimeoutError:
        raise ApiError(503, "cancel_pending", CANCEL_PENDING_MESSAGE, headers=(("retry-after", "1"),)) from None


@endpoint("GET", "/v1/responses/{response_id}/input_items", query=ItemPageQuery, head=False, prepare=prepare_read)
async def list_input_items(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Lists the input items of a stored response, latest first by default."""
    log = await _find_log(request, response_id)
    query = request_query(request, ItemPageQuery)
    return await item_page_reply(request, log.input_items, select_page(query, log.input_items), query.include)


async def _read_request(request: AnyRequest, *, generates: bool = True) -> ParsedRequest[ResponsesForm]:
    """Waits for the engine, then parses the body."""
    context, body = server_context(request), await parse_body(await request.body())
    if generates:
        await wait_until_ready(request, body)
    else:
        await wait_until_known(request, request_models(request).get_model(body.get("model")))
    return await read_with_history(
        context,
        request_owner(request),
        body,
        request_state(request.scope).body_bytes,
        lambda history: read_responses_request(body, request_models(request), history, context.settings),
    )


async def _find_log(request: AnyRequest, response_id: str) -> EventLog:
    """Returns the owner's log. Raises `ApiError` 404, also for an id that is malformed."""
    is_valid = RESPONSE_ID_PATTERN.fullmatch(response_id)
    log = await server_context(request).store.read_log(request_owner(request), response_id) if is_valid else None
    if log is None:
        raise not_found(f"Response with id '{clip_text(response_id)}' not found.")
    return log
