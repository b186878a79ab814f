"""Query parameters of `/v1/inspect`."""

import math
from collections.abc import Mapping
from typing import get_args

from antiphon.app.base.endings import CAUSES
from antiphon.app.base.errors import ApiError, clip_text, invalid_value
from antiphon.app.base.turn_stats import Api
from antiphon.app.inspection.summaries import TurnFilter
from antiphon.app.requests.query_fields import read_time

DEFAULT_TURNS, MAX_TURNS = 50, 200
DEFAULT_EVENTS, MAX_EVENTS = 5_000, 100_000
DEFAULT_TOKENS, MAX_TOKENS = 20_000, 200_000
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
MAX_FILTER_CHARS = 256


def read_filter(query: Mapping[str, str]) -> tuple[TurnFilter, str]:
    """Returns the filter of a list, and the text that requests must have. Raises `ApiError` 400 by parameter."""
    _check_choice(query, "status", STATUSES)
    _check_choice(query, "api", get_args(Api))
    _check_choice(query, "ending", CAUSES)
    for name in ("model", "tool", "previous", "text"):
        if len(query.get(name, "")) > MAX_FILTER_CHARS:
            raise invalid_value(name, f"Invalid '{name}': it has more than {MAX_FILTER_CHARS} characters.")
    texts = {name: query.get(name, "") for name in ("status", "model", "api", "ending", "tool", "previous")}
    since, until = read_time(query, "since", -math.inf), read_time(query, "until", math.inf)
    return TurnFilter(**texts, since=since, until=until), query.get("text", "")


def _check_choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> None:
    sent = query.get(name, "")
    if sent and sent not in choices:
        supported = ", ".join(f"'{choice}'" for choice in choices)
        raise ApiError(
            400, "invalid_value", f"Invalid value: '{clip_text(sent)}'. Supported values are: {supported}.", name
        )
