"""A request that has ended, as the access log and the metrics see it."""

import time

from msgspec import Struct, field

from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turn_types.turn_stats import TurnStats


class AccessRecord(Struct, frozen=True):
    """One line of the access log. `seconds` is the time until the last byte of the response."""

    method: str
    path: str
    status: int
    seconds: float
    request_id: str
    error_code: str = ""
    """Code of the error in the response. Its message is not logged: it may quote the request."""
    turns: tuple[TurnStats, ...] = ()
    """Turns that the request has started. One that the client has left ends a moment after the request."""
    trace: RequestTrace | None = None
    """The span of the request; None if nothing is traced."""
    route: str = ""
    """Template of the path, such as "/v1/responses/{response_id}"; empty for an unknown path."""
    scheme: str = "http"
    rpc_method: str = ""
    """Full name of the method of a gRPC call."""
    ended: float = field(default_factory=time.monotonic)
    """Time of the monotonic clock at which it ended: the reading that `seconds` was computed from, since the span of
    the request must begin before those of its turns."""
    rpc_status: str = ""
    """Name of the status of that call, such as "OK"."""
    owner: str = ""
    """Owner of the API key, and the public id of the key; empty without one."""
    key_id: str = ""
    action: str = ""
    """Name of its act in the audit log; empty if it has none, or no handler has run."""
