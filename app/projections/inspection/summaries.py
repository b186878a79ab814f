"""Summaries and records of turns, as `/v1/inspect/turns` shows them."""

import time
from typing import Any

import msgspec

from antiphon.app.inspection.record import MAX_REQUEST_BYTES, RoundRecord, TurnRecord
from antiphon.app.turn_types.endings import DESCRIPTIONS
from antiphon.app.turn_types.turn_stats import TurnStats

Json = dict[str, Any]
REQUEST_TOO_LONG_TEXT = f"The request has more than {MAX_REQUEST_BYTES} bytes."


def build_summary(stats: TurnStats, *, is_recorded: bool, excerpt: str = "") -> Json:
    """Returns the summary of a turn. Its times are milliseconds from the request on."""
    times, ending = stats.times, stats.ending
    offsets = {name: times.seconds_until(at) for name, at in msgspec.structs.asdict(times).items()}
    seconds = times.seconds_until(times.ended if times.ended is not None else time.monotonic())
    return {
        "id": stats.response_id,
        "object": "inspect.turn",
        "created_at": stats.started_at,
        "api": stats.api,
        "model": stats.model,
        "status": stats.status,
        "ending": None if ending is None else {"cause": ending.cause, "detail": ending.detail},
        "description": None if ending is None else DESCRIPTIONS[ending.cause],
        "error_code": stats.error_code or None,
        "previous_response_id": stats.previous_id or None,
        "input_tokens": stats.input_tokens,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": stats.output_tokens,
        "tools": list(stats.tools),
        "seconds": None if seconds is None else round(seconds, 6),
        "times_ms": {name: None if offset is None else round(offset * 1e3, 3) for name, offset in offsets.items()},
        "recorded": is_recorded,
        "excerpt": excerpt or None,
    }


def describe_record(record: TurnRecord, path: str) -> Json:
    """Returns what a record has besides the summary: sizes, not the content, which endpoints below `path` return."""
    request, rounds = record.read_request(), record.read_rounds()
    names = ("events", "prompt", "grammar", "request", "findings", "export")
    return {
        "dialect": record.dialect,
        "request": {"bytes": len(request)} if request else {"missing": REQUEST_TOO_LONG_TEXT},
        "rounds": [_describe_round(each) for each in rounds],
        "links": {name: f"{path}/{name}" for name in names},
    }


def describe_missing(reason: str) -> Json:
    """Returns the same fields of a turn without a record, with the reason."""
    missing = {"missing": reason}
    return {"dialect": missing, "request": missing, "rounds": missing}


def _describe_round(each: RoundRecord) -> Json:
    return {
        "prompt_tokens": len(each.prompt),
        "cached_tokens": each.cached_tokens,
        "restored": list(each.restored) if each.restored[0] < each.restored[1] else None,
        "output_tokens": each.output_tokens,
        "sampling": each.sampling,
        "has_grammar": bool(each.grammar),
    }
