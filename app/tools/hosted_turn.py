"""Runs the calls of one turn, and knows which of the calls that the client has approved have begun."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from antiphon.app.tools.call_rules import CallRules
from antiphon.app.tools.runners import (
    CallOutcome,
    Runners,
    SandboxedCodeRunner,
    ShortenOutput,
    WebSearchRunner,
    fail_invented_call,
)
from antiphon.app.tools.stored_tools import StoredTools
from antiphon.app.turn_types.tracing.turn_trace import TurnTrace
from antiphon.events.hosted_inputs import InputCodeCall
from antiphon.events.inputs import AnyInput
from antiphon.state.segments import Call, HostedToolKind, McpResult


class FinishedCall(Struct, frozen=True):
    """The outcome of a call, and the time that it took."""

    outcome: CallOutcome
    elapsed_ms: int


class HostedTurn:
    """Runs the calls of one turn. `rules` say what its events depend on.

    `allowed_later` has the model names of the tools that may be called once a required call was made; None for all.
    `stored` is what another process needs to run its calls.
    """

    def __init__(
        self,
        *,
        runners: Runners,
        rules: CallRules,
        allowed_later: frozenset[str] | None = None,
        stored: StoredTools | None = None,
    ) -> None:
        self._runners, self.rules, self.allowed_later, self.stored = runners, rules, allowed_later, stored
        self.trace: TurnTrace | None = None
        """Trace of the turn, to which its calls belong; None if nothing is traced."""
        self.run_approvals: set[str] = set()
        """Ids of the requests for approval whose calls have begun to run."""

    def resume(self, calls: Sequence[Call], items: Sequence[AnyInput]) -> None:
        """Continues after calls that another process has run. `items`: the conversation before them."""
        self.run_approvals.update(filter(None, (call.approval_request_id for call in calls)))
        kinds = [call.kind for call in calls]
        for kind, runner in self._runners.items():
            if isinstance(runner, WebSearchRunner):
                runner.resume(kinds.count(kind))
            elif isinstance(runner, SandboxedCodeRunner):
                runner.resume(has_run=kind in kinds or any(isinstance(item, InputCodeCall) for item in items))

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> FinishedCall:
        """Runs a call. A failure is an outcome, too: the model reads it, and the turn continues."""
        if call.is_invented:
            return FinishedCall(fail_invented_call(call), 0)
        if call.approval_request_id is not None:
            self.run_approvals.add(call.approval_request_id)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        outcome = await self._run_traced(call, arguments, shorten_output)
        return FinishedCall(outcome, round((loop.time() - started_at) * 1000))

    async def _run_traced(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        kind: HostedToolKind = call.kind  # type: ignore[assignment]  # the machine runs no others
        if self.trace is None:
            return await self._runners[kind].run_call(call, arguments, shorten_output)
        with self.trace.note_call(kind, call.name, call.call_id or "", call.server_label or "") as noted:
            outcome = await self._runners[kind].run_call(call, arguments, shorten_output)
            noted.error = _find_error(outcome)
            return outcome


def _find_error(outcome: CallOutcome) -> str:
    """Returns the kind of failure of a call; empty if it has succeeded."""
    result = outcome.result
    if isinstance(result, McpResult):
        return "" if result.error is None else str(result.error.__struct_config__.tag)
    return "tool_error" if result.is_failed else ""
