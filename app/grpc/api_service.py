"""The services of `antiphon.proto`: which HTTP request each method stands for, and the handlers of their calls."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor

from antiphon.app.base.errors import ApiError, clip_text, not_found
from antiphon.app.grpc.descriptors import API_FILE, load_file, message_class
from antiphon.app.grpc.http_call import HttpReply, HttpRequest, forwarded_headers, run_request
from antiphon.app.grpc.request_bodies import convert_body, parse_known_message
from antiphon.app.grpc.statuses import (
    INTERNAL_ERROR,
    CallContext,
    abort_call,
    hold_time_limit,
    send_metadata,
    time_limit,
    write_message,
)
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.requests.fields.responses import RESPONSE_ID

POSTS = {
    "Responses": "/v1/responses",
    "ChatCompletions": "/v1/chat/completions",
    "Completions": "/v1/completions",
}
"""Path that the methods `Create` and `CreateStream` of each service post to."""
_log = structlog.get_logger(__name__)


def list_api_handlers(app: AsgiApp, stall_timeout_s: float) -> list[grpc.GenericRpcHandler]:
    """Returns the handlers of all services. `app` is the whole HTTP application.

    A client that reads nothing for `stall_timeout_s` seconds loses its call.
    """
    handlers = []
    for service in load_file(API_FILE).services_by_name.values():
        methods = {method.name: _ApiMethod(app, method, stall_timeout_s).handler for method in service.methods}
        handlers.append(grpc.method_handlers_generic_handler(service.full_name, methods))
    return handlers


class _ApiMethod:
    """One method: builds the HTTP request of a call and returns its reply."""

    def __init__(self, app: AsgiApp, method: MethodDescriptor, stall_timeout_s: float) -> None:
        self._app, self._stall_timeout_s = app, stall_timeout_s
        self._service, self._name = method.containing_service.name, method.name
        self._reply = method.output_type
        self._is_stream: bool = method.server_streaming
        build = grpc.unary_stream_rpc_method_handler if self._is_stream else grpc.unary_unary_rpc_method_handler
        self._request_class = message_class(API_FILE, method.input_type.name)
        # Messages are bytes here: a request is decoded after its head was accepted, and replies are encoded already.
        self.handler = build(self._run, None, None)
        """Handler of the method's calls."""

    async def _run(self, message: bytes, context: CallContext) -> bytes | None:
        """Runs a call. Returns the reply, unless it is a stream."""
        write = partial(write_message, context, stall_timeout_s=self._stall_timeout_s) if self._is_stream else None
        try:
            request = self._build_request(message, context)
            reply = HttpReply(self._reply, write, _initial_metadata_sender(context, self._stall_timeout_s))
            with hold_time_limit(request.time_limit):
                await run_request(self._app, request, reply)
            return None if self._is_stream else reply.encode_body()
        except ApiError as error:
            await abort_call(context, error)
        except Exception:  # noqa: BLE001  # gRPC would send the exception's text to the client
            _log.exception("unhandled exception in gRPC call", method=f"{self._service}/{self._name}")
            await abort_call(context, INTERNAL_ERROR)
        return None

    def _build_request(self, message: bytes, context: CallContext) -> HttpRequest:
        method, path, query, read_body = "POST", POSTS[self._service], b"", None
        if self._name in ("Create", "CreateStream"):
            read_body = partial(convert_body, self._request_class, message, stream=self._is_stream)
        else:
            method, path, query = self._stored_request(parse_known_message(self._request_class, message))
        return HttpRequest(
            method=method,
            path=path,
            query=query,
            read_body=read_body,
            headers=forwarded_headers(context.invocation_metadata()),
            time_limit=time_limit(context),
        )

    def _stored_request(self, message: Any) -> tuple[str, str, bytes]:
        """Returns method, path and query of a request for a stored response."""
        response_id = message.response_id
        if not RESPONSE_ID.fullmatch(response_id):  # it must not lead to another path
            raise not_found(f"Response with id '{clip_text(response_id)}' not found.")
        path = f"/v1/responses/{response_id}"
        if self._name == "Cancel":
            return "POST", f"{path}/cancel", b""
        if self._name == "Delete":
            return "DELETE", path, b""
        query: dict[str, object] = {"stream": "true"} if self._is_stream else {}
        if message.HasField("starting_after"):
            query["starting_after"] = message.starting_after
        if message.include_obfuscation:
            query["include_obfuscation"] = "true"
        return "GET", path, urlencode(query).encode()


def _initial_metadata_sender(
    context: CallContext, stall_timeout_s: float
) -> Callable[[dict[str, str]], Awaitable[None]]:
    """Returns a function that sends the request id before the first message, as HTTP does in a header."""

    async def send(headers: dict[str, str]) -> None:
        await send_metadata(context, (("x-request-id", headers["x-request-id"]),), stall_timeout_s)

    return send
