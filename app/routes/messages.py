"""`POST /v1/messages`: starts the same turns as `/v1/responses`, and returns them as Anthropic messages."""

from functools import partial
from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, request_owner, server_context
from antiphon.app.errors import ApiError, invalid_value
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.messages.schema import AnthropicMessage
from antiphon.app.projections.messages.stream import MessagesStream, final_message
from antiphon.app.requests.messages.body import CountTokensBody, MessagesBody
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.requests.query_fields import BetaQuery
from antiphon.app.requests.turn_spec import ParsedRequest
from antiphon.app.route_helpers.engine_ready import wait_until_known, wait_until_ready
from antiphon.app.route_helpers.http_replies import (
    cancel_on_disconnect,
    final_reply,
    json_reply,
    start_turns,
    stream_reply,
)
from antiphon.app.turn_types.encryption import DecryptionError
from antiphon.app.turn_types.reply_form import MessagesForm

DROPPED_HEADER = "x-antiphon-dropped"
MAX_NAMED = 20
"""Number of paths in that header."""
CLAUDE_CODE = "claude-cli/"
"""Begins the `User-Agent` of Claude Code, which can neither set `block_binding` nor remove foreign thinking."""


@endpoint(
    "POST",
    "/v1/messages",
    body=MessagesBody,
    query=BetaQuery,
    starts="messages",
    shape="anthropic",
    reply=AnthropicMessage,
)
async def create_message(request: AnyRequest) -> Response[Any]:
    """Generates the next message of a conversation, and returns it as a stream or in one piece."""
    parsed = await _read_request(request)
    show_thinking = parsed.form.show_thinking
    try:
        [log] = await start_turns(request, parsed)
    except ApiError as error:
        raise _with_messages_param(error) from None
    if parsed.form.stream:
        reply = stream_reply(MessagesStream(log, show_thinking=show_thinking), server_context(request))
    else:
        reply = json_reply(await final_reply(request, final_message(log, show_thinking=show_thinking), [log]))
    return _name_dropped(reply, parsed.form)


@endpoint("POST", "/v1/messages/count_tokens", body=CountTokensBody, query=BetaQuery, shape="anthropic")
async def count_message_tokens(request: AnyRequest) -> Response[Any]:
    """Returns the number of tokens in the prompt of a request. Nothing is generated."""
    parsed = await _read_request(request, count_only=True)
    rendering = server_context(request).turn_manager.preparer.render_prompt(
        parsed.model, parsed.spec, request_owner(request)
    )
    try:
        prompt = await cancel_on_disconnect(request, rendering)
    except ApiError as error:
        raise _with_messages_param(error) from None
    return _name_dropped(json_reply({"input_tokens": prompt.num_tokens}), parsed.form)


def _name_dropped(reply: Response[Any], form: MessagesForm) -> Response[Any]:
    """Adds the header that names what was left out of the prompt."""
    if form.dropped:
        rest = len(form.dropped) - MAX_NAMED
        more = f" and {rest} more" if rest > 0 else ""
        reply.headers[DROPPED_HEADER] = ", ".join(form.dropped[:MAX_NAMED]) + more
    return reply


async def _read_request(request: AnyRequest, *, count_only: bool = False) -> ParsedRequest[MessagesForm]:
    """Waits for the engine, then parses the body."""
    context, body, owner = server_context(request), await parse_body(await request.body()), request_owner(request)
    if count_only:
        await wait_until_known(request, request_models(request).get_model(body.get("model")))
    else:
        await wait_until_ready(request, body)

    def decrypt(sealed: str) -> str | None:
        try:
            return context.turn_manager.sealer.open(owner, "reasoning", sealed)
        except DecryptionError:
            return None

    is_claude_code = request.headers.get("user-agent", "").startswith(CLAUDE_CODE)
    read = partial(read_messages_request, count_only=count_only, drop_foreign=is_claude_code)
    size = request_state(request.scope).body_bytes
    return await run_parser(size, read, body, request_models(request), decrypt, context.settings)


def _with_messages_param(error: ApiError) -> ApiError:
    """Returns an error of a turn with the name that its field has here."""
    if error.param == "continue_final_message":  # the name of a begun answer in chat completions
        message = "this model continues no begun answer: the conversation must end with a user message."
        return invalid_value("messages", f"Invalid 'messages': {message}")
    return error
