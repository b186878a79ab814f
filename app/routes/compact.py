"""`POST /v1/responses/compact`: what was said, cut down to the user's messages and one sealed summary."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.errors import SERVER_ERROR, ApiError, unknown_field
from antiphon.app.event_log import EventLog
from antiphon.app.projections.item_lists import listed_item
from antiphon.app.requests import input_items as items_of
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.responses import read_responses_request
from antiphon.app.routes.engine_ready import wait_until_ready
from antiphon.app.routes.replies import final_reply, json_reply, open_turns
from antiphon.app.turns.stored_history import StoredHistory, with_ids
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import Response as Said

COMPACT_FIELDS = frozenset(
    """model input instructions previous_response_id prompt_cache_key prompt_cache_retention prompt_cache_options
    service_tier reasoning image tools parallel_tool_calls text""".split()
)
"""What such a body may hold: it is read as a request for a response, so each is checked and served as there."""


@post("/v1/responses/compact", status_code=200)
async def compact_conversation(request: AnyRequest) -> Response[Any]:
    """The answer is to be sent back as it is, in place of what it was made of. Nothing is stored."""
    home, body = server_context(request), parse_object(await request.body())
    for key in body:
        if key not in COMPACT_FIELDS:
            raise unknown_field(key)
    await wait_until_ready(request, body)
    past = StoredHistory(home.store, request_owner(request), home.turn_manager.sealer)
    asked = read_responses_request(_add_trigger(body), home.models, past, home.settings)
    said = (*asked.earlier_items, *asked.spec.input_items)
    logs = await open_turns(request, asked)
    return json_reply(await final_reply(request, _compacted_output(logs[0], said), logs))


def _add_trigger(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a request for a response."""
    said = body.get("input")
    if isinstance(said, str):
        said = [{"role": "user", "content": said}]
    if said is None or isinstance(said, list):
        said = [*(said or ()), {"type": items_of.COMPACTION_TRIGGER}]
    return {**body, "input": said, "store": False}


async def _compacted_output(log: EventLog, items: Sequence[AnyInput]) -> bytes:
    """The user's messages as they are, then what the turn put out. Raises `ApiError` where it failed."""
    said: Said = await log.wait_finished()
    if said.status != "completed":
        message = said.error.message if said.error else "The compaction was cut short."
        raise ApiError(500, said.error.code if said.error else None, message, kind=SERVER_ERROR)
    kept = [item for item in items if isinstance(item, InputMessage) and item.role == "user"]
    return msgspec.json.encode(
        {
            "id": said.id,
            "object": "response.compaction",
            "created_at": said.created_at,
            "output": [
                *(listed_item(item) for item in with_ids(tuple(kept), said.id)),
                *msgspec.to_builtins(said.output),
            ],
            "usage": said.usage,
        }
    )
