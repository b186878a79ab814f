"""`/v1/inspect/turns`: the list of turns, and what is known of one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from litestar import delete, get
from litestar.params import FromPath
from litestar.response import Response, Stream

from antiphon.app.base.errors import ApiError, clip_text
from antiphon.app.base.event_log import EventLog
from antiphon.app.base.turn_stats import TurnStats
from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.model_registry import ServedModel
from antiphon.app.projections.inspection.exports import EXPORT_FORMS, FILE_NAMES, export_turn
from antiphon.app.projections.inspection.prompts import encode_prompt
from antiphon.app.projections.inspection.readings import encode_reading
from antiphon.app.projections.inspection.steps import encode_page, encode_steps
from antiphon.app.projections.inspection.summaries import (
    NOT_RECORDED,
    TOO_LONG,
    build_summary,
    describe_missing,
    describe_record,
)
from antiphon.app.replies.inspected_turns import InspectedTurn, find_turn
from antiphon.app.routes.inspection.query import (
    DEFAULT_EVENTS,
    DEFAULT_TOKENS,
    DEFAULT_TURNS,
    MAX_EVENTS,
    MAX_TOKENS,
    MAX_TURNS,
    read_filter,
    read_flag,
    read_integer,
)
from antiphon.app.routes.inspection.replies import file_page, json_page, lines_page, missing_page, text_page
from antiphon.app.store.history.summary_tables import LATEST
from antiphon.app.store.store import ResponseStore

MAX_SEARCHED_TURNS = 1_000
"""Turns whose requests are searched for a text, latest first."""
PING_INTERVAL_S = 15.0
"""Silence of a turn that is followed, after which an empty line is sent: proxies close silent streams."""
MAX_NUMBER = 10**9


@get("/v1/inspect/turns")
async def list_turns(request: AnyRequest) -> Response[bytes]:
    """Lists summaries of the owner's turns, latest first."""
    context, owner, query = server_context(request), request_owner(request), request.query_params
    limit = read_integer(query, "limit", DEFAULT_TURNS, 1, MAX_TURNS)
    wanted, text = read_filter(query)
    recorder, store = context.turn_manager.recorder, context.store
    records = [] if recorder is None else list(recorder.list_records(owner))
    await store.prepare_read(owner)
    place = await _find_place(store, records, owner, query["after"]) if query.get("after") else LATEST
    records = [each for each in records if place_of(each.stats) < place and wanted.fits(each.stats)]
    stored: list[TurnStats] = []
    if text:
        records = await asyncio.to_thread(_search_requests, records[:MAX_SEARCHED_TURNS], text)
    else:
        stored = await store.read(lambda database: database.summaries.list_summaries(owner, wanted, limit + 1, place))
    found = {each.response_id: each for each in (*stored, *(record.stats for record in records))}
    shown = sorted(found.values(), key=place_of, reverse=True)
    recorded = {record.id for record in records}
    data = [build_summary(each, is_recorded=each.response_id in recorded) for each in shown[:limit]]
    searched = {"searched": MAX_SEARCHED_TURNS} if text else {}
    return json_page({"object": "list", "data": data, "has_more": len(shown) > limit} | searched)


def place_of(stats: TurnStats) -> tuple[float, str]:
    """Returns the place of a turn in a list: its time and its id."""
    return stats.started_at, stats.response_id


async def _find_place(
    store: ResponseStore, records: Sequence[TurnRecord], owner: str, turn_id: str
) -> tuple[float, str]:
    """Returns the place of the turn that `after` names. Raises `ApiError` 400."""
    stats = next((each.stats for each in records if each.id == turn_id), None)
    stats = stats or await store.read(lambda database: database.summaries.find(owner, turn_id))
    if stats is None:
        raise ApiError(400, "invalid_value", f"There is no turn with the id '{clip_text(turn_id)}'.", "after")
    return place_of(stats)


def _search_requests(records: Sequence[TurnRecord], text: str) -> list[TurnRecord]:
    """Returns the records whose request has a text, in upper or lower case."""
    searched = text.casefold()
    return [each for each in records if searched in each.read_request().decode(errors="replace").casefold()]


@get("/v1/inspect/turns/{turn_id:str}")
async def retrieve_turn(request: AnyRequest, turn_id: FromPath[str]) -> Response[bytes]:
    """Returns what is known of a turn: its ending, times and sizes, and where its parts are."""
    turn = await find_turn(request, turn_id)
    summary = build_summary(turn.stats, is_recorded=turn.record is not None)
    details = describe_missing() if turn.record is None else await asyncio.to_thread(describe_record, turn.record)
    return json_page(summary | {"num_events": len(turn.log.entries)} | details)


