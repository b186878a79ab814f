"""The access log: formats of a line, and one write for many lines."""

import asyncio
import io
import json

import pytest
from rich.console import Console

from antiphon.app.base.access_record import AccessRecord
from antiphon.app.observability import access_log
from antiphon.app.observability.access_log import AccessLog, console_format, json_format

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


async def test_records_within_the_flush_interval_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FLUSH_INTERVAL_S", 0.01)
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
