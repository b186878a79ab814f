"""`/v1/inspect/turns`: the list of turns, and what is known of one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar.params import FromPath
from litestar.response import Response, Stream

from antiphon.app.context import AnyRequest, endpoint_table, request_owner, request_query, server_context
from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.endpoints.endpoint import JSON, Key, endpoint
from antiphon.app.inspection.summaries import TurnFilter
from antiphon.app.projections.inspection.exports import EXPORT_FORMS, FILE_NAMES, export_turn
from antiphon.app.projections.inspection.prompts import encode_prompt
from antiphon.app.projections.inspection.readings import encode_reading
from antiphon.app.projections.inspection.steps import encode_page, encode_steps
from antiphon.app.projections.inspection.summaries import (
    REQUEST_TOO_LONG_TEXT,
    build_summary,
    describe_missing,
    describe_record,
)
from antiphon.app.projections.inspection.unoffered import list_unoffered_calls
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.route_helpers.inspected_turns import InspectedTurn, find_turn, forget_turn
from antiphon.app.route_helpers.turn_lists import MAX_SEARCHED_TURNS, TurnQuery, find_place, list_owner_turns
from antiphon.app.routes.inspection.query import EventsQuery, PromptQuery, TurnsQuery
from antiphon.app.routes.inspection.replies import LINES, file_page, json_page, lines_page, missing_page, text_page
from antiphon.app.turn_types.event_log import EventLog, LogDivergedError

PING_INTERVAL_S = 15.0
"""Silence of a turn that is followed, after which an empty line is sent: proxies close silent streams."""


@endpoint("GET", "/v1/inspect/turns", query=TurnsQuery, key=Key.INSPECTION)
async def list_turns(request: AnyRequest) -> Response[bytes]:
    """Lists summaries of the owner's turns, latest first.

    `excerpt` is the last text of the user, at most 80 characters; null if the turn has no record.
    """
    context, owner, query = server_context(request), request_owner(request), request_query(request, TurnsQuery)
    limit, text = query.limit, query.text
    await context.store.prepare_read(owner)
    place = await find_place(context, owner, query.after)
    if place is None:
        raise ApiError(400, "invalid_value", f"There is no turn with the id '{clip_text(query.after)}'.", "after")
    wanted = msgspec.convert(query, TurnFilter, from_attributes=True)
    chosen = TurnQuery(owner=owner, wanted=wanted, text=text, before=place, limit=limit + 1)
    shown = await list_owner_turns(context, chosen)
    data = [build_summary(each.stats, is_recorded=each.is_recorded, excerpt=each.excerpt) for each in shown[:limit]]
    searched = {"searched": MAX_SEARCHED_TURNS} if text else {}
    return json_page({"object": "list", "data": data, "has_more": len(shown) > limit} | searched)


@endpoint("GET", "/v1/inspect/turns/{turn_id}", key=Key.INSPECTION)
async def retrieve_turn(request: AnyRequest, turn_id: FromPath[str]) -> Response[bytes]:
    """Returns what is known of a turn: its ending, times and sizes, and where its parts are."""
    turn = await find_turn(request, turn_id)
    excerpt = "" if turn.record is None else await asyncio.to_thread(turn.record.read_excerpt)
    summary = build_summary(turn.stats, is_recorded=turn.record is not None, excerpt=excerpt)
    details = (
        describe_missing(turn.missing)
        if turn.record is None
        else await asyncio.to_thread(describe_record, turn.record, request.url.path)
    )
    entries = turn.log.entries[: turn.log.published]
    counts = {
        "num_events": len(turn.log.entries),
        "unoffered_calls": await asyncio.to_thread(list_unoffered_calls, entries),
    }
    return json_page(summary | counts | details)


@endpoint("DELETE", "/v1/inspect/turns/{turn_id}", key=Key.INSPECTION)
async def delete_turn(request: AnyRequest, turn_id: FromPath[str]) -> Response[bytes]:
    """Forgets the record of a turn. Its response stays where it is."""
    turn = await find_turn(request, turn_id)
    is_deleted = await forget_turn(server_context(request), turn.log.owner, turn.log.id)
    return json_page({"id": turn.log.id, "object": "inspect.turn", "deleted": is_deleted})


@endpoint("GET", "/v1/inspect/turns/{turn_id}/events", query=EventsQuery, key=Key.INSPECTION, media_types=(LINES,))
async def list_events(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the events of a turn as JSON lines. With `follow`, continues while the turn runs."""
    query, turn = request_query(request, EventsQuery), await find_turn(request, turn_id)
    if query.follow:
        return lines_page(Stream(_follow_events(turn.log, query.after), media_type="application/x-ndjson"))
    entries = turn.log.entries[: turn.log.published]
    return lines_page(await asyncio.to_thread(encode_page, entries, query.after, query.limit))


