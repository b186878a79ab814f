"""The request guard: pure ASGI middleware in front of all routes, which see only requests that pass its checks.

The cheapest check runs first, and a client that is not allowed learns only the first failure: Host and Origin, the form
of the path (see `app.http.endpoints.target`), the WebSocket handshake (if it is one), API key, content type, content
encoding and size of the body.
Every exception leaves as an error in the shape of the endpoint, never as a traceback or HTML. The guard parses no body,
and knows no path: it reads the declaration of the endpoint that the table has found.
"""

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus

import structlog

from antiphon.app.errors import ANTHROPIC_HEADER, ApiError, clip_text, internal_error, shape_error
from antiphon.app.http.admission import MAX_CACHED_HEADS, RequestHead
from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend, HeaderPairs
from antiphon.app.http.cors import (
    CorsPolicy,
    check_fetch_site,
    check_page_key,
    is_preflight,
)
from antiphon.app.http.endpoints.endpoint import Endpoint, Form, Key
from antiphon.app.http.endpoints.table import EndpointTable, Lookup, Match, Redirect, require_match
from antiphon.app.http.endpoints.target import build_refusal, read_query
from antiphon.app.http.headers import check_header_limits, choose_request_id, decode_headers, host_name, sent_key
from antiphon.app.http.request_body import (
    BodyMemory,
    BodyReservation,
    check_body_head,
    find_max_bytes,
    limit_body,
    parse_encoding,
)
from antiphon.app.http.request_state import RequestState, build_record, count_bytes, open_request
from antiphon.app.keys.key_checks import find_key, require_operator
from antiphon.app.keys.key_ring import CONTROL_KEY, KeyRing
from antiphon.app.lifecycle.malloc_trim import MemoryReleaser
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.options.settings import LOOPBACK_HOSTS, WILDCARD_HOSTS, Settings
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.tracing.context import RequestTrace

HTTP_VERSIONS = frozenset({"1.0", "1.1"})
CLOSE_HEADER = ((b"connection", b"close"),)
START_MESSAGES = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_log = structlog.get_logger(__name__)


