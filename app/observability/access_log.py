"""The access log: one line per request, and one write for all requests that end within `ACCESS_LOG_INTERVAL_S`.

A burst has thousands of requests. A write for each would delay the responses, most of all on a slow terminal; the
styled parts of a line are rendered once for the same reason.
"""

import asyncio
import io
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from rich.console import Console

from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events.json_lines import encode_json_line
from antiphon.kit.terminal_text import show_line

ACCESS_LOG_INTERVAL_S = 0.05
"""Seconds that a line may wait to be written together with others."""
MAX_SHOWN_TURNS = 4
"""Turns of one request that a line shows."""


LineFormat = Callable[[AccessRecord, float], str]
"""Formats a request and its end time (seconds since 1970) as one line without a line feed."""


class AccessLog:
    """Collects lines and writes them in batches. Use it on the event loop, and call `flush_lines` at the end.

    `write` receives complete lines.
    """

    def __init__(self, shape: LineFormat, write: Callable[[str], object]) -> None:
        self._shape, self._write = shape, write
        self._records: list[tuple[AccessRecord, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add_record(self, record: AccessRecord) -> None:
        """Adds a request that has ended."""
        self._records.append((record, time.time()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACCESS_LOG_INTERVAL_S, self.flush_lines)

    def flush_lines(self) -> None:
        """Writes the collected lines."""
        if self._timer is not None:
            self._timer.cancel()
        records, self._records, self._timer = self._records, [], None
        if records:
            self._write("".join(f"{self._shape(record, at)}\n" for record, at in records))


def console_format(screen: Console) -> LineFormat:
    """Returns a formatter for status, method, path, duration and id, in color if the terminal supports it.

    What a client has put into them to control the terminal is shown.
    """
    color_system: Any = screen.color_system
    # Not `screen` itself: while it shows an animated status, a capture would contain that, too.
    renderer = Console(
        file=io.StringIO(), force_terminal=screen.is_terminal, color_system=color_system, legacy_windows=False
    )

    @cache
    def marked(text: str, style: str) -> str:
        with renderer.capture() as captured:
            renderer.print(text, style=style, end="", markup=False, highlight=False)
        return captured.get()

    dim, _, reset = marked("@", "dim").partition("@")

    def shape(record: AccessRecord, _: float) -> str:
        color = "green" if record.status < 400 else "yellow" if record.status < 500 else "red"
        duration = f"{record.seconds * 1000:.0f} ms"
        return (
            f"{marked(str(record.status), color)} {show_line(record.method)} {show_line(record.path)} "
            f"{duration} {dim}{show_line(record.request_id)}{reset}"
            f"{record.error_code and f' {show_line(record.error_code)}'}{show_line(_describe_turns(record.turns))}"
        )

    return shape


def _describe_turns(turns: Sequence[TurnStats]) -> str:
    """Returns the end of a line: id, model, ending and token counts of each turn."""
    shown = "".join(
        f" {turn.response_id} {turn.model} {'running' if turn.ending is None else turn.ending.cause} "
        f"{turn.input_tokens} in {turn.output_tokens} out"
        for turn in turns[:MAX_SHOWN_TURNS]
    )
    return shown + (f" and {len(turns) - MAX_SHOWN_TURNS} more" if len(turns) > MAX_SHOWN_TURNS else "")


def _turn_fields(turn: TurnStats) -> dict[str, str | int | None]:
    """Returns what a line in JSON has of a turn: never its content."""
    return {
        "response_id": turn.response_id,
        "model": turn.model,
        "api": turn.api,
        "ending": None if turn.ending is None else turn.ending.cause,
        "input_tokens": turn.input_tokens,
        "cached_tokens": turn.cached_tokens,
        "output_tokens": turn.output_tokens,
        **({} if turn.trace is None or turn.trace.link is None else {"turn_trace_id": turn.trace.ids.trace_hex}),
    }


def _list_turns(turns: Sequence[TurnStats]) -> dict[str, Any]:
    """Returns the fields of one turn, or a list of several."""
    if len(turns) == 1:
        return _turn_fields(turns[0])
    return {"turns": [_turn_fields(turn) for turn in turns[:MAX_SHOWN_TURNS]], "num_turns": len(turns)} if turns else {}


def _trace_fields(record: AccessRecord) -> dict[str, str]:
    """Returns the ids of the request's span, and that of the trace of a turn in the background."""
    if record.trace is None:
        return {}
    ids = record.trace.ids
    return {"trace_id": ids.trace_hex, "span_id": ids.span_hex}


def json_format(record: AccessRecord, at: float) -> str:
    """Formats a request as a JSON object with the fields of other log lines (see `app.observability.log_config`)."""
    fields = {
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "request_id": record.request_id,
        **_trace_fields(record),
        **({"error_code": record.error_code} if record.error_code else {}),
        **_list_turns(record.turns),
        "event": "request",
        "level": "info",
        "timestamp": datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    return encode_json_line(fields).decode().removesuffix("\n")
