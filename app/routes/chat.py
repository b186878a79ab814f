"""`/v1/chat/completions`: the same turns, read as a chat."""

from typing import Any

from litestar import post
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.projections import chat
from antiphon.app.requests.chat import read_chat_request
from antiphon.app.requests.json_body import parse_object
from antiphon.app.routes.engine_ready import wait_until_ready
from antiphon.app.routes.replies import final_reply, json_reply, open_turns, stream_reply


@post("/v1/chat/completions", status_code=200)
async def create_chat_completion(request: AnyRequest) -> Response[Any]:
    """The next message of a chat, `n` of them where asked for, streamed or whole."""
    home = server_context(request)
    body = parse_object(await request.body())
    await wait_until_ready(request, body)
    asked = read_chat_request(body, home.models, home.settings)
    logs = await open_turns(request, asked)
    if asked.spec.stream:
        return stream_reply(chat.ChatStream(logs, asked.spec), home)
    return json_reply(await final_reply(request, chat.final_completion(logs, asked.spec), logs))
