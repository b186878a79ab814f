"""Summaries of turns: which of them a list shows, and what is known of a turn from its response alone."""

import math

from msgspec import Struct

from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events.response import Response

RESTARTED_CODE = "server_restarted"
"""Error code of a response whose server process stopped before it was complete."""


class TurnFilter(Struct, frozen=True, kw_only=True):
    """The turns that a list shows: those that fit every field that is not empty."""

    status: str | None = None
    model: str = ""
    api: str | None = None
    ending: str | None = None
    tool: str = ""
    previous: str = ""
    since: float = -math.inf
    """Seconds since 1970."""
    until: float = math.inf

    def fits(self, stats: TurnStats) -> bool:
        """Tells whether a turn fits all fields."""
        cause = "" if stats.ending is None else stats.ending.cause
        return (
            self.status in (None, stats.status)
            and self.model in ("", stats.model)
            and self.api in (None, stats.api)
            and self.ending in (None, cause)
            and self.previous in ("", stats.previous_id)
            and (not self.tool or self.tool in stats.tools)
            and self.since <= stats.started_at <= self.until
        )


def read_stats(response: Response) -> TurnStats:
    """Returns the figures of a turn of another process, as far as its response has them."""
    usage, error = response.usage, response.error
    stats = TurnStats(response_id=response.id, model=response.model, status=str(response.status))
    stats.started_at = float(response.created_at)
    stats.previous_id = response.previous_response_id or ""
    if usage is not None:
        stats.input_tokens, stats.output_tokens = usage.input_tokens, usage.output_tokens
        stats.cached_tokens = usage.input_tokens_details.cached_tokens
    if error is not None:
        stats.error_code = error.code
        if error.code == RESTARTED_CODE:
            stats.ending = Ending("server_restarted", error.code)
    return stats
