"""`POST /v1/chat/completions`: starts the same turns as `/v1/responses`, and returns them as chat completions."""

from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, server_context
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.chat.schema import ChatCompletion
from antiphon.app.projections.chat.stream import ChatStream, final_completion
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.route_helpers.engine_ready import wait_until_ready
from antiphon.app.route_helpers.http_replies import final_reply, json_reply, start_turns, stream_reply


@endpoint("POST", "/v1/chat/completions", body=ChatBody, starts="chat", batch=True, reply=ChatCompletion)
async def create_chat_completion(request: AnyRequest) -> Response[Any]:
    """Generates the next message of a chat, in one or more choices, and returns it as a stream or in one piece."""
    context = server_context(request)
    body = await parse_body(await request.body())
    await wait_until_ready(request, body)
    parsed = await run_parser(
        request_state(request.scope).body_bytes, read_chat_request, body, request_models(request), context.settings
    )
    logs = await start_turns(request, parsed)
    if parsed.form.stream:
        return stream_reply(ChatStream(logs, parsed.form), context)
    return json_reply(await final_reply(request, final_completion(logs, parsed.form), logs))
