"""Turns of many events and tokens: the client reads them page by page."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.console.client import ReplyFailedError, ServerClient
from antiphon.console.inspect import api
from antiphon.console.server_address import ServerAddress
from tests.app.inspection.inspector import Inspector
from tests.console.inspect.inspect_script import SCRIPT, TOOLS
from tests.serving import serve


def collect(rows: AsyncGenerator[dict[str, Any], None]) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        return [row async for row in rows]

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 2, 7, 11, 22, 23])
def test_pages_have_every_row_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_PAGE_EVENTS", size)
    monkeypatch.setattr(api, "MAX_PAGE_TOKENS", 10 * size)
    with serve(SCRIPT, inspect="memory") as server, Inspector(server) as inspector:
        turn_id = inspector.ask("Search", tools=TOOLS)
        client = api.InspectApi(ServerClient(ServerAddress(server.url, "test"), server.context.page_key))
        assert collect(client.read_events(turn_id)) == inspector.lines(f"/turns/{turn_id}/events")
        read = [token for run in collect(client.read_prompt(turn_id)) for token in run["ids"]]
        assert read == [token for run in inspector.lines(f"/turns/{turn_id}/prompt") for token in run["ids"]]


def test_server_that_repeats_a_page_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_PAGE_EVENTS", 2)

    class RepeatingClient(ServerClient):
        async def read_lines(self, path: str) -> AsyncGenerator[bytes, None]:
            for number in range(2):
                yield b'{"n": %d, "event": {}}' % number

    client = api.InspectApi(RepeatingClient(ServerAddress("http://h/v1", "test")))
    with pytest.raises(ReplyFailedError, match="event 0 after event 1"):
        collect(client.read_events("resp_1"))
