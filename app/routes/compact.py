"""`POST /v1/responses/compact`: reduces a conversation to the user's messages and one encrypted summary."""

from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, request_owner, server_context
from antiphon.app.errors import SERVER_ERROR, ApiError
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.responses.body import CompactBody
from antiphon.app.requests.responses.input_items import add_compaction_trigger
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.route_helpers.engine_ready import wait_until_ready
from antiphon.app.route_helpers.http_replies import final_reply, json_reply, start_turns
from antiphon.app.route_helpers.listed_items import list_whole_items
from antiphon.app.route_helpers.stored_reads import read_with_history
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.inputs import InputMessage
from antiphon.events.response import Response as ResponseObject


@endpoint("POST", "/v1/responses/compact", body=CompactBody, starts="compact")
async def compact_conversation(request: AnyRequest) -> Response[Any]:
    """Returns items that the client sends in place of the compacted conversation. Nothing is stored."""
    context, body = server_context(request), await parse_body(await request.body())
    decode_body(CompactBody, body)
    await wait_until_ready(request, body)
    parsed = await read_with_history(
        context,
        request_owner(request),
        body,
        request_state(request.scope).body_bytes,
        lambda history: read_responses_request(
            add_compaction_trigger(body), request_models(request), history, context.settings
        ),
    )
    items = (*parsed.earlier_items, *parsed.spec.input_items)
    logs = await start_turns(request, parsed)
    reply = await final_reply(request, _compacted_output(logs[0]), logs)
    user_messages = [item for item in items if isinstance(item, InputMessage) and item.role == "user"]
    contents = {each.sent.reference.sha256: each.sent.data for each in parsed.spec.media if each.sent is not None}
    listed = await list_whole_items(request, with_ids(tuple(user_messages), logs[0].id), contents)
    return json_reply({**reply, "output": [*listed, *reply["output"]]})


async def _compacted_output(log: EventLog) -> dict[str, Any]:
    """Returns the reply without the user's messages, which stand before. Raises `ApiError` if the turn failed."""
    response: ResponseObject = await log.wait_finished()
    if response.status != "completed":
        message = response.error.message if response.error else "The compaction did not complete. Retry the request."
        raise ApiError(500, response.error.code if response.error else None, message, kind=SERVER_ERROR)
    return {
        "id": response.id,
        "object": "response.compaction",
        "created_at": response.created_at,
        "output": response.output,
        "usage": response.usage,
    }
