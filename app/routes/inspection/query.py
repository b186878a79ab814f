"""Queries of `/v1/inspect`."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from antiphon.app.requests.query_fields import Query
from antiphon.app.turn_types.endings import Cause
from antiphon.app.turn_types.turn_stats import Api

FilterText = Annotated[str, Meta(max_length=256)]
LastSeen = Annotated[int, Meta(ge=-1, le=10**9)]
ListedStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class TurnsQuery(Query, frozen=True, kw_only=True):
    """Query of the list of turns: those that fit every field, latest first."""

    omits_empty = True

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: str = ""
    """Id of the turn before the page."""
    status: ListedStatus | None = None
    api: Api | None = None
    ending: Cause | None = None
    """Why the turn ended."""
    model: FilterText = ""
    tool: FilterText = ""
    """Name of a tool that the model called."""
    previous: FilterText = ""
    """Id of the response that the turn continues."""
    text: FilterText = ""
    """Part of the request, in upper or lower case."""
    since: float = -math.inf
    """Seconds since 1970 at which the turn began, or later."""
    until: float = math.inf


class EventsQuery(Query, frozen=True, kw_only=True):
    """Query of the events of a turn."""

    after: LastSeen = -1
    """Number of the last event that is known already."""
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    follow: bool = False
    """Continues while the turn runs."""


class PromptQuery(Query, frozen=True, kw_only=True):
    """Query of the prompt of a turn."""

    after: LastSeen = -1
    """Number of the last token that is known already."""
    limit: Annotated[int, Meta(ge=1, le=200_000)] = 20_000
