"""Turns with tools of the server, in this process: a scripted model, tool servers without a wire, checked streams."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.app.options.settings import Settings
from antiphon.app.requests.responses.history import NO_HISTORY, History
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_lists import ListedTool, ToolList
from antiphon.app.tools.mcp.tool_server import ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.tool_host import create_tool_host
from antiphon.app.turn_types.encryption import Sealer
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turns.manager import TurnManager
from antiphon.engine.protocol import Job
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry
from tests.snapshots.run_case import make_turn_manager

PAGES = "Title: Oslo weather\nURL: https://weather.example/oslo\nIt is 7 degrees.\n\nURL: https://other.example/a"


def write_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class FakeServers(ToolServers):
    """Tool servers without a wire: every call has the outcome `outcome`."""

    def __init__(self) -> None:
        super().__init__({"web": ToolServer(label="web", url="http://127.0.0.1:9/mcp", is_operator=True)})
        self.outcome = ToolOutcome(text=PAGES)
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.is_down = False

    async def list_tools(self, server: ToolServer, owner: str) -> ToolList:
        if self.is_down:
            raise ToolListError(server.label, "It is down.")
        number, text = {"type": "integer"}, {"type": "string"}
        tools = (
            ListedTool(name="find", input_schema={"properties": {"words": text, "max": number}, "required": ["words"]}),
            ListedTool(name="read", input_schema={"properties": {"a": text, "b": text}, "required": ["a", "b"]}),
        )
        return ToolList(tools, 0.0)

    async def call_tool(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        self.calls.append((server.label, name, arguments))
        return self.outcome


class ToolTurns:
    """A turn manager with one scripted model and the tools that the options map."""

    def __init__(self, replies: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.servers = FakeServers()
        monkeypatch.setattr("antiphon.app.tools.tool_host.ToolServers", lambda _, **limits: self.servers)
        settings = Settings(tool_servers=("web=http://127.0.0.1:9/mcp",), **options)
        host = create_tool_host(settings, Sealer(), new_id)
        self.manager: TurnManager = make_turn_manager(tool_host=host)
        script = [
            {"name": when or "first", "when": [when] if when else [], "output": output, "tokens_per_chunk": 1}
            for when, output in replies.items()
        ]
        self.registry = scripted_registry(script)
        self.jobs: list[Job] = []
        self.callback_errors: list[dict[str, Any]] = []
        engine: Any = self.registry.served[0].engine
        generate = engine.generate
        engine.generate = lambda job, on_chunk: (self.jobs.append(job), generate(job, on_chunk))[1]

    async def run_turn(self, history: History = NO_HISTORY, **body: Any) -> list[dict[str, Any]]:
        """Returns the events of a turn, which the checker accepts."""
        request = {"model": "scripted", "input": "Hi", "stream": True} | body
        parsed = read_responses_request(request, self.registry, history)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.callback_errors.append(context))
        log = await self.manager.start_turn(parsed.model, parsed.spec)
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while not log.ended:
                await asyncio.sleep(0)
        events = [json.loads(entry.data) for entry in log.entries]
        check_stream(events, request)
        return events


def list_types(events: list[dict[str, Any]], item_type: str) -> list[str]:
    """Returns the types of the events of the first item of a type, without deltas of text."""
    index = next(e["output_index"] for e in events if e.get("item", {}).get("type") == item_type)
    return [e["type"].removeprefix("response.") for e in events if e.get("output_index") == index]


def last_item(events: list[dict[str, Any]]) -> dict[str, Any]:
    return events[-1]["response"]["output"][-1]
