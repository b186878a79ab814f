"""State of one request that the connection, the request guard and the routes share, under one key of the ASGI scope."""

import time
from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.admission import AdmissionPermit
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope
from antiphon.app.http.chunked_response import ChunkedResponse
from antiphon.app.http.endpoints.table import UNKNOWN, EndpointTable, Lookup
from antiphon.app.http.endpoints.target import find_target
from antiphon.app.options.api_keys import NO_KEY, ApiKey
from antiphon.app.registry.model_registry import NamedModel
from antiphon.app.requests.query_fields import NoQuery, Query
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turn_types.turn_stats import TurnOrigin, TurnStats

SCOPE_KEY = "antiphon.request"


class TurnAdmission(Protocol):
    """Delays the turns of a request and lowers their priority."""

    async def admit(self, model: NamedModel, specs: Iterable[TurnSpec]) -> tuple[TurnSpec, ...]:
        """Waits until the turns may begin. Returns them as they shall run."""
        ...


class RequestState(Struct, kw_only=True):
    """State of one request.

    `HttpProtocol` sets `permit` and `response`; `RequestGuard` sets `key`, `owner`, `request_id`, `arrived` and
    `trace`; the exception handlers set `error_code`.
    """

    match: Lookup = UNKNOWN
    """The endpoint. Whatever depends on the path of a request is read from it."""
    query: Query = NoQuery()
    """The decoded query, of the type that the endpoint declares."""
    owner: str = ""
    """Owner of what the request stores; empty if no key is required."""
    key: ApiKey = NO_KEY
    """The API key that the request was sent with."""
    request_id: str = ""
    arrived: float | None = None
    """Time of the monotonic clock at which the head of the request had arrived."""
    trace: RequestTrace | None = None
    """Span of the request; None if nothing is traced."""
    body_bytes: int = 0
    """Size of the decompressed body, as far as it has been received."""
    body_error: ApiError | None = None
    """Fault of the bytes of the body, which the next read of the body raises."""
    error_code: str = ""
    """Code of the error that the request is answered with, for the access log."""
    turns: tuple[TurnStats, ...] = ()
    """Turns that the request has started, for the access log."""
    permit: AdmissionPermit | None = None
    """Permit of a request that admission control counts until it becomes a turn."""
    action: str = ""
    """Act of the request for the audit log, once its handler runs."""
    turn_admission: TurnAdmission | None = None
    """Admission of the turns of a batch's line; None for all other requests."""
    response: ChunkedResponse | None = None
    """The connection's response, which streams write to past ASGI and h11. None in tests and on WebSockets."""

    def build_origin(self) -> TurnOrigin:
        """Returns the origin of the turns that this request starts."""
        return TurnOrigin(
            api=self.match.endpoint.starts or "responses",
            arrived=self.arrived,
            request_id=self.request_id,
            key=self.key,
            is_batch=self.turn_admission is not None,
            trace=self.trace,
        )

    def check_body(self) -> None:
        """Raises the `ApiError` of a body whose bytes are at fault."""
        if self.body_error is not None:
            raise self.body_error

    def release_permit(self) -> None:
        """Releases the permit: the request counts as a turn now, or has ended."""
        if self.permit is not None:
            self.permit.release()


def open_request(scope: Any, table: EndpointTable) -> RequestState:
    """Returns the state of a request. Creates it first if the scope has none: this makes the path canonical."""
    state: RequestState | None = scope.get(SCOPE_KEY)
    if state is None:
        state = scope[SCOPE_KEY] = RequestState(match=find_target(scope, table))
    return state


def request_state(scope: Any) -> RequestState:
    """Returns the state of a request that the connection or the request guard has opened."""
    state: RequestState = scope[SCOPE_KEY]
    return state


def count_bytes(receive: AsgiReceive, state: RequestState) -> AsgiReceive:
    """Returns a `receive` that counts the bytes of the body in the state of the request."""

    async def counted() -> AsgiMessage:
        message = await receive()
        state.body_bytes += len(message.get("body", b""))
        return message

    return counted


def build_record(scope: AsgiScope, status: int, error_code: str) -> AccessRecord:
    """Returns the record of a request that ends now."""
    state, now = request_state(scope), time.monotonic()
    path = state.match.sent or scope["path"]
    return AccessRecord(
        scope.get("method", "GET"),
        clip_text(path.encode("unicode_escape").decode()),
        status,
        now - (state.arrived or now),
        state.request_id,
        error_code or state.error_code,
        state.turns,
        state.trace,
        state.match.template,
        scope.get("scheme", "http"),
        owner=state.key.name or state.key.owner,
        key_id=state.key.id,
        ended=now,
        action=state.action,
    )
