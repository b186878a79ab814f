"""Follows the calls in the output of a turn: which are whole, which the server runs, which the model may not make."""

from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.turns.rounds import ServerCall
from antiphon.state.segments import HOSTED_TOOL_KINDS, Arguments, Call, Close, Segment


class CallTracker:
    """Reads the segments before the machine does. `tools`: those that the server runs; None if it runs none."""

    def __init__(self, tools: HostedTurn | None) -> None:
        self._tools = tools
        self._open_call: Call | None = None
        self._arguments: list[str] = []
        self._is_ignoring = False  # inside a call of a tool that the model may not call any more

    def add_segment(self, segment: Segment) -> bool:
        """Reads a segment. Returns False if it belongs to a call that is ignored: no engine prevents all of them."""
        if type(segment) is Call:
            self._is_ignoring = not self._can_run(segment)
            self._open_call, self._arguments = segment, []
        elif type(segment) is Arguments:
            self._arguments.append(segment.text)
        is_ignored = self._is_ignoring
        self._is_ignoring = is_ignored and not isinstance(segment, Close)
        return not is_ignored

    def finish_call(self) -> ServerCall | None:
        """Returns the call that has just ended if the server runs it; None if the turn ends with it."""
        call = self._open_call
        if call is None or not is_run_by_server(call):
            return None
        if self._tools is not None and call.kind in HOSTED_TOOL_KINDS:
            self._tools.count_call(call)
        return ServerCall(call, "".join(self._arguments))

    def _can_run(self, call: Call) -> bool:
        """Tells whether the model may make this call. Calls that the client runs are always allowed."""
        if self._tools is None or not is_run_by_server(call) or call.approval_request_id is not None:
            return True
        return self._tools.can_call if call.kind in HOSTED_TOOL_KINDS else self._tools.can_search


def is_run_by_server(call: Call) -> bool:
    """Tells whether the server runs a call, and the model continues in the same turn."""
    return call.kind in HOSTED_TOOL_KINDS or call.execution == "server"
