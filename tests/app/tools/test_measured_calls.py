"""Calls of tools are reported by the operator's label, however the request names the server."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.app.observability.metrics.collector import MetricsCollector
from antiphon.app.tools.mcp.tool_server import ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.measured_calls import MeasuredCalls, ToolCallStats
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.events.hosted import McpCallError, McpExecutionError, McpHttpError

SECRET = "a-word-nobody-may-see"
OWN = ToolServer(label="time", url="http://time/mcp", is_operator=True)
FOREIGN = ToolServer(label=SECRET, url="http://foreign/mcp", is_operator=False)
EXECUTION_ERROR = McpExecutionError(content=[{"type": "text", "text": SECRET}])
HTTP_ERROR = McpHttpError(code=500, message=SECRET)


class FakeCalls(ToolServers):
    """Ends calls as told."""

    def __init__(self, error: McpCallError | None = None) -> None:
        super().__init__({})
        self.reported: list[ToolCallStats] = []
        self.running = asyncio.Event()
        self._error = error
        self.measured = MeasuredCalls(self, {"mine": OWN, SECRET: FOREIGN}, self.reported.append)

    async def call_tool(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        self.running.set()
        if name == "wait":
            await asyncio.Event().wait()
        if name == "break":
            raise ValueError(SECRET)
        return ToolOutcome(text=f"{server.label} {name} {arguments}", error=self._error)


async def test_call_is_reported_and_its_outcome_passed_on() -> None:
    calls = FakeCalls()
    assert (await calls.measured("mine", "do", {"a": 1})).text == "time do {'a': 1}"
    await calls.measured(SECRET, "do", {})
    assert [(stats.label, stats.result) for stats in calls.reported] == [("time", "completed"), ("client", "completed")]
    assert all(0 <= stats.elapsed_s < 10 for stats in calls.reported)


@pytest.mark.parametrize("error", [EXECUTION_ERROR, HTTP_ERROR], ids=["execution", "http"])
@pytest.mark.parametrize("label", ["mine", SECRET])
async def test_failed_call_is_reported_and_logged_without_its_text(error: McpCallError, label: str) -> None:
    calls = FakeCalls(error)
    with capture_logs() as lines:
        assert (await calls.measured(label, "do", {"a": SECRET})).error is error
    (stats,) = calls.reported
    assert (stats.label, stats.result) == ("time" if label == "mine" else "client", "failed")
    is_logged_elsewhere = error is HTTP_ERROR and label == "mine"
    expected = [] if is_logged_elsewhere else [("a tool call failed", "info", stats.label, error.__struct_config__.tag)]
    assert [(line["event"], line["log_level"], line["label"], line["kind"]) for line in lines] == expected
    assert SECRET not in str(lines)


async def test_cancelled_call_is_reported_and_stays_cancelled() -> None:
    calls = FakeCalls()
    task = asyncio.create_task(calls.measured("mine", "wait", {}))
    await calls.running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [stats.result for stats in calls.reported] == ["cancelled"]


async def test_call_that_raises_is_reported_as_failed() -> None:
    calls = FakeCalls()
    with pytest.raises(ValueError, match=SECRET):
        await calls.measured("mine", "break", {})
    assert [stats.result for stats in calls.reported] == ["failed"]


async def test_metrics_have_calls_failures_and_seconds_of_each_label() -> None:
    metrics = MetricsCollector(())
    metrics.on_tool_call(ToolCallStats(label="time", result="completed", elapsed_s=0.5))
    metrics.on_tool_call(ToolCallStats(label="time", result="failed", elapsed_s=2.0))
    metrics.on_tool_call(ToolCallStats(label="client", result="cancelled", elapsed_s=9.0))
    read = metrics.registry.get_sample_value
    for result, count in (("completed", 1.0), ("failed", 1.0), ("cancelled", None)):
        assert read("antiphon:tool_calls_total", {"server_label": "time", "result": result}) == count
    assert read("antiphon:tool_calls_total", {"server_label": "client", "result": "cancelled"}) == 1
    assert read("antiphon:tool_call_seconds_sum", {"server_label": "time"}) == 2.5
    assert read("antiphon:tool_call_seconds_count", {"server_label": "client"}) == 1
