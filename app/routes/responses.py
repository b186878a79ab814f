"""`/v1/responses`."""

import re
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, house, owner
from antiphon.app.errors import ApiError, clip, invalid_type, invalid_value, not_found
from antiphon.app.event_log import Log
from antiphon.app.projections import responses
from antiphon.app.projections.item_lists import listing
from antiphon.app.requests.json_body import document
from antiphon.app.requests.pagination import page
from antiphon.app.requests.responses import Asked, read
from antiphon.app.routes.engine_ready import awake
from antiphon.app.routes.replies import collect, json_reply, open_turns, stream_reply, unless_gone
from antiphon.app.turns.stored_history import Past

RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9]{1,64}")


@post("/v1/responses", status_code=200)
async def create(request: AnyRequest) -> Response[Any]:
    """One turn of a model, streamed or whole."""
    home, asked = house(request), await _asked(request)
    logs = await open_turns(request, asked)
    if asked.spec.stream:
        return stream_reply(responses.ResponsesStream(logs[0], obfuscated=asked.spec.obfuscate), home)
    if asked.spec.head.background:
        return json_reply(responses.opened(logs[0]))
    return json_reply(await collect(request, responses.final(logs[0]), logs))


@post("/v1/responses/input_tokens", status_code=200)
async def input_tokens(request: AnyRequest) -> Response[Any]:
    """How many tokens the input of such a request would have. Nothing is generated and nothing is kept."""
    asked = await _asked(request)
    count = await unless_gone(request, house(request).turns.count(asked.model, asked.spec, owner(request)))
    return json_reply(msgspec.json.encode({"object": "response.input_tokens", "input_tokens": count}))


@get("/v1/responses/{response_id:str}")
async def retrieve(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """A stored response as it is now, or, with `stream=true`, its events from after `starting_after` on."""
    log = _find(request, response_id)
    if request.query_params.get("stream") not in ("true", "1"):
        return json_reply(responses.snapshot(log))
    obfuscated = request.query_params.get("include_obfuscation") in ("true", "1")
    return stream_reply(responses.ResponsesStream(log, _start(request), obfuscated=obfuscated), house(request))


@delete("/v1/responses/{response_id:str}", status_code=200)
async def forget(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """Forget a stored response; one that still runs in the background is cancelled."""
    home, log = house(request), _find(request, response_id)
    if log.head.background:
        home.turns.cancel(log)
    home.store.delete(log.owner, log.id)
    return json_reply(msgspec.json.encode({"id": log.id, "object": "response", "deleted": True}))


@post("/v1/responses/{response_id:str}/cancel", status_code=200)
async def cancel(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """End a background response; one that has ended is returned as it is."""
    log = _find(request, response_id)
    if not log.head.background:
        raise ApiError(400, None, "Cannot cancel a synchronous response.")
    home = house(request)
    if home.turns.runs(log):
        home.turns.cancel(log)
    elif not log.ended:
        home.store.end(log)
    return json_reply(await unless_gone(request, responses.final(log)))


@get("/v1/responses/{response_id:str}/input_items")
async def input_items(request: AnyRequest, response_id: FromPath[str]) -> Response[Any]:
    """What was put in with the request, the latest item first where no other order is asked for."""
    log = _find(request, response_id)
    return json_reply(listing(log.given, page(request.query_params, log.given)))


async def _asked(request: AnyRequest) -> Asked:
    """What the body asks for, once there is an engine to take it."""
    home, body = house(request), document(await request.body())
    await awake(request, body)
    past = Past(home.store, owner(request), home.turns.seals)
    return read(body, home.catalogue, past, home.settings)


def _find(request: AnyRequest, response_id: str) -> Log:
    """The log of this owner. An id that cannot be one is unknown like any other."""
    known = RESPONSE_ID.fullmatch(response_id)
    log = house(request).store.get(owner(request), response_id) if known else None
    if log is None:
        raise not_found(f"Response with id '{clip(response_id)}' not found.")
    return log


def _start(request: AnyRequest) -> int:
    """The first sequence number that the reader has not seen."""
    sent = request.query_params.get("starting_after")
    if sent is None:
        return 0
    if not re.fullmatch(r"-?[0-9]{1,18}", sent):
        raise invalid_type("starting_after", "an integer", sent)
    if int(sent) < -1:
        raise invalid_value("starting_after", "Invalid 'starting_after': expected a sequence number.")
    return int(sent) + 1