@delete("/v1/inspect/turns/{turn_id:str}", status_code=200)
async def delete_turn(request: AnyRequest, turn_id: FromPath[str]) -> Response[bytes]:
    """Forgets the record of a turn. Its response stays where it is."""
    turn = await find_turn(request, turn_id)
    recorder = server_context(request).turn_manager.recorder
    is_deleted = recorder is not None and recorder.forget(turn.log.owner, turn.log.id)
    return json_page({"id": turn.log.id, "object": "inspect.turn", "deleted": is_deleted})


@get("/v1/inspect/turns/{turn_id:str}/events")
async def list_events(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the events of a turn as JSON lines. With `follow`, goes on while the turn runs."""
    query = request.query_params
    after = read_integer(query, "after", -1, -1, MAX_NUMBER)
    limit = read_integer(query, "limit", DEFAULT_EVENTS, 1, MAX_EVENTS)
    follow = read_flag(query, "follow")
    turn = await find_turn(request, turn_id)
    if follow:
        return lines_page(Stream(_follow_events(turn.log, after), media_type="application/x-ndjson"))
    entries = turn.log.entries[: turn.log.published]
    return lines_page(await asyncio.to_thread(encode_page, entries, after, limit))


async def _follow_events(log: EventLog, after: int) -> AsyncIterator[bytes]:
    """Yields the lines of a log as it grows. A reader that stops reading stops here, and delays nothing else."""
    woken = asyncio.Event()
    number = min(after + 1, len(log.entries))
    step = sum(entry.detail is not None for entry in log.entries[:number])
    with log.open_reader(number, woken.set) as reader:
        while not reader.at_end:
            woken.clear()
            while entries := reader.take_entries():
                lines = list(encode_steps(entries, number, step))
                number, step = number + len(entries), lines[-1][0]
                yield b"".join(line for _, line in lines)
            if not reader.at_end:
                try:
                    await asyncio.wait_for(woken.wait(), PING_INTERVAL_S)
                except TimeoutError:
                    yield b"\n"


@get("/v1/inspect/turns/{turn_id:str}/prompt")
async def retrieve_prompt(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the prompts of a turn as JSON lines: runs of tokens with their texts."""
    query = request.query_params
    after = read_integer(query, "after", -1, -1, MAX_NUMBER)
    limit = read_integer(query, "limit", DEFAULT_TOKENS, 1, MAX_TOKENS)
    turn = await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(NOT_RECORDED)
    model = _find_model(request, turn)
    form = None if model is None else model.format
    rounds = await asyncio.to_thread(turn.record.read_rounds)
    return lines_page(await asyncio.to_thread(encode_prompt, rounds, form, after, limit))


def _find_model(request: AnyRequest, turn: InspectedTurn) -> ServedModel | None:
    """Returns the turn's model; None if it is not served any more."""
    models = server_context(request).models.served
    return next((model for model in models if turn.stats.model in model.names), None)


@get("/v1/inspect/turns/{turn_id:str}/grammar")
async def retrieve_grammar(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the grammar that constrained the first round; empty if there was none."""
    turn = await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(NOT_RECORDED)
    rounds = await asyncio.to_thread(turn.record.read_rounds)
    return text_page(rounds[0].grammar.encode() if rounds else b"")


@get("/v1/inspect/turns/{turn_id:str}/request")
async def retrieve_request(request: AnyRequest, turn_id: FromPath[str]) -> Response[Any]:
    """Returns the body of the request, without secrets."""
    turn = await find_turn(request, turn_id)
    if turn.record is None:
        return missing_page(NOT_RECORDED)
    body = await asyncio.to_thread(turn.record.read_request)
    return text_page(body, "application/json") if body else missing_page(TOO_LONG)


@get("/v1/inspect/turns/{turn_id:str}/readings/{api:str}")
async def retrieve_reading(request: AnyRequest, turn_id: FromPath[str], api: FromPath[str]) -> Response[Any]:
    """Returns what an API would have sent for the turn, as JSON lines."""
    turn = await find_turn(request, turn_id)
    if api not in ("responses", "chat", "messages", "completions"):
        raise ApiError(404, "unknown_url", f"There is no reading '{clip_text(api)}'.")
    return lines_page(await asyncio.to_thread(encode_reading, turn.log, api))  # type: ignore[arg-type]  # checked above


@get("/v1/inspect/turns/{turn_id:str}/export/{form:str}")
async def export(request: AnyRequest, turn_id: FromPath[str], form: FromPath[str]) -> Response[Any]:
    """Returns a turn as a file: a script, a cassette, a test, or its request for curl or Python."""
    turn = await find_turn(request, turn_id)
    if form not in EXPORT_FORMS:
        raise ApiError(404, "unknown_url", f"There is no export '{clip_text(form)}'.")
    if turn.record is None:
        return missing_page(NOT_RECORDED)
    base_url = f"{request.url.scheme}://{request.headers.get('host', '')}"
    content = await asyncio.to_thread(export_turn, turn.record, _find_model(request, turn), form, base_url)
    return file_page(content.encode(), FILE_NAMES[form].format(id=turn.log.id))
