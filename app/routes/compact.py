"""`POST /v1/responses/compact`: what was said, cut down to the user's messages and one sealed summary."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from antiphon.app.context import AnyRequest, house, owner
from antiphon.app.errors import SERVER, ApiError, unknown
from antiphon.app.event_log import Log
from antiphon.app.projections.item_lists import told
from antiphon.app.requests import input_items as items_of
from antiphon.app.requests.json_body import document
from antiphon.app.requests.responses import read
from antiphon.app.routes.engine_ready import awake
from antiphon.app.routes.replies import collect, json_reply, open_turns
from antiphon.app.turns.stored_history import Past, identified
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import Response as Said

FIELDS = frozenset(
    """model input instructions previous_response_id prompt_cache_key prompt_cache_retention prompt_cache_options
    service_tier reasoning image tools parallel_tool_calls text""".split()
)
"""What such a body may hold: it is read as a request for a response, so each is checked and served as there."""


@post("/v1/responses/compact", status_code=200)
async def compact(request: AnyRequest) -> Response[Any]:
    """The answer is to be sent back as it is, in place of what it was made of. Nothing is stored."""
    home, body = house(request), document(await request.body())
    for key in body:
        if key not in FIELDS:
            raise unknown(key)
    await awake(request, body)
    past = Past(home.store, owner(request), home.turns.seals)
    asked = read(_triggered(body), home.catalogue, past, home.settings)
    said = (*past.earlier(body), *asked.spec.given)
    logs = await open_turns(request, asked)
    return json_reply(await collect(request, _compacted(logs[0], said), logs))


def _triggered(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a request for a response."""
    said = body.get("input")
    if isinstance(said, str):
        said = [{"role": "user", "content": said}]
    if said is None or isinstance(said, list):
        said = [*(said or ()), {"type": items_of.TRIGGER}]
    return {**body, "input": said, "store": False}


async def _compacted(log: Log, items: Sequence[AnyInput]) -> bytes:
    """The user's messages as they are, then what the turn put out. Raises `ApiError` where it failed."""
    said: Said = await log.finished()
    if said.status != "completed":
        message = said.error.message if said.error else "The compaction was cut short."
        raise ApiError(500, said.error.code if said.error else None, message, kind=SERVER)
    kept = [item for item in items if isinstance(item, InputMessage) and item.role == "user"]
    return msgspec.json.encode(
        {
            "id": said.id,
            "object": "response.compaction",
            "created_at": said.created_at,
            "output": [*(told(item) for item in identified(tuple(kept), said.id)), *msgspec.to_builtins(said.output)],
            "usage": said.usage,
        }
    )
