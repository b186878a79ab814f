"""The access log: formats of a line, and one write for many lines."""

import asyncio
import io
import json

import pytest
from rich.console import Console

from antiphon.app.observability import access_log
from antiphon.app.observability.access_log import AccessLog, console_format, json_format
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.turn_stats import TurnStats

RECORD = AccessRecord("POST", "/v1/responses[bold]", 200, 0.0123, "req_1")


def test_console_line_without_colors() -> None:
    screen = Console(file=io.StringIO(), width=20, force_terminal=False)
    assert console_format(screen)(RECORD, 0.0) == "200 POST /v1/responses[bold] 12 ms req_1"


@pytest.mark.parametrize(("status", "color"), [(200, 32), (404, 33), (429, 33), (500, 31)])
def test_console_line_on_a_terminal_has_colors(status: int, color: int) -> None:
    screen = Console(file=io.StringIO(), width=20, force_terminal=True, color_system="standard", no_color=False)
    line = console_format(screen)(AccessRecord("GET", "/x", status, 0.001, "req_2"), 0.0)
    assert line == f"\x1b[{color}m{status}\x1b[0m GET /x 1 ms \x1b[2mreq_2\x1b[0m"
    assert screen.file.getvalue() == ""  # type: ignore[attr-defined]


def test_json_line() -> None:
    assert json.loads(json_format(RECORD, 1.5)) == {
        "event": "request", "level": "info", "method": "POST", "path": "/v1/responses[bold]", "status": 200,
        "seconds": 0.0123, "request_id": "req_1", "timestamp": "1970-01-01T00:00:01.500000Z",
    }  # fmt: skip


def make_turn(number: int, ending: Ending | None = Ending("stop_string", "a secret")) -> TurnStats:  # noqa: B008  # it is frozen
    return TurnStats(
        response_id=f"resp_{number}",
        model="m",
        api="chat",
        ending=ending,
        input_tokens=8,
        cached_tokens=4,
        output_tokens=2,
    )


def test_lines_show_the_turns_of_a_request_without_their_content() -> None:
    format_line = console_format(Console(file=io.StringIO(), force_terminal=False))
    one = AccessRecord("POST", "/v1/chat/completions", 200, 0.001, "req_1", turns=(make_turn(1),))
    assert format_line(one, 0.0).endswith("req_1 resp_1 m stop_string 8 in 2 out")
    shown = {key: json.loads(json_format(one, 1.5))[key] for key in ("response_id", "model", "api", "ending")}
    assert shown == {"response_id": "resp_1", "model": "m", "api": "chat", "ending": "stop_string"}
    many = AccessRecord("POST", "/v1/chat/completions", 200, 0.001, "req_1", turns=tuple(map(make_turn, range(6))))
    assert format_line(many, 0.0).endswith("resp_3 m stop_string 8 in 2 out and 2 more")
    fields = json.loads(json_format(many, 1.5))
    assert (len(fields["turns"]), fields["num_turns"], "response_id" in fields) == (4, 6, False)
    running = AccessRecord("POST", "/v1/responses", 200, 0.001, "req_1", turns=(make_turn(1, ending=None),))
    assert "resp_1 m running" in format_line(running, 0.0)
    assert json.loads(json_format(running, 1.5))["ending"] is None
    for record in (one, many):
        assert "secret" not in format_line(record, 0.0) + json_format(record, 1.5)


async def test_records_within_the_flush_interval_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "ACCESS_LOG_INTERVAL_S", 0.01)
    writes: list[str] = []
    log = AccessLog(lambda line, _: line.request_id, writes.append)
    for number in range(1000):
        log.add_record(AccessRecord("GET", "/", 200, 0.0, str(number)))
    assert not writes
    while not writes:
        await asyncio.sleep(0.001)
    assert writes == ["".join(f"{number}\n" for number in range(1000))]
    log.add_record(RECORD)
    log.flush_lines()
    log.flush_lines()
    log.add_record(RECORD)  # its write comes after that of the timer which the flush has made needless
    while len(writes) < 3:
        await asyncio.sleep(0.001)
    assert writes[1:] == ["req_1\n"] * 2, "flushed lines are not written again"
