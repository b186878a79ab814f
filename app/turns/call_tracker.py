"""Follows the calls in the output of a turn: which are whole, which the server runs, which the model may not make."""

from collections.abc import Callable

from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.turns.rounds import ServerCall
from antiphon.state.segments import SERVER_TOOL_KINDS, Arguments, Call, Close, Segment


class CallTracker:
    """Reads the segments before the machine does. `tools`: those that the server runs; None if it runs none.

    `can_call` tells whether the model may call them now.
    """

    def __init__(self, tools: HostedTurn | None, can_call: Callable[[], bool]) -> None:
        self._tools, self._can_call = tools, can_call
        self._open_call: Call | None = None
        self._arguments: list[str] = []
        self._is_ignoring = False  # inside a call of a tool that the model may not call any more

    def add_segment(self, segment: Segment) -> bool:
        """Reads a segment. Returns False if it belongs to a call that is ignored: no engine prevents all of them."""
        if type(segment) is Call:
            is_free = segment.kind not in SERVER_TOOL_KINDS or segment.approval_request_id is not None
            self._is_ignoring = not is_free and not self._can_call()
            self._open_call, self._arguments = segment, []
        elif type(segment) is Arguments:
            self._arguments.append(segment.text)
        is_ignored = self._is_ignoring
        self._is_ignoring = is_ignored and not isinstance(segment, Close)
        return not is_ignored

    def finish_call(self) -> ServerCall | None:
        """Returns the call that has just ended if the server runs it; None if the turn ends with it."""
        call = self._open_call
        if call is None or call.kind not in SERVER_TOOL_KINDS:
            return None
        if self._tools is not None:
            self._tools.count_call(call)
        return ServerCall(call, "".join(self._arguments))
