"""Measures calls of tools, by the operator's labels. All servers that clients name count as one.

A client's label is never reported: there can be any number of them, and each may hold a secret.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog
from msgspec import Struct

from antiphon.app.tools.mcp.tool_server import ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.events.hosted import McpExecutionError

_log = structlog.get_logger(__name__)

CLIENT_LABEL = "client"
"""The label of all servers that the operator has not configured."""


class ToolCallStats(Struct, frozen=True, kw_only=True):
    """One call that has ended. `label` is the operator's, or `CLIENT_LABEL`."""

    label: str
    result: Literal["completed", "failed", "cancelled"]
    elapsed_s: float


ReportCall = Callable[[ToolCallStats], None]
"""Receives each call that has ended."""


def ignore_call(_: ToolCallStats) -> None:
    """Reports nothing."""


class MeasuredCalls:
    """Calls tools of `named` servers, by the labels of the request, and reports the end of each call."""

    def __init__(self, servers: ToolServers, named: Mapping[str, ToolServer], report: ReportCall) -> None:
        self._servers, self._named, self._report = servers, named, report

    async def __call__(self, label: str, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Returns the outcome, also of a failed call."""
        server, loop = self._named[label], asyncio.get_running_loop()
        shown = server.label if server.is_operator else CLIENT_LABEL
        started_at = loop.time()
        result: Literal["completed", "failed", "cancelled"] = "failed"
        try:
            outcome = await self._servers.call_tool(server, name, arguments)
            result = "completed" if outcome.error is None else "failed"
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            self._report(ToolCallStats(label=shown, result=result, elapsed_s=loop.time() - started_at))
        _log_failure(shown, outcome)
        return outcome


def _log_failure(label: str, outcome: ToolOutcome) -> None:
    """Logs a failure that the client of the tool servers has not: an error of the tool, or of a client's server."""
    error = outcome.error
    if isinstance(error, McpExecutionError) or (error is not None and label == CLIENT_LABEL):
        _log.info("a tool call failed", label=label, kind=error.__struct_config__.tag)
