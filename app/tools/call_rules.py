"""Rules of the calls of a turn: its tools, their limits, and the calls that the client has approved."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from antiphon.app.tools.search.citations import SourceList
from antiphon.events.hosted import McpListTools, ToolSearchCall, ToolSearchOutput
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Call

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


class DeferredTools(Protocol):
    """Finds the deferred tools of one turn."""

    @property
    def table(self) -> ToolTable | None:
        """The tools that the model may call now; None if they are the same in all rounds."""

    def load_tools(self, call: ToolSearchCall) -> FoundTools:
        """Loads the tools that a search names."""


class CallRules(Struct, frozen=True, kw_only=True):
    """The tools of a turn that the server runs.

    `lists` are told at its start, `approved` calls run before the first prompt. `max_calls`: see
    `TurnSpec.max_tool_calls`. `sign` returns the id of a request to approve a call, for the label, the name, the
    arguments and a new nonce. `search` finds deferred tools. `sources` are pages that earlier turns have found.
    """

    sign: Callable[[str, str, str, str], str]
    lists: tuple[McpListTools, ...] = ()
    approved: tuple[ApprovedCall, ...] = ()
    max_calls: int | None = None
    search: DeferredTools | None = None
    sources: SourceList = SourceList()
