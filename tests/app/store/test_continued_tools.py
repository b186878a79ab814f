"""Responses with tools that the server runs, whose server is gone: they continue, and no call is made twice."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.context import ServerContext
from antiphon.app.turns.due_calls import UNKNOWN_OUTCOME
from antiphon.engine.protocol import EngineError, EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from tests.app.store.continued_turns import read_end, run_context, start_turn, wait_for_entries
from tests.app.store.store_helpers import StorePlace
from tests.app.tools.counting_servers import LABEL, CountingServers, CountingTool, build_script, serve_counter
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry

pytestmark = pytest.mark.processes
TOOLS = [{"type": "mcp", "server_label": LABEL, "require_approval": "never"}]
SECRET = "sk-very-secret-credential"


def make_settings(tool: CountingTool) -> dict[str, Any]:
    script = build_script({"Count twice.": (("a", 0.0), ("b", 0.0)), "Wait.": (("slow", 60.0),)})
    script.insert(0, {"name": "no credentials", "when": ["which are never stored"], "output": ["I cannot."]})
    return {"registry": scripted_registry(script, delay=0.005), "tool_servers": (f"{LABEL}={tool.url}",)}


async def wait_for_type(context: ServerContext, response_id: str, kind: str) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        log = await context.store.read_log("", response_id)
        assert log is not None
        while kind not in [json.loads(entry.data)["type"] for entry in log.entries[: log.published]]:
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    "kind",
    [
        "response.mcp_list_tools.completed",
        "response.mcp_call_arguments.delta",
        "response.mcp_call.completed",
        "response.output_text.delta",
    ],
)
async def test_response_with_calls_continues(place: StorePlace, kind: str) -> None:
    async with serve_counter() as tool:
        async with run_context(place, **make_settings(tool)) as first:
            log = await start_turn(first, input="Count twice.", tools=TOOLS)
            await wait_for_type(first, log.id, kind)
        before = [json.loads(entry.data) for entry in log.entries]
        assert before[-1]["type"] != "response.completed"
        async with run_context(place, **make_settings(tool)) as second:
            events = await read_end(second, log.id)
    assert events[: len(before)] == before
    response = check_stream(events)
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]][-3:] == ["mcp_call", "mcp_call", "message"]
    assert max(tool.counts.begun.values()) == 1
    assert place.read_rows("SELECT count(*) FROM continuations") == [(0,)]


async def test_call_that_ran_is_not_run_again(place: StorePlace) -> None:
    async with serve_counter() as tool:
        async with run_context(place, **make_settings(tool)) as first:
            log = await start_turn(first, input="Wait.", tools=TOOLS)
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not tool.counts.begun["slow"]:
                    await asyncio.sleep(0.005)
        async with run_context(place, **make_settings(tool)) as second:
            response = check_stream(await read_end(second, log.id))
    call, answer = response["output"][-2:]
    assert (response["status"], call["status"], answer["content"][0]["text"]) == (
        "completed",
        "failed",
        "I do not know.",
    )
    assert call["error"]["content"] == [{"type": "text", "text": UNKNOWN_OUTCOME}]
    assert tool.counts.begun == {"slow": 1}


async def test_cancelled_response_makes_no_further_call(place: StorePlace) -> None:
    async with serve_counter() as tool:
        async with run_context(place, **make_settings(tool)) as first:
            log = await start_turn(first, input="Count twice.", tools=TOOLS)
            await wait_for_type(first, log.id, "response.mcp_list_tools.completed")
        place.read_rows(f"UPDATE responses SET cancel_requested = 1 WHERE id = '{log.id}'")
        async with run_context(place, **make_settings(tool)) as second:
            events = await read_end(second, log.id)
    assert check_stream(events)["status"] == "cancelled" and not tool.counts.begun


class LoadingEngine(ScriptedEngine):
    """An engine that knows nothing of its model until it is loaded."""

    loaded: asyncio.Event

    @property
    def info(self) -> EngineInfo:  # type: ignore[override] # an attribute there
        if not self.loaded.is_set():
            raise EngineError("engine_unavailable", "it loads", retryable=True)
        info: EngineInfo = self.__dict__["info"]
        return info

    async def wait_ready(self) -> None:
        await self.loaded.wait()


async def test_response_continues_at_a_server_that_still_loads_its_model(place: StorePlace) -> None:
    async with serve_counter() as tool:
        async with run_context(place, **make_settings(tool)) as first:
            log = await start_turn(first, input="Count twice.", tools=TOOLS)
            await wait_for_type(first, log.id, "response.output_text.delta")
        settings = make_settings(tool)
        engine: Any = settings["registry"].served[0].engine
        engine.__class__, engine.loaded = LoadingEngine, asyncio.Event()
        async with run_context(place, **settings) as second:
            await asyncio.sleep(0.5)
            engine.loaded.set()
            response = check_stream(await read_end(second, log.id))
    assert response["status"] == "completed"


async def test_credentials_of_a_client_are_not_stored_and_their_calls_fail(place: StorePlace) -> None:
    async with serve_counter() as tool:
        settings = make_settings(tool) | {"tool_servers": (), "mcp_allowed_hosts": (tool.url.split("/")[2],)}
        tools = [TOOLS[0] | {"server_url": tool.url, "authorization": SECRET}]
        async with run_context(place, **settings) as first:
            log = await start_turn(first, input="Count twice.", tools=tools)
            await wait_for_entries(log, 7)
            stored = [bytes(row[0]) for row in place.read_rows("SELECT data FROM continuations")]
            assert len(stored) == 1 and SECRET.encode() not in stored[0]
            assert not tool.counts.begun
        settings = make_settings(tool) | {"tool_servers": (), "mcp_allowed_hosts": (tool.url.split("/")[2],)}
        async with run_context(place, **settings) as second:
            response = check_stream(await read_end(second, log.id))
    calls = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert [call["status"] for call in calls[:2]] == ["failed", "failed"]
    assert "which are never stored" in json.dumps(calls[0]["error"])
    assert not tool.counts.begun


async def test_broken_foreground_stream_is_read_on_after_a_kill(place: StorePlace, tmp_path: Path) -> None:
    script = build_script({"Count twice.": (("a", 0.1), ("b", 0.1))})
    await asyncio.to_thread((tmp_path / "script.json").write_text, json.dumps(script))
    body = {"model": "scripted", "input": "Count twice.", "tools": TOOLS, "stream": True}
    async with serve_counter() as tool, httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
        servers = CountingServers(store=place.name, tool_url=tool.url, folder=tmp_path)
        events: list[dict[str, Any]] = []
        async with servers.run_server() as (url, kill):
            with contextlib.suppress(httpx.HTTPError):
                async with client.stream("POST", f"{url}/responses", json=body) as reply:
                    async for line in reply.aiter_lines():
                        if line.startswith("data: {"):
                            events.append(json.loads(line.removeprefix("data: ")))
                        if events and events[-1]["type"] == "response.mcp_call.completed":
                            kill()
        assert events[-1]["type"] != "response.completed"
        target = f"responses/{events[0]['response']['id']}?stream=true&starting_after={len(events) - 1}"
        async with servers.run_server() as (url, _):
            rest = (await client.get(f"{url}/{target}", timeout=60.0)).text
    events += [json.loads(line.removeprefix("data: ")) for line in rest.splitlines() if line.startswith("data: {")]
    response = check_stream(events)
    assert (response["status"], response["background"]) == ("completed", False)
    assert max(tool.counts.begun.values()) == 1
