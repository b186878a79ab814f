"""`/v1/inspect`: what the server keeps of turns, the table of its state machine, findings, and what runs now."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import msgspec
from litestar.params import FromPath
from litestar.response import Response, Stream

from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context
from antiphon.app.http.endpoints.endpoint import Key, endpoint
from antiphon.app.inspection.process_memory import read_resident_bytes
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.server_figures import decode_figures
from antiphon.app.projections.inspection.live import build_frame
from antiphon.app.projections.inspection.steps import build_table
from antiphon.app.projections.inspection.unoffered import describe_unoffered_finding, list_unoffered_calls
from antiphon.app.route_helpers.inspected_turns import InspectedTurn, find_turn
from antiphon.app.routes.inspection.replies import HEADERS, json_page
from antiphon.app.store.store import ResponseStore
from antiphon.app.turns.continuation.replay_check import UncheckableTurnError, check_replay
from antiphon.events import sse
from antiphon.kit.checker.stream import check_events
from antiphon.kit.findings import Finding

REPLAY_CODE = "replay"
REPLAY_REASON = (
    "The recorded tokens give another event: the log was changed, or this version reads the output differently."
)
DAMAGE = {
    "code": "damaged-log",
    "level": "error",
    "subject": "",
    "count": 1,
    "why": "A row of the store is damaged or missing: the events after it are not shown.",
}
MAX_SERVERS = 200
"""Servers in a list."""
FRAME_INTERVAL_S = 1.0
"""Time between two frames of the live view."""


@endpoint("GET", "/v1/inspect", key=Key.INSPECTION)
async def describe_inspection(request: AnyRequest) -> Response[bytes]:
    """Returns what this server records, and where to find it."""
    context = server_context(request)
    settings, recorder = context.settings, context.turn_manager.recorder
    return json_page(
        {
            "object": "inspect",
            "version": version("antiphon"),
            "mode": settings.inspect_mode,
            "max_bytes": settings.inspect_mib << 20,
            "used_bytes": 0 if recorder is None else recorder.num_bytes,
            "api_key_required": settings.requires_key,
            "links": {name: f"/v1/inspect/{name}" for name in ("turns", "table", "live", "servers")},
        }
    )


@endpoint("GET", "/v1/inspect/table", key=Key.INSPECTION)
async def retrieve_table() -> Response[bytes]:
    """Returns the states, inputs and cells of the state machine."""
    return json_page(build_table())


@endpoint("GET", "/v1/inspect/servers", key=Key.INSPECTION)
async def list_servers(request: AnyRequest) -> Response[bytes]:
    """Lists the servers of the store with the figures of their latest heartbeats: this one, the others alive, the dead.

    A server that was killed is listed until its row is deleted.
    """
    store = server_context(request).store
    await store.prepare_read(request_owner(request))
    rows = await store.read(lambda database: database.list_servers(time.time()))
    servers = [_describe_server(store, *row) for row in rows]
    servers.sort(key=lambda each: (not each["here"], not each["alive"], each["heartbeat_seconds"]))
    return json_page({"object": "list", "data": servers[:MAX_SERVERS], "has_more": len(servers) > MAX_SERVERS})


def _describe_server(store: ResponseStore, name: str, age_s: float, data: str) -> dict[str, Any]:
    figures = decode_figures(data)
    return {
        "object": "inspect.server",
        "id": blake2b(name.encode(), digest_size=8).hexdigest(),
        "here": name == store.name,
        "alive": name in store.servers.list_alive() or name == store.name,
        "heartbeat_seconds": round(age_s, 3),
        "figures": None if figures is None else msgspec.to_builtins(figures),
    }


@endpoint("GET", "/v1/inspect/turns/{turn_id}/findings", key=Key.INSPECTION)
async def list_findings(request: AnyRequest, turn_id: FromPath[str]) -> Response[bytes]:
    """Checks the events of a turn as `antiphon check` would, and whether its tokens give them."""
    turn = await find_turn(request, turn_id)
    entries, is_whole = turn.log.entries[: turn.log.published], turn.log.ended
    found = await asyncio.to_thread(_check, [entry.data for entry in entries], turn.record)
    replay, differences = await asyncio.to_thread(_replay, turn, server_context(request))
    damage = [DAMAGE | {"event": len(entries), "expected": "an event", "actual": turn.damage}] if turn.damage else []
    calls = await asyncio.to_thread(list_unoffered_calls, entries)
    data = [*damage, *map(_describe, found), *map(describe_unoffered_finding, calls), *differences]
    return json_page({"object": "list", "data": data, "complete": is_whole, "replay": replay})


def _replay(turn: InspectedTurn, context: ServerContext) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns whether the tokens of a turn were replayed, and the difference that was found, as a finding."""
    if turn.record is None or turn.damage or not turn.log.ended:
        return {"checked": False, "reason": turn.missing or turn.damage or "the turn has not ended"}, []
    try:
        found = check_replay(turn.record, turn.log, context.models)
    except UncheckableTurnError as error:
        return {"checked": False, "reason": str(error)}, []
    finding = {"code": REPLAY_CODE, "level": "error", "count": 1, "why": REPLAY_REASON}
    differences = [] if found is None else [finding | {"event": found.position} | msgspec.to_builtins(found)]
    for each in differences:
        del each["position"]
    return {"checked": True, "reason": None}, differences


def _check(events: list[bytes], record: TurnRecord | None) -> list[Finding]:
    """Returns the findings about events; those of a running turn may have ones that its next events settle."""
    asked = b"" if record is None or record.stats.api != "responses" else record.read_request()
    request = msgspec.json.decode(asked) if asked else None
    return check_events(map(json.loads, events), request if isinstance(request, dict) else None)


def _describe(finding: Finding) -> dict[str, Any]:
    names = ("code", "level", "subject", "expected", "actual", "count", "why")
    return {"event": finding.position} | {name: getattr(finding, name) for name in names}


@endpoint("GET", "/v1/inspect/live", key=Key.INSPECTION, media_types=("text/event-stream",))
async def watch_live(request: AnyRequest) -> Stream:
    """Streams the running turns of the owner and the figures of the engines, one frame a second."""
    headers = {**HEADERS, "x-accel-buffering": "no"}
    frames = _generate_frames(server_context(request), request_owner(request))
    return Stream(frames, media_type="text/event-stream", headers=headers)


async def _generate_frames(context: ServerContext, owner: str) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while not context.shutting_down:
        resident = await asyncio.to_thread(read_resident_bytes)
        due = loop.time()
        frame = build_frame(context.turn_manager.recorder, context.models.served, owner, resident, time.time())
        yield sse.frame_data(msgspec.json.encode(frame))
        await asyncio.sleep(max(due + FRAME_INTERVAL_S - loop.time(), 0))
