"""Sends a line's request to the application inside this process, past the connection and the request guard.

So a line gets the very reply that its own request would get: the same checks, the same turns, the same log.
"""

import asyncio

import msgspec
import structlog
from msgspec import Struct

from antiphon.app.errors import ApiError, internal_error
from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiScope
from antiphon.app.http.endpoints.table import Lookup
from antiphon.app.http.headers import new_request_id
from antiphon.app.http.request_state import SCOPE_KEY, RequestState, TurnAdmission
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.store.batches.records import TokenCounts

_log = structlog.get_logger(__name__)


class LineReply(Struct, frozen=True, kw_only=True):
    """The HTTP reply to a line."""

    status: int
    body: bytes
    request_id: str


class _InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class _OutputDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class _ReplyUsage(Struct, frozen=True):
    """Usage in the words of Responses, and of the other endpoints."""

    input_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    prompt_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _ReplyError(Struct, frozen=True):
    code: str | None = None


class _ReplyBody(Struct, frozen=True):
    usage: _ReplyUsage | None = None
    error: _ReplyError | None = None


_reply_decoder = msgspec.json.Decoder(_ReplyBody)


def error_reply(error: ApiError) -> LineReply:
    """Returns the reply to a line that is refused before it is sent."""
    return LineReply(status=error.status, body=error.encoded_body, request_id=new_request_id())


async def send_line(app: AsgiApp, match: Lookup, body: bytes, key: ApiKey, admission: TurnAdmission) -> LineReply:
    """Returns the reply to a POST of `body` to an endpoint without parameters. Cancels it if it is cancelled itself."""
    request_id = new_request_id()
    state = RequestState(
        match=match, owner=key.owner, key=key, request_id=request_id, body_bytes=len(body), turn_admission=admission
    )
    received = iter(({"type": "http.request", "body": body, "more_body": False},))
    status, parts = 500, list[bytes]()

    async def receive() -> AsgiMessage:
        for message in received:
            return message
        await asyncio.Event().wait()  # the client never disconnects
        raise AssertionError

    async def send(message: AsgiMessage) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = int(message["status"])
        else:
            parts.append(message.get("body", b""))

    try:
        await app(_build_scope(match.template, len(body), state), receive, send)
    except ApiError as error:
        status, parts = error.status, [error.encoded_body]
    except Exception:  # noqa: BLE001  # a bug of the server, as in the request guard
        _log.exception("unhandled exception in a line of a batch", request_id=request_id)
        status, parts = 500, [internal_error().encoded_body]
    return LineReply(status=status, body=b"".join(parts), request_id=request_id)


def read_usage(body: bytes) -> TokenCounts:
    """Returns the usage in a reply's body; no tokens for an error."""
    usage = _decode_reply(body).usage or _ReplyUsage()
    input_details = usage.input_tokens_details or usage.prompt_tokens_details or _InputDetails()
    output_details = usage.output_tokens_details or usage.completion_tokens_details or _OutputDetails()
    return TokenCounts(
        usage.input_tokens or usage.prompt_tokens or 0,
        input_details.cached_tokens or 0,
        usage.output_tokens or usage.completion_tokens or 0,
        output_details.reasoning_tokens or 0,
    )


def read_error_code(body: bytes) -> str | None:
    """Returns the code of the error that a reply's body describes, if any."""
    error = _decode_reply(body).error
    return error.code if error is not None else None


def _decode_reply(body: bytes) -> _ReplyBody:
    try:
        return _reply_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ReplyBody()


def _build_scope(path: str, length: int, state: RequestState) -> AsgiScope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(length).encode()),
        ],
        "client": None,
        "server": ("localhost", 80),
        "state": {},
        SCOPE_KEY: state,
    }
