"""A request that has ended, as the access log and the metrics see it."""

from msgspec import Struct

from antiphon.app.base.turn_stats import TurnStats


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
