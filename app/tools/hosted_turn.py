"""The tools that the server runs in one turn, and the calls that the client has approved."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from antiphon.app.tools.runners import CallOutcome, Runners, ShortenOutput, WebSearchRunner, fail_invented_call
from antiphon.app.tools.search.citations import SourceList
from antiphon.app.tools.tool_search import ToolSearch
from antiphon.app.turn_types.tracing.turn_trace import TurnTrace
from antiphon.events.hosted import McpListTools, ToolSearchCall, ToolSearchOutput
from antiphon.harmony.prompt.builtin_items import describe_loaded_tools
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Call, HostedToolKind, McpResult

MAX_TOOL_TIME_S = 600.0
"""Time of the tools of one response after which the model can call no more."""
MAX_ROUNDS = 32
"""Number of rounds after which the model can call no tool of the server any more."""


class ApprovedCall(Struct, frozen=True):
    """A call that the client has approved."""

    call: Call
    arguments: str


class FoundTools(Struct, frozen=True):
    """The result of a search: its item, without an id, and the text that the model reads."""

    item: ToolSearchOutput
    output: str


class HostedTurn:
    """Runs the calls of one turn. `lists` are told at its start, `approved` calls run before the first prompt.

    `max_calls`: see `TurnSpec.max_tool_calls`. `allowed_later` has the model names of the tools that may be called once
    a required call was made; None for all. `search` runs the searches among deferred tools.
    """

    def __init__(
        self,
        *,
        runners: Runners,
        sign: Callable[[str, str, str], str],
        lists: tuple[McpListTools, ...] = (),
        approved: tuple[ApprovedCall, ...] = (),
        max_calls: int | None = None,
        allowed_later: frozenset[str] | None = None,
        search: ToolSearch | None = None,
    ) -> None:
        self.lists, self.approved, self.allowed_later = lists, approved, allowed_later
        self.create_approval_id = sign
        """Returns the id of a request to approve a call, for the label, the name and the arguments."""
        self._runners, self._search = runners, search
        self._max_calls, self._num_calls, self._tool_time_s = max_calls, 0, 0.0
        self.trace: TurnTrace | None = None
        """Trace of the turn, to which its calls belong; None if nothing is traced."""
        self.run_approvals: set[str] = set()
        """Ids of the requests for approval whose calls have begun to run."""
        self.num_rounds = 0
        """Number of rounds that have ended with calls."""

    @property
    def can_call(self) -> bool:
        """True if the model may call tools of the server, besides the search among deferred tools."""
        has_left = self._max_calls is None or self._num_calls < self._max_calls
        return has_left and self._tool_time_s < MAX_TOOL_TIME_S and self.can_search

    @property
    def can_search(self) -> bool:
        """True if the model may search among deferred tools. Only the number of rounds limits that."""
        return self.num_rounds < MAX_ROUNDS

    @property
    def table(self) -> ToolTable | None:
        """The tools that the model may call now; None if they are the same in all rounds."""
        return None if self._search is None else self._search.table

    @property
    def sources(self) -> SourceList:
        """The pages that web searches have found, which the model may cite."""
        runner = self._runners.get("web_search")
        return runner.sources if isinstance(runner, WebSearchRunner) else SourceList()

    def count_call(self, call: Call) -> None:
        """Counts a call that the model has written. One that the client has approved was counted when it was asked."""
        if call.approval_request_id is None:
            self._num_calls += 1

    def load_tools(self, call: ToolSearchCall) -> FoundTools:
        """Loads the tools that a search names."""
        assert self._search is not None
        found = self._search.load(call.arguments)
        item = ToolSearchOutput(id="", call_id=call.call_id, execution="server", status="completed", tools=found)
        return FoundTools(item, describe_loaded_tools(found, self._search.table))

    async def run_call(self, call: Call, arguments: str, shorten_output: ShortenOutput) -> CallOutcome:
        """Runs a call. A failure is an outcome, too: the model reads it, and the turn continues."""
        if call.is_invented:
            return fail_invented_call(call)
        if call.approval_request_id is not None:
            self.run_approvals.add(call.approval_request_id)
        kind: HostedToolKind = call.kind  # type: ignore[assignment]  # the machine runs no others
        started_at = asyncio.get_running_loop().time()
        try:
            if self.trace is None:
                return await self._runners[kind].run_call(call, arguments, shorten_output)
            with self.trace.note_call(kind, call.name, call.call_id or "", call.server_label or "") as noted:
                outcome = await self._runners[kind].run_call(call, arguments, shorten_output)
                noted.error = _find_error(outcome)
                return outcome
        finally:
            self._tool_time_s += asyncio.get_running_loop().time() - started_at


def _find_error(outcome: CallOutcome) -> str:
    """Returns the kind of failure of a call; empty if it has succeeded."""
    result = outcome.result
    if isinstance(result, McpResult):
        return "" if result.error is None else str(result.error.__struct_config__.tag)
    return "tool_error" if result.is_failed else ""