class RequestGuard:
    """Wraps `app`. `on_request_done` is called once per request, when its response has ended.

    In a burst, excess requests must be cheap to reject, so that all of them get a prompt answer and delay no other
    request.
    """

    def __init__(
        self,
        app: AsgiApp,
        table: EndpointTable,
        settings: Settings,
        *,
        on_request_done: Callable[[AccessRecord], None] = lambda _: None,
        websocket_app: AsgiApp | None = None,
        body_memory: BodyMemory | None = None,
        page: AsgiApp | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        self._keys = KeyRing(settings.fixed_keys, settings.file_keys) if keys is None else keys
        self.table = table
        self._page = page
        self._app, self._settings = app, settings
        self.on_request_done = on_request_done
        self.check_capacity: Callable[[Endpoint, ApiKey], HeaderPairs] = lambda *_: ()
        """Called with the endpoint of a request that passed all checks, and its key. It returns headers of the reply,
        and may raise `ApiError`."""
        self.begin_trace: Callable[[Mapping[str, str]], RequestTrace | None] = lambda _: None
        """Returns the span of a request with these headers."""
        self.count_reply: Callable[[ApiKey, int], None] = lambda *_: None
        """Called for each request that has been answered, with its key and the status."""
        self._websocket_app = websocket_app if settings.enable_websocket else None
        self._allowed_names = (
            LOOPBACK_HOSTS | {settings.host.lower()} | {name.lower() for name in settings.allowed_hosts}
        )
        self._cors = CorsPolicy(settings.allowed_origins)
        self._memory_releaser = MemoryReleaser()
        self._body_memory = body_memory or BodyMemory(settings.max_body_bytes)
        self.closes_connections = False
        """True once another process shall get the next requests: each reply closes its connection."""
        self._any_host = settings.host in WILDCARD_HOSTS
        self._inspect_head_cached = lru_cache(MAX_CACHED_HEADS)(self._inspect_head)
        self._keys.on_change.append(self._inspect_head_cached.cache_clear)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handles one ASGI scope: the lifespan of the server, or a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await self._handle_request(scope, receive, send)

    async def _handle_request(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        headers, state = decode_headers(scope), open_request(scope, self.table)
        endpoint, reservation = state.match.endpoint, BodyReservation(self._body_memory)
        response = _ResponseSender(
            send, self._reply_headers(endpoint, headers, scope["type"]), scope["type"], reservation.release
        )
        state.request_id, state.arrived = response.request_id, time.monotonic()
        state.trace = self.begin_trace(headers) if endpoint.traced else None
        try:
            self._check_head(scope, headers)
            if state.match.sent:
                await _refuse_target(state.match, scope, response)
            elif self._page is not None and endpoint.key is Key.PAGE:
                await self._page(scope, receive, response.send)
            elif is_preflight(scope.get("method", ""), headers) and not endpoint.is_private:
                await response.send_empty(204, self._cors.preflight_headers(headers))
            else:
                self._authorize(scope, headers, state)
                state.check_body()
                await self._answer(scope, receive, response, state, reservation)
        except ApiError as error:
            await response.send_error(shape_error(error, endpoint.shape, response.request_id, headers))
        except Exception:  # noqa: BLE001 - nothing above this would catch it
            # A server bug. The exception's text may contain client data, so it goes to the log only.
            _log.exception("unhandled exception in request", request_id=response.request_id)
            await response.send_error(shape_error(internal_error(), endpoint.shape, response.request_id, headers))
        finally:
            reservation.release()
            self._memory_releaser.on_request_end(state.body_bytes)
            self.record_request(build_record(scope, response.status, response.error_code), state.key)

    async def _answer(
        self,
        scope: AsgiScope,
        receive: AsgiReceive,
        response: "_ResponseSender",
        state: RequestState,
        reservation: BodyReservation,
    ) -> None:
        """Runs the handler of an authorized request. Raises `ApiError` 404 or 405 without a handler."""
        if scope["type"] == "websocket" and self._websocket_app is not None:
            await self._websocket_app(scope, receive, response.send)
            return
        match = require_match(state.match, scope["method"], scope["path"])
        endpoint = match.endpoint
        if endpoint.method == "OPTIONS":
            await response.send_empty(204, ((b"allow", match.allow.encode()),))
            return
        headers = decode_headers(scope)
        state.query = read_query(endpoint, scope, headers)
        response.reply_headers += self.check_capacity(endpoint, state.key)
        max_bytes = find_max_bytes(endpoint, self._settings)
        # An upload is stored while it arrives, so it is no part of the memory that bodies take.
        memory = BodyReservation(BodyMemory(max_bytes)) if isinstance(endpoint.body, Form) else reservation
        body = limit_body(receive, max_bytes, parse_encoding(headers.get("content-encoding", "")), memory)
        state.action = endpoint.action
        routed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        await self._app(routed, count_bytes(body, state), response.send)

    def reject_head(self, head: RequestHead, error: ApiError) -> tuple[ApiError, HeaderPairs]:
        """Records a request that is rejected unparsed. Returns its error, and the headers of every reply to it.

        The error is the one of the first check that fails on the head, else `error`.
        """
        headers, head_error, key = self._inspect_head_cached(head)
        error = head_error or error
        endpoint = head.match.endpoint
        reply_headers = self._reply_headers(endpoint, headers)
        record = AccessRecord(
            *(head.scope["method"], head.scope["path"], error.status, 0.0, _request_id(reply_headers)),
            error.code or "",
            trace=self.begin_trace(headers),
            route=head.match.template,
        )
        self.record_request(record, key)
        return shape_error(error, endpoint.shape, _request_id(reply_headers), headers), reply_headers

    def record_request(self, record: AccessRecord, key: ApiKey) -> None:
        """Records a request of this key that has been answered."""
        self.count_reply(key, record.status)
        self.on_request_done(record)

    def _inspect_head(self, head: RequestHead) -> tuple[dict[str, str], ApiError | None, ApiKey]:
        """Returns the decoded headers, the error of the first check that fails, if any, and the key."""
        headers, state = decode_headers(head.scope), RequestState(match=head.match)
        try:
            self._check_head(head.scope, headers)
            self._authorize(head.scope, headers, state)
        except ApiError as error:
            return headers, error, state.key
        return headers, None, state.key

    def _reply_headers(self, endpoint: Endpoint, headers: dict[str, str], kind: str = "http") -> HeaderPairs:
        """Returns the headers of every reply to a request: its id first. CORS never opens the web page's files.

        Caches keep these, so they have an id that no client chose. `kind`: the type of the ASGI scope.
        """
        close = CLOSE_HEADER if self.closes_connections and kind == "http" else ()
        if endpoint.key is Key.PAGE:
            return ((b"x-request-id", choose_request_id({}).encode()), *close)
        request_id = choose_request_id(headers).encode()
        anthropic = ((b"request-id", request_id),) if ANTHROPIC_HEADER in headers else ()
        cors = () if endpoint.is_private else self._cors.reply_headers(headers.get("origin"))
        return ((b"x-request-id", request_id), *anthropic, *cors, *close)

    def _check_head(self, scope: AsgiScope, headers: dict[str, str]) -> None:
        """Runs the checks that a preflight must pass, too. Raises `ApiError`."""
        if scope.get("http_version", "1.1") not in HTTP_VERSIONS:
            raise ApiError(400, "invalid_http", "Unsupported HTTP version. Use HTTP/1.1.")
        check_header_limits(scope)
        self._check_host(headers)

    def _authorize(self, scope: AsgiScope, headers: dict[str, str], state: RequestState) -> None:
        """Runs the other checks that do not need the body, and notes the API key. Raises `ApiError`."""
        endpoint = state.match.endpoint
        if scope["type"] == "websocket" or headers.get("upgrade", "").lower() == "websocket":
            self._check_websocket(scope, headers, state)
        elif endpoint.key is Key.NONE:
            return
        check_fetch_site(endpoint, headers)
        is_control = endpoint.key is Key.OPERATOR and self._keys.is_control_key(sent_key(headers))
        state.key = CONTROL_KEY if is_control else self.authenticate(headers)
        state.owner = state.key.owner
        if endpoint.key is Key.OPERATOR:
            require_operator(state.key)
        if endpoint.key is Key.INSPECTION and not self._keys.is_required:
            check_page_key(sent_key(headers), self._keys.page_key.encode())
        if scope.get("method") in METHODS_WITH_BODY:
            check_body_head(endpoint, headers, self._settings)
            if isinstance(endpoint.body, Form):  # a form of another page can send one
                self._check_origin(headers, self._allowed_names | {host_name(headers["host"])})

    def _check_websocket(self, scope: AsgiScope, headers: dict[str, str], state: RequestState) -> None:
        """Rejects pages of other origins: a browser opens a WebSocket for any page, without a CORS preflight."""
        if self._websocket_app is None or scope["type"] != "websocket":
            message = "WebSocket upgrades are not supported. Send the same body as an HTTP POST."
            raise ApiError(426, "upgrade_not_supported", message, headers=(("upgrade", "HTTP/1.1"),))
        if not isinstance(state.match, Match):
            raise ApiError(404, "unknown_url", f"There is no WebSocket endpoint at {clip_text(scope['path'])}.")
        self._check_origin(headers, self._allowed_names | {host_name(headers["host"])})

    def _check_host(self, headers: dict[str, str]) -> None:
        """Rejects other Host names and origins: a website must not reach a local server through a name it controls."""
        if "host" not in headers:
            raise ApiError(400, "missing_host", "The Host header is missing.")
        if self._any_host:
            return
        host = host_name(headers["host"])
        if host not in self._allowed_names:
            name = clip_text(host)
            message = f"Host '{name}' is not allowed. Start the server with `--allowed-host {name}`."
            raise ApiError(421, "host_not_allowed", message)
        self._check_origin(headers, self._allowed_names)

    def _check_origin(self, headers: dict[str, str], same_hosts: frozenset[str]) -> None:
        """Rejects pages of other hosts than these, unless their origin is allowed."""
        origin = headers.get("origin")
        if origin is not None and host_name(origin.partition("://")[2]) not in same_hosts:
            self._cors.check_origin(origin)

    def authenticate(self, headers: dict[str, str]) -> ApiKey:
        """Returns the API key that was sent; `NO_KEY` if none is required. Raises `ApiError` 401."""
        return find_key(self._keys, sent_key(headers))


class _ResponseSender:
    """Sends a response: adds `reply_headers` to its headers, and starts it at most once."""

    def __init__(self, send: AsgiSend, reply_headers: HeaderPairs, kind: str, on_start: Callable[[], None]) -> None:
        self._send, self.reply_headers, self._kind, self._on_start = send, reply_headers, kind, on_start
        self.request_id = _request_id(reply_headers)
        self.status = 499
        """Status for the access log. 499 until the response starts: the client disconnected before."""
        self.error_code = ""
        self._begun = False

    async def send(self, message: AsgiMessage) -> None:
        """Passes a message on; adds headers to the one that starts the response."""
        if message["type"] in START_MESSAGES:
            self._on_start()
            self._begun, self.status = True, message.get("status", 101)
            message = {**message, "headers": [*message.get("headers", ()), *self.reply_headers]}
        await self._send(message)

    async def send_empty(self, status: int, headers: HeaderPairs) -> None:
        """Sends a response without a body."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_error(self, error: ApiError) -> None:
        """Sends an error response. After the response has started, leaves it unfinished, which cuts the connection."""
        if self._begun:
            return
        self.error_code = error.code or ""
        body = error.encoded_body
        pairs = [*error.header_pairs]
        if error.status == 413 or error.code in ("ambiguous_length", "invalid_http"):
            pairs = [*dict.fromkeys((*pairs, *CLOSE_HEADER))]
        prefix = "http.response" if self._kind == "http" else "websocket.http.response"
        await self.send({"type": f"{prefix}.start", "status": int(error.status), "headers": pairs})
        await self.send({"type": f"{prefix}.body", "body": body, "more_body": False})


async def _refuse_target(lookup: Lookup, scope: AsgiScope, response: _ResponseSender) -> None:
    """Redirects to the canonical path, where that is the one that was meant. Raises `ApiError` 404 elsewhere."""
    if not isinstance(lookup, Redirect):
        raise build_refusal(lookup.sent, scope.get("method", "GET"), scope["path"])
    location = (b"location", lookup.location.encode())
    await response.send_empty(HTTPStatus.PERMANENT_REDIRECT, (location, (b"content-length", b"0")))


def _request_id(reply_headers: HeaderPairs) -> str:
    """Returns the request id in the headers of a reply, of which it is the first."""
    return reply_headers[0][1].decode()
