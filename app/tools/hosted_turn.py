"""The tools that the server runs in one turn, and the calls that the client has approved."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.app.base.errors import ApiError
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.events.hosted import McpExecutionError, McpListTools, McpProtocolError
from antiphon.state.segments import Call, CallResult, McpResult

MAX_TOOL_TIME_S = 600.0
"""Time of the tools of one response after which the model can call no more."""
INVALID_PARAMS = -32602
"""Code of JSON-RPC for arguments that a method does not take."""
NO_REQUEST = "No approval request found with id '{id}'."

FitOutput = Callable[[str], Awaitable[str]]
"""Shortens the output of a call to the room that is left for it."""


class CallTool(Protocol):
    """Calls the tool of an MCP server."""

    async def __call__(self, label: str, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Returns the outcome, also of a failed call."""


class ApprovedCall(Struct, frozen=True):
    """A call that the client has approved. `nonce` is that of the request to approve it, which is good once."""

    call: Call
    arguments: str
    nonce: str


class CallOutcome(Struct, frozen=True):
    """The end of a call: what its item gets, and the output that the model reads."""

    result: CallResult
    output: str


class HostedTurn:
    """Runs the calls of one turn. `lists` are told at its start, `approved` calls run before the first prompt.

    `max_calls`: see `TurnSpec.max_tool_calls`. `allowed_later` has the model names of the tools that may be called once
    a required call was made; None for all.
    """

    def __init__(
        self,
        *,
        call_tool: CallTool,
        sign: Callable[[str, str, str], str],
        use_approval: Callable[[str], Awaitable[bool]],
        lists: tuple[McpListTools, ...] = (),
        approved: tuple[ApprovedCall, ...] = (),
        max_calls: int | None = None,
        allowed_later: frozenset[str] | None = None,
    ) -> None:
        self.lists, self.approved, self.allowed_later = lists, approved, allowed_later
        self.create_approval_id = sign
        """Returns the id of a request to approve a call, for the label, the name and the arguments."""
        self._call_tool, self._use_approval = call_tool, use_approval
        self._max_calls, self._num_calls, self._tool_time_s = max_calls, 0, 0.0

    @property
    def can_call(self) -> bool:
        """True if the model may call tools of the server."""
        has_left = self._max_calls is None or self._num_calls < self._max_calls
        return has_left and self._tool_time_s < MAX_TOOL_TIME_S

    def count_call(self, call: Call) -> None:
        """Counts a call that the model has written. One that the client has approved was counted when it was asked."""
        if call.approval_request_id is None:
            self._num_calls += 1

    async def claim_approvals(self) -> None:
        """Uses the approvals of this turn. Raises `ApiError` 400 if one was used before."""
        for approved in self.approved:
            if not await self._use_approval(approved.nonce):
                request_id = approved.call.approval_request_id
                raise ApiError(400, None, NO_REQUEST.format(id=request_id), "input")

    async def run_call(self, call: Call, arguments: str, fit_output: FitOutput) -> CallOutcome:
        """Runs a call. A failure is an outcome, too: the model reads it, and the turn goes on."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            return await self._run_mcp(call, arguments, fit_output)
        finally:
            self._tool_time_s += loop.time() - started_at

    async def _run_mcp(self, call: Call, arguments: str, fit_output: FitOutput) -> CallOutcome:
        outcome = await self._call_mcp(call, arguments)
        output = await fit_output(outcome.text)
        if outcome.error is None:
            return CallOutcome(McpResult(output=output), output)
        error = outcome.error
        if isinstance(error, McpExecutionError) and output != outcome.text:
            error = McpExecutionError(content=[{"type": "text", "text": output}])
        return CallOutcome(McpResult(error=error), output)

    async def _call_mcp(self, call: Call, arguments: str) -> ToolOutcome:
        parsed = _parse_arguments(arguments)
        if parsed is None:
            message = "The arguments are not a JSON object, so the tool was not called."
            return ToolOutcome(text=message, error=McpProtocolError(code=INVALID_PARAMS, message=message))
        return await self._call_tool(call.server_label, call.name, parsed)


def _parse_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None if they are no JSON object."""
    try:
        value: Any = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
