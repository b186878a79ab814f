"""Follows the calls of a turn: which are whole, which is due, which the model may still make."""

from collections import deque

from msgspec import Struct

from antiphon.app.tools.call_rules import MAX_ROUNDS, MAX_TOOL_TIME_S, CallRules
from antiphon.app.tools.search.citations import SourceList
from antiphon.app.turns.core.inputs import ResultInput
from antiphon.app.turns.core.rounds import ServerCall
from antiphon.events.hosted import ToolSearchCall
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import HOSTED_TOOL_KINDS, Arguments, Call, Close, CompleteItem, Segment


class RoundLimits(Struct, frozen=True):
    """Limits of the round with this number. `table` has the tools that the model may call; None: those of the turn.

    `can_call`: it may call tools of the server, besides the search among deferred tools, which `can_search` allows.
    """

    number: int
    table: ToolTable | None
    can_call: bool
    can_search: bool


class TurnCalls:
    """The calls of one turn. `rules`: the tools that the server runs; None if it runs none."""

    def __init__(self, rules: CallRules | None) -> None:
        self.rules = rules
        self.held: deque[Segment] = deque()
        """Segments that the model generated after a call that runs."""
        self.due: ServerCall | None = None
        """The call that the server must run now."""
        self.sources = SourceList() if rules is None else rules.sources
        """The pages that web searches have found, which the model may cite."""
        self.num_rounds = 0
        """Number of rounds that have ended with calls."""
        self.num_approved = 0
        """Number of calls that the client has approved and that have begun."""
        self._num_calls, self._tool_time_ms = 0, 0
        self._open_call: Call | None = None
        self._arguments: list[str] = []
        self.is_ignoring = False
        """True inside a call of a tool that the model may not call any more."""

    @property
    def can_call(self) -> bool:
        """True if the model may call tools of the server. Not every engine has the grammar that prevents it."""
        return self.rules is None or self._is_allowed(self.rules, self.num_rounds)

    def describe_next(self) -> RoundLimits:
        """Returns what the model may call in the next round."""
        rules, number = self.rules, self.num_rounds + 1
        table = None if rules is None or rules.search is None else rules.search.table
        return RoundLimits(number, table, rules is None or self._is_allowed(rules, number), number < MAX_ROUNDS)

    def add_segment(self, segment: Segment) -> bool:
        """Reads a segment before the machine does. Returns False if it belongs to a call that is ignored."""
        if type(segment) is Call:
            self.is_ignoring = not self._can_make(segment)
            self._open_call, self._arguments = segment, []
        elif type(segment) is Arguments:
            self._arguments.append(segment.text)
        is_ignored = self.is_ignoring
        self.is_ignoring = is_ignored and not isinstance(segment, Close)
        return not is_ignored

    def finish_call(self) -> ServerCall | None:
        """Returns the call that has just ended if the server runs it; None if the turn ends with it."""
        call = self._open_call
        if call is None or not _is_run_by_server(call):
            return None
        # One that the client has approved was counted when it was asked.
        if call.kind in HOSTED_TOOL_KINDS and call.approval_request_id is None:
            self._num_calls += 1
        return ServerCall(call, "".join(self._arguments))

    def load_tools(self, call: ServerCall, item: ToolSearchCall) -> tuple[ServerCall, CompleteItem]:
        """Returns a search among deferred tools with its output, and the item of what it has found."""
        assert self.rules is not None and self.rules.search is not None
        found = self.rules.search.load_tools(item)
        return ServerCall(call.call, call.arguments, found.output), CompleteItem(found.item)

    def take_result(self, due: ServerCall, step: ResultInput) -> ServerCall:
        """Returns the call that was due with its output."""
        self.due = None
        self._tool_time_ms += step.elapsed_ms
        self.sources = self.sources.join(step.sources)
        return ServerCall(due.call, due.arguments, step.output)

    def _can_make(self, call: Call) -> bool:
        """Tells whether the model may make this call. Calls that the client runs are always allowed."""
        if self.rules is None or not _is_run_by_server(call) or call.approval_request_id is not None:
            return True
        return self.can_call if call.kind in HOSTED_TOOL_KINDS else self.num_rounds < MAX_ROUNDS

    def _is_allowed(self, rules: CallRules, num_rounds: int) -> bool:
        has_left = rules.max_calls is None or self._num_calls < rules.max_calls
        return has_left and self._tool_time_ms < MAX_TOOL_TIME_S * 1000 and num_rounds < MAX_ROUNDS


def _is_run_by_server(call: Call) -> bool:
    """Tells whether the server runs a call, and the model continues in the same turn."""
    return call.kind in HOSTED_TOOL_KINDS or call.execution == "server"
