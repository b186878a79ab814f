"""The real Codex and keys with limits: it waits for the told time, and stops when a budget is used up."""

from pathlib import Path
from typing import Any

import httpx

from antiphon.app.keys.key_file import parse_key_file
from antiphon.app.options.api_keys import ApiKey
from tests.codex.codex_process import API_KEY, CodexCli
from tests.codex.replies import LAST_REPLY
from tests.conftest import StartServer
from tests.serving import RunningServer

HEADERS = {"authorization": f"Bearer {API_KEY}"}
BODY = {"model": "scripted", "input": "Hi", "store": False}


def make_keys(limit: str) -> tuple[ApiKey, ...]:
    return parse_key_file(f'[[key]]\nowner = "a"\nkey = "{API_KEY}"\n{limit}', Path("keys.toml"))


def send(server: RunningServer) -> httpx.Response:
    return httpx.post(f"{server.url}/responses", json=BODY, headers=HEADERS, timeout=60)


def count_rejections(server: RunningServer) -> int:
    usage: Any = server.context.usage
    return sum(row.counts.rejections for row in usage.list_minutes())


def test_codex_waits_for_the_told_time_and_continues(codex: CodexCli, start_server: StartServer) -> None:
    """A place comes back every 4 seconds. With pauses of its own, Codex would be refused four times until then."""
    server = start_server([LAST_REPLY], api_keys=make_keys("requests_per_minute = 15"))
    while send(server).status_code == 200:
        pass
    before = count_rejections(server)
    run = codex.exec(server, "Say hello.")
    assert run.exit_code == 0, run.stderr
    assert 1 <= count_rejections(server) - before <= 2


def test_codex_stops_when_the_budget_is_used_up(codex: CodexCli, start_server: StartServer) -> None:
    server = start_server([LAST_REPLY], api_keys=make_keys("tokens_per_month = 1"))
    assert send(server).status_code == 200
    run = codex.exec(server, "Say hello.")
    assert run.exit_code == 1
    assert count_rejections(server) == 1
    assert any("quota" in str(event).lower() for event in run.events), run.events
