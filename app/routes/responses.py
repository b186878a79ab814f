"""`/v1/responses`."""

import re
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_type, invalid_value, not_found
from antiphon.app.event_log import EventLog
from antiphon.app.projections import responses
from antiphon.app.projections.item_lists import encode_item_page
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.pagination import select_page
from antiphon.app.requests.responses import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest
from antiphon.app.routes.engine_ready import wait_until_ready
from antiphon.app.routes.replies import cancel_on_disconnect, final_reply, json_reply, open_turns, stream_reply
from antiphon.app.turns.stored_history import StoredHistory

RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9]{1,64}")


@post("/v1/responses", status_code=200)
async def create_response(request: AnyRequest) -> Response[Any]:
    """One turn of a model, streamed or whole."""
    home, asked = server_context(request), await _read_request(request)
    logs = await open_turns(request, asked)
    if asked.spec.stream:
        return stream_reply(responses.ResponsesStream(logs[0], obfuscated=asked.spec.obfuscate), home)
    if asked.spec.base_response.background:
        return json_reply(responses.initial_response(logs[0]))
    return json_reply(await final_reply(request, responses.final_response(logs[0]), logs))


@post("/v1/responses/input_tokens", status_code=200)
async def count_input_tokens(request: AnyRequest) -> Response[Any]:
    """How many tokens the input of such a request would have. Nothing is generated and nothing is kept."""
    asked = await _read_request(request)
    count = await cancel_on_disconnect(
        request,
        server_context(request).turn_manager.count_prompt_tokens(asked.model, asked.spec, request_owner(request)),
    )
    return json_reply(msgspec.json.encode({"object": "response.input_tokens", "input_tokens": count}))


@get("/v1/responses/{response_id:str}")
async def retrieve_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """A stored response as it is now, or, with `stream=true`, its events from after `starting_after` on."""
    log = _find_log(request, response_id)
    if request.query_params.get("stream") not in ("true", "1"):
        return json_reply(responses.current_response(log))
    obfuscated = request.query_params.get("include_obfuscation") in ("true", "1")
    return stream_reply(
        responses.ResponsesStream(log, _start_number(request), obfuscated=obfuscated), server_context(request)
    )


@delete("/v1/responses/{response_id:str}", status_code=200)
async def delete_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Forget a stored response; one that still runs in the background is cancelled."""
    home, log = server_context(request), _find_log(request, response_id)
    if log.base_response.background:
        home.turn_manager.cancel_turn(log)
    home.store.delete_response(log.owner, log.id)
    return json_reply(msgspec.json.encode({"id": log.id, "object": "response", "deleted": True}))


@post("/v1/responses/{response_id:str}/cancel", status_code=200)
async def cancel_response(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """End a background response; one that has ended is returned as it is."""
    log = _find_log(request, response_id)
    if not log.base_response.background:
        raise ApiError(400, None, "Cannot cancel a synchronous response.")
    home = server_context(request)
    if home.turn_manager.is_running(log):
        home.turn_manager.cancel_turn(log)
    elif not log.ended:
        home.store.request_cancel(log)
    return json_reply(await cancel_on_disconnect(request, responses.final_response(log)))


@get("/v1/responses/{response_id:str}/input_items")
async def list_input_items(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """What was put in with the request, the latest item first where no other order is asked for."""
    log = _find_log(request, response_id)
    return json_reply(encode_item_page(log.input_items, select_page(request.query_params, log.input_items)))


async def _read_request(request: AnyRequest) -> ParsedRequest:
    """What the body asks for, once there is an engine to take it."""
    home, body = server_context(request), parse_object(await request.body())
    await wait_until_ready(request, body)
    past = StoredHistory(home.store, request_owner(request), home.turn_manager.sealer)
    return read_responses_request(body, home.models, past, home.settings)


def _find_log(request: AnyRequest, response_id: str) -> EventLog:
    """The log of this owner. An id that cannot be one is unknown like any other."""
    known = RESPONSE_ID.fullmatch(response_id)
    log = server_context(request).store.find_log(request_owner(request), response_id) if known else None
    if log is None:
        raise not_found(f"Response with id '{clip_text(response_id)}' not found.")
    return log


def _start_number(request: AnyRequest) -> int:
    """The first sequence number that the reader has not seen."""
    sent = request.query_params.get("starting_after")
    if sent is None:
        return 0
    if not re.fullmatch(r"-?[0-9]{1,18}", sent):
        raise invalid_type("starting_after", "an integer", sent)
    if int(sent) < -1:
        raise invalid_value("starting_after", "Invalid 'starting_after': expected a sequence number.")
    return int(sent) + 1