async def _follow_events(log: EventLog, after: int) -> AsyncIterator[bytes]:
    """Yields the lines of a log as it grows. A reader that stops reading stops here, and delays nothing else."""
    woken = asyncio.Event()
    number = min(after + 1, len(log.entries))
    step = sum(entry.detail is not None for entry in log.entries[:number])
    with log.open_reader(number, woken.set) as reader:
        while not reader.at_end:
            woken.clear()
            try:
                entries = reader.take_entries()
            except LogDivergedError:  # without the last event, so that the reader asks again
                return
            if entries:
                lines = list(encode_steps(entries, number, step))
                number, step = number + len(entries), lines[-1][0]
                yield b"".join(line for _, line in lines)
            elif not reader.at_end:
                try:
                    await asyncio.wait_for(woken.wait(), PING_INTERVAL_S)
                except TimeoutError:
                    yield b"\n"


@endpoint("GET", "/v1/inspect/turns/{turn_id}/prompt", query=PromptQuery, key=Key.INSPECTION, media_types=(LINES, JSON))
async def retrieve_prompt(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the prompts of a turn as JSON lines: runs of tokens with their texts."""
    query, turn = request_query(request, PromptQuery), await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(turn.missing)
    model = _find_model(request, turn)
    form = None if model is None else model.format
    rounds = await asyncio.to_thread(turn.record.read_rounds)
    return lines_page(await asyncio.to_thread(encode_prompt, rounds, form, query.after, query.limit))


def _find_model(request: AnyRequest, turn: InspectedTurn) -> ServedModel | None:
    """Returns the turn's model; None if it is not served any more."""
    models = server_context(request).models.served
    return next((model for model in models if turn.stats.model in model.names), None)


@endpoint("GET", "/v1/inspect/turns/{turn_id}/grammar", key=Key.INSPECTION, media_types=("text/plain", JSON))
async def retrieve_grammar(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the grammar that constrained the first round; empty if there was none."""
    turn = await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(turn.missing)
    rounds = await asyncio.to_thread(turn.record.read_rounds)
    return text_page(rounds[0].grammar.encode() if rounds else b"")


@endpoint("GET", "/v1/inspect/turns/{turn_id}/request", key=Key.INSPECTION)
async def retrieve_request(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the body of the request, without secrets."""
    turn = await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(turn.missing)
    body = await asyncio.to_thread(turn.record.read_request)
    return text_page(body, "application/json") if body else missing_page(REQUEST_TOO_LONG_TEXT)


@endpoint("GET", "/v1/inspect/turns/{turn_id}/readings/{api}", key=Key.INSPECTION, media_types=(LINES,))
async def retrieve_reading(request: AnyRequest, turn_id: FromPath[str], api: FromPath[str]) -> Response[Any]:
    """Returns what an API would have sent for the turn, as JSON lines."""
    turn = await find_turn(request, turn_id)
    if api not in ("responses", "chat", "messages", "completions"):
        raise ApiError(404, "unknown_url", f"There is no reading '{clip_text(api)}'.")
    return lines_page(await asyncio.to_thread(encode_reading, turn.log, api))  # type: ignore[arg-type]  # checked above


@endpoint(
    "GET",
    "/v1/inspect/turns/{turn_id}/export/{form}",
    key=Key.INSPECTION,
    audit="export",
    media_types=("application/octet-stream", JSON),
)
async def export(request: AnyRequest, turn_id: FromPath[str], form: FromPath[str]) -> Response[Any]:
    """Returns a turn as a file: a script, a cassette, a test, or its request for curl or Python."""
    turn = await find_turn(request, turn_id)
    if form not in EXPORT_FORMS:
        raise ApiError(404, "unknown_url", f"There is no export '{clip_text(form)}'.")
    if turn.record is None:
        return missing_page(turn.missing)
    base_url = f"{request.url.scheme}://{request.headers.get('host', '')}"
    path = endpoint_table(request).path_of(turn.stats.api)
    content = await asyncio.to_thread(export_turn, turn.record, _find_model(request, turn), form, base_url, path)
    return file_page(content.encode(), FILE_NAMES[form].format(id=turn.log.id))
