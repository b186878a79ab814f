"""`/v1/chat/completions`: the same turns, read as a chat."""

from typing import Any

from litestar import post
from litestar.response import Response

from antiphon.app.context import AnyRequest, house
from antiphon.app.projections import chat
from antiphon.app.requests.chat import read
from antiphon.app.requests.json_body import document
from antiphon.app.routes.engine_ready import awake
from antiphon.app.routes.replies import collect, json_reply, open_turns, stream_reply


@post("/v1/chat/completions", status_code=200)
async def create(request: AnyRequest) -> Response[Any]:
    """The next message of a chat, `n` of them where asked for, streamed or whole."""
    home = house(request)
    body = document(await request.body())
    await awake(request, body)
    asked = read(body, home.catalogue, home.settings)
    logs = await open_turns(request, asked)
    if asked.spec.stream:
        return stream_reply(chat.ChatStream(logs, asked.spec), home)
    return json_reply(await collect(request, chat.final(logs, asked.spec), logs))
