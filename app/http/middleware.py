"""The gate: pure ASGI, in front of everything. Nothing behind it sees a request that it has not let through.

In this order, so that the cheapest refusal comes first and no stranger learns more than one fact: the Host and Origin
it may be reached under, a WebSocket (where there is one), the API key, the kind and the encoding of the body, its size.
Whatever goes wrong behind it leaves as an OpenAI-shaped error; no traceback and no HTML ever does. It knows no
routes but the two that are open to all, and nothing of what a body says.
"""

import re
import secrets
import time
from collections.abc import Callable
from functools import lru_cache

import structlog

from antiphon.app.errors import SERVER_ERROR, ApiError, clip_text
from antiphon.app.http.admission import MAX_CACHED_HEADS, RequestHead
from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_body import body_too_large, check_encoding, limit_body
from antiphon.app.http.request_state import request_state
from antiphon.app.observability.access_log import AccessRecord
from antiphon.app.settings import LOOPBACK_HOSTS, WILDCARD_HOSTS, Settings, matching_key

OPEN_PATHS = frozenset({"/health", "/ready"})
WEBSOCKET_PATH = "/v1/responses"
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 256
START_MESSAGES = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = structlog.get_logger(__name__)


class RequestGuard:
    """Wraps `app`. `told` is called once per request, when its answer has ended.

    `room` is asked with the path of a request that is let through, and may raise `ApiError`: in a flood, those too many
    must cost little, so that they hear of it soon and hold nobody up.
    """

    def __init__(
        self,
        app: AsgiApp,
        settings: Settings,
        on_request_done: Callable[[AccessRecord], None] = lambda _: None,
        check_capacity: Callable[[str], None] = lambda _: None,
        websocket_app: AsgiApp | None = None,
    ) -> None:
        self._app, self._settings, self._on_request_done, self._check_capacity = (
            app,
            settings,
            on_request_done,
            check_capacity,
        )
        self._websocket_app = websocket_app if settings.enable_websocket else None
        self._allowed_names = (
            LOOPBACK_HOSTS | {settings.host.lower()} | {name.lower() for name in settings.allowed_hosts}
        )
        self._any_host = settings.host in WILDCARD_HOSTS
        self._check_head_cached = lru_cache(MAX_CACHED_HEADS)(self._check_head)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """One connection's event: the life of the server, or a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await self._handle_request(scope, receive, send)

    async def _handle_request(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        headers = _decode_headers(scope)
        answer = _ResponseSender(send, _choose_request_id(headers), scope["type"])
        began = time.monotonic()
        try:
            owner = self._check_request(scope, headers)
            if scope.get("method") in METHODS_WITH_BODY:
                self._check_capacity(scope["path"])
            state = request_state(scope)
            state.owner, state.request_id = owner, answer.request_id
            if scope["type"] == "websocket" and self._websocket_app is not None:
                await self._websocket_app(scope, receive, answer.send)
                return
            body = limit_body(
                receive, self._settings.max_body_bytes, check_encoding(headers.get("content-encoding", ""))
            )
            await self._app(scope, body, answer.send)
        except ApiError as error:
            await answer.send_error(error)
        except Exception:  # noqa: BLE001 - the last place where one can be caught
            # Ours. The words of an exception may hold what a client sent, so they go to the log and nowhere else.
            _log.exception("unhandled exception in request", request_id=answer.request_id)
            message = "The server had an error while processing your request."
            await answer.send_error(ApiError(500, "server_error", message, kind=SERVER_ERROR))
        finally:
            seconds = time.monotonic() - began
            path = clip_text(scope["path"].encode("unicode_escape").decode())
            self._on_request_done(
                AccessRecord(scope.get("method", "GET"), path, answer.status, seconds, answer.request_id)
            )

    def reject_head(self, head: RequestHead, error: ApiError) -> tuple[ApiError, str]:
        """What a request is answered that nobody will read, and its id: what is wrong with it, else `error`."""
        headers, wrong = self._check_head_cached(head)
        error = wrong or error
        request_id = _choose_request_id(headers)
        self._on_request_done(AccessRecord(head.scope["method"], head.scope["path"], error.status, 0.0, request_id))
        return error, request_id

    def _check_head(self, head: RequestHead) -> tuple[dict[str, str], ApiError | None]:
        """Its headers, and what is wrong with them."""
        headers = _decode_headers(head.scope)
        try:
            self._check_request(head.scope, headers)
        except ApiError as wrong:
            return headers, wrong
        return headers, None

    def _check_request(self, scope: AsgiScope, headers: dict[str, str]) -> str:
        """Everything that can be said before the body. Returns the owner; raises `ApiError`."""
        _check_header_limits(scope)
        self._check_host(headers)
        if scope["type"] == "websocket" or headers.get("upgrade", "").lower() == "websocket":
            self._check_websocket(scope, headers)
        elif scope["path"] in OPEN_PATHS:
            return ""
        owner = self._authenticate(headers)
        if scope.get("method") in METHODS_WITH_BODY:
            self._check_body(headers)
        return owner

    def _check_websocket(self, scope: AsgiScope, headers: dict[str, str]) -> None:
        """A browser asks nobody before it opens one for a page, so a page must come from where it connects to."""
        if self._websocket_app is None or scope["type"] != "websocket":
            message = "WebSockets are not spoken here; send the same body as an HTTP POST."
            raise ApiError(426, "upgrade_not_supported", message, headers=(("upgrade", "HTTP/1.1"),))
        if scope["path"] != WEBSOCKET_PATH:
            raise ApiError(404, "unknown_url", f"There is no WebSocket at {clip_text(scope['path'])}.")
        origin = headers.get("origin")
        if origin is not None and _host_name(origin.partition("://")[2]) not in self._allowed_names | {
            _host_name(headers["host"])
        }:
            raise ApiError(403, "origin_not_allowed", "Pages of other sites may not use this server.")

    def _check_host(self, headers: dict[str, str]) -> None:
        """A page on another site must not talk to a server on this machine through a name it controls."""
        if "host" not in headers:
            raise ApiError(400, "missing_host", "The Host header is missing.")
        if self._any_host:
            return
        if _host_name(headers["host"]) not in self._allowed_names:
            message = (
                f"This server is not reached as '{clip_text(headers['host'])}'. Start the server with `--allowed-host`."
            )
            raise ApiError(421, "host_not_allowed", message)
        origin = headers.get("origin")
        if origin is not None and _host_name(origin.partition("://")[2]) not in self._allowed_names:
            raise ApiError(403, "origin_not_allowed", "Pages of other sites may not use this server.")

    def _authenticate(self, headers: dict[str, str]) -> str:
        """Whose request it is: a digest of the key, or nobody's where none is asked for."""
        if not self._settings.api_key_digests:
            return ""
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        key = matching_key(self._settings.api_key_digests, sent.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            message = "Incorrect API key provided." if sent else "You didn't provide an API key."
            message += " Send it as a header: 'Authorization: Bearer YOUR_KEY'."
            raise ApiError(401, "invalid_api_key", message, headers=(("www-authenticate", "Bearer"),))
        return key.hex()[:32]

    def _check_body(self, headers: dict[str, str]) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front may go by the other one, and then see two requests where we see one.
            raise ApiError(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude each other.")
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return  # there is none, as where something is cancelled
        # A "simple" cross-site form can send neither header, which makes this a shield, too.
        if not _JSON.fullmatch(headers.get("content-type", "").partition(";")[0].strip()):
            message = "The body must be JSON: send it with 'Content-Type: application/json'."
            raise ApiError(415, "unsupported_media_type", message)
        check_encoding(headers.get("content-encoding", ""))
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._settings.max_body_bytes:
            raise body_too_large(self._settings.max_body_bytes)


class _ResponseSender:
    """The answer as it leaves: stamped with the request's id, and never begun twice."""

    def __init__(self, send: AsgiSend, request_id: str, kind: str) -> None:
        self._send, self._kind = send, kind
        self.request_id = request_id
        self.status = 499
        """499 until something was said: the client left before."""
        self._begun = False

    async def send(self, message: AsgiMessage) -> None:
        """Pass a message on; the first gets the request's id."""
        if message["type"] in START_MESSAGES:
            self._begun, self.status = True, message.get("status", 101)
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]}
        await self._send(message)

    async def send_error(self, error: ApiError) -> None:
        """Answer with an error; too late for that, the connection is cut by leaving the answer unfinished."""
        if self._begun:
            return
        body = error.encoded_body
        pairs = [*error.header_pairs]
        if error.status == 413 or error.code == "ambiguous_length":
            pairs.append((b"connection", b"close"))
        said = "http.response" if self._kind == "http" else "websocket.http.response"
        await self.send({"type": f"{said}.start", "status": int(error.status), "headers": pairs})
        await self.send({"type": f"{said}.body", "body": body, "more_body": False})


def _check_header_limits(scope: AsgiScope) -> None:
    """HTTP parsers bound what is unfinished; what came whole in one piece is bounded here."""
    pairs = scope["headers"]
    if len(pairs) > MAX_HEADERS or sum(len(name) + len(value) for name, value in pairs) > MAX_HEADER_BYTES:
        message = f"At most {MAX_HEADERS} headers with {MAX_HEADER_BYTES} bytes together are read."
        raise ApiError(431, "headers_too_large", message)


def _decode_headers(scope: AsgiScope) -> dict[str, str]:
    """Names are lower-cased already. Of a header that comes twice the last one counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _choose_request_id(headers: dict[str, str]) -> str:
    """The client's own, where it is harmless, so that both sides' logs can be put together; else a new one."""
    sent = headers.get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else f"req_{secrets.token_hex(12)}"


def _host_name(host: str) -> str:
    """The name in `name`, `name:port`, `[v6]` or `[v6]:port`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()
