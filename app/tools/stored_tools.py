"""The tools of a turn as they are stored with it, so that another process can run its calls. They have no credentials.

The lists of tools are not among them: the model has read them, so they are not read again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.requests.hosted_tools import HostedToolRequest, HostedToolsRequest
from antiphon.app.tools.mcp.results import convert_error
from antiphon.app.tools.offer import ToolOffer
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.runners import CallTool, Runners, UnavailableRunner
from antiphon.app.tools.tool_search import SearchUnit, ToolSearch
from antiphon.events.hosted import McpExecutionError
from antiphon.events.tools import McpTool
from antiphon.harmony.tools import ToolKey, ToolTable
from antiphon.state.segments import HostedToolKind

NO_CREDENTIALS = (
    "The server that began this response has ended, and with it the credentials of '{label}', which are never stored. "
    "The tool was not called. Send a new request."
)


class StoredToolRequest(Struct, frozen=True, array_like=True):
    """A tool that the server may run, as the request names it. `tool` is JSON."""

    path: str
    kind: str
    tool: bytes
    has_secrets: bool = False

    @classmethod
    def of(cls, request: HostedToolRequest) -> "StoredToolRequest":
        """Returns a request as it is stored."""
        has_secrets = bool(request.secrets.headers or request.secrets.authorization)
        return cls(request.path, request.kind, msgspec.json.encode(request.tool), has_secrets)

    def read(self) -> HostedToolRequest:
        """Returns the request, without its secrets. A container of code is another one now."""
        if self.kind == "mcp":
            server = msgspec.json.decode(self.tool, type=McpTool)
            return HostedToolRequest(path=self.path, kind=self.kind, tool=server)
        tool = msgspec.json.decode(self.tool, type=dict[str, Any])
        if self.kind == "code_interpreter":
            tool["container"] = {"type": "auto"}
        return HostedToolRequest(path=self.path, kind=self.kind, tool=tool)


class StoredSearch(Struct, frozen=True):
    """A search among deferred tools before the turn."""

    units: tuple[SearchUnit, ...]
    tools: ToolTable
    hidden: frozenset[ToolKey]

    def create_search(self) -> ToolSearch:
        """Returns the search as it was before the turn."""
        return ToolSearch(self.units, self.tools, self.hidden)


class StoredTools(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tools of a turn that the server runs. `now`: seconds since 1970 at which approvals are asked for."""

    requests: tuple[StoredToolRequest, ...]
    now: float
    allowed_later: tuple[str, ...] | None = None
    """See `HostedTurn`."""
    search: StoredSearch | None = None

    @classmethod
    def of(cls, request: HostedToolsRequest, now: float, offer: ToolOffer) -> "StoredTools":
        """Returns the tools of a turn that begins."""
        search, later = offer.search, offer.allowed_later
        return cls(
            requests=tuple(StoredToolRequest.of(each) for each in request.requests),
            now=now,
            allowed_later=None if later is None else tuple(sorted(later)),
            search=None if search is None else StoredSearch(tuple(search.units), search.tools, search.hidden),
        )


class ReopenedTools(Struct, frozen=True, kw_only=True):
    """The runners of a turn that another process began, and what else its calls need. `sign`: see `CallRules`."""

    runners: Runners
    sign: Callable[[str, str, str, str], str]
    allowed_later: frozenset[str] | None
    search: ToolSearch | None


def refuse_calls(call_tool: CallTool, refused: Mapping[str, str]) -> CallTool:
    """Returns what calls tools, except those of servers in `refused`, whose calls fail for the reason that it has."""

    async def call(label: str, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        if (reason := refused.get(label)) is None:
            return await call_tool(label, name, arguments)
        return convert_error(McpExecutionError(content=[{"type": "text", "text": reason}]))

    return call


def add_unavailable(runners: Runners, errors: Sequence[ApiError]) -> Runners:
    """Returns runners for all kinds of calls. Those that are not in `runners` cannot be used any more."""
    reason = " ".join(error.message for error in errors) or "This tool is not served any more."
    return {kind: runners.get(kind) or UnavailableRunner(reason) for kind in get_args(HostedToolKind)}
