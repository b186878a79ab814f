"""Query parameters of `/v1/inspect`."""

import math
import re
from collections.abc import Mapping
from typing import get_args

from antiphon.app.base.endings import CAUSES
from antiphon.app.base.errors import ApiError, clip_text, invalid_type, invalid_value
from antiphon.app.base.turn_stats import Api
from antiphon.app.inspection.summaries import TurnFilter

DEFAULT_TURNS, MAX_TURNS = 50, 200
DEFAULT_EVENTS, MAX_EVENTS = 5_000, 100_000
DEFAULT_TOKENS, MAX_TOKENS = 20_000, 200_000
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
MAX_FILTER_CHARS = 256
_INTEGER = re.compile(r"-?[0-9]{1,15}")


def read_integer(query: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    """Returns a parameter. Raises `ApiError` 400 that names it."""
    sent = query.get(name)
    if sent is None:
        return default
    if not _INTEGER.fullmatch(sent):
        raise invalid_type(name, "an integer", sent)
    if not minimum <= int(sent) <= maximum:
        raise invalid_value(name, f"Invalid '{name}': it must be between {minimum} and {maximum}.")
    return int(sent)


def read_flag(query: Mapping[str, str], name: str) -> bool:
    """Returns a parameter that is true or false; false if it is missing. Raises `ApiError` 400."""
    sent = query.get(name, "false")
    if sent not in ("true", "false", "1", "0"):
        raise invalid_value(name, f"Invalid '{name}': it must be true or false.")
    return sent in ("true", "1")


def read_filter(query: Mapping[str, str]) -> tuple[TurnFilter, str]:
    """Returns the filter of a list, and the text that requests must have. Raises `ApiError` 400 by parameter."""
    _check_choice(query, "status", STATUSES)
    _check_choice(query, "api", get_args(Api))
    _check_choice(query, "ending", CAUSES)
    for name in ("model", "tool", "previous", "text"):
        if len(query.get(name, "")) > MAX_FILTER_CHARS:
            raise invalid_value(name, f"Invalid '{name}': it has more than {MAX_FILTER_CHARS} characters.")
    texts = {name: query.get(name, "") for name in ("status", "model", "api", "ending", "tool", "previous")}
    since, until = _read_time(query, "since", -math.inf), _read_time(query, "until", math.inf)
    return TurnFilter(**texts, since=since, until=until), query.get("text", "")


def _check_choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> None:
    sent = query.get(name, "")
    if sent and sent not in choices:
        supported = ", ".join(f"'{choice}'" for choice in choices)
        raise ApiError(
            400, "invalid_value", f"Invalid value: '{clip_text(sent)}'. Supported values are: {supported}.", name
        )


def _read_time(query: Mapping[str, str], name: str, default: float) -> float:
    sent = query.get(name, "")
    if not sent:
        return default
    try:
        value = float(sent)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise invalid_type(name, "a time in seconds since 1970", sent)
    return value
