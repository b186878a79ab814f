"""Decides which tools the server runs for a request: finds their servers, lists their tools and checks approvals.

Everything that can be refused is refused before the first event: a server that the operator does not allow, a list that
cannot be read, an approval that this server did not ask for.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import UNSET, Struct, structs

from antiphon.app.errors import ApiError, clip_text, invalid_value
from antiphon.app.options.settings import Settings
from antiphon.app.outbound.policy import OutboundPolicy
from antiphon.app.requests.hosted_tools import HostedToolRequest, HostedToolsRequest, refused_approval
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.approvals import ApprovalSigner
from antiphon.app.tools.approved_calls import ApprovalReader
from antiphon.app.tools.call_rules import MAX_TOOL_TIME_S, CallRules
from antiphon.app.tools.code.code_runner import CodeRunner
from antiphon.app.tools.hosted_options import read_tool_options
from antiphon.app.tools.hosted_tools import HostedTools
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.tools.mcp.client_server import check_client_headers, check_client_url, create_client_policy
from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_lists import LeftOutTool, ListedTool, ToolList
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer, create_client_server
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.measured_calls import MeasuredCalls, ReportCall, ignore_call
from antiphon.app.tools.offer import PlacedTool, offer_tools
from antiphon.app.tools.runners import McpRunner, ToolRunner
from antiphon.app.tools.search.citations import SourceList
from antiphon.app.tools.stored_tools import (
    NO_CREDENTIALS,
    ReopenedTools,
    StoredTools,
    add_unavailable,
    refuse_calls,
)
from antiphon.app.tools.tool_search import DeferredUnit, defer_client_tool, defer_server
from antiphon.app.turn_types.encryption import Sealer
from antiphon.app.turn_types.tool_rules import needs_approval
from antiphon.events.hosted import McpListTools
from antiphon.events.hosted_inputs import InputMcpList
from antiphon.events.inputs import AnyInput
from antiphon.events.tools import McpTool
from antiphon.harmony.tools import HostedTool
from antiphon.state.segments import HostedToolKind

MAX_MCP_SERVERS = 8
"""Number of tool servers that one request may name."""
MAX_TOOLS = 128
"""Number of tools of all its servers."""
UNLISTED = "the server lists no tool of this name"


class HostPolicy(Struct, frozen=True, kw_only=True):
    """The operator's rules: hosts that clients may name, and servers whose calls always need an approval."""

    client_urls: OutboundPolicy = create_client_policy(())
    approve_labels: frozenset[str] = frozenset()


def create_tool_host(
    settings: Settings,
    sealer: Sealer,
    new_id: Callable[[str], str],
    report: ReportCall = ignore_call,
) -> "ToolHost":
    """Returns the host of the servers that the options name. Raises `ToolOptionError`.

    `sealer` has the secret that signs requests for approvals. `report` receives each call that has ended.
    """
    servers, options = read_tool_options(settings)
    policy = HostPolicy(
        client_urls=create_client_policy(settings.mcp_allowed_hosts), approve_labels=frozenset(settings.tool_approvals)
    )
    tool_servers = ToolServers(servers, limits=ToolLimits(call_timeout_s=min(settings.tool_timeout_s, MAX_TOOL_TIME_S)))
    code = CodeRunner() if options.has_sandbox else None
    hosted = HostedTools(options, tool_servers, new_id, code, report)
    approvals = ApprovalReader(ApprovalSigner(sealer.derive_key("approvals")))
    return ToolHost(tool_servers, hosted, approvals, policy, report)


class _Listing(Struct, frozen=True):
    """A server that a request names, with the tools that the model may call."""

    request: HostedToolRequest
    tool: McpTool
    server: ToolServer
    offered: tuple[HostedTool, ...]
    listed: tuple[ListedTool, ...]
    left_out: tuple[LeftOutTool, ...]


class ToolHost:
    """Opens the tools of turns. `servers` calls them."""

    def __init__(
        self,
        servers: ToolServers,
        hosted: HostedTools,
        approvals: ApprovalReader,
        policy: HostPolicy,
        report: ReportCall = ignore_call,
    ) -> None:
        self._servers, self._hosted = servers, hosted
        self._approvals, self._policy, self._report = approvals, policy, report

    async def close(self) -> None:
        """Ends the connections and the commands of all servers, and the sandbox."""
        await self._servers.close()
        await self._hosted.close()

    async def open_tools(self, spec: TurnSpec, owner: str, now: float) -> tuple[TurnSpec, HostedTurn | None]:
        """Returns the turn with the tools that the server runs, and what runs them; None if it runs none.

        `now` is in seconds since 1970. Raises `ApiError` 400, and 424 if a list cannot be read.
        """
        request = spec.hosted_tools
        if request is None:
            return structs.replace(spec, answers=self._approvals.read_denials(spec, owner, now)), None
        named = [each for each in request.requests if isinstance(each.tool, McpTool)]
        if len(named) > MAX_MCP_SERVERS:
            raise invalid_value("tools", f"Invalid 'tools': a request can name at most {MAX_MCP_SERVERS} MCP servers.")
        servers = [self._find_server(each) for each in named]
        listings = await self._list_all(named, servers, owner)
        if sum(len(each.offered) for each in listings) > MAX_TOOLS:
            message = f"Invalid 'tools': the MCP servers have more than {MAX_TOOLS} tools. Choose with 'allowed_tools'."
            raise invalid_value("tools", message)
        others = [each for each in request.requests if not isinstance(each.tool, McpTool)]
        hosted = await self._hosted.offer_tools(others, spec.prompt_input.items, owner)
        units = _defer_tools(request, listings)
        at_once = [each for each in listings if not (units and each.tool.defer_loading)]
        offered_tools: list[PlacedTool] = [(tool, each.request.path) for each in at_once for tool in each.offered]
        offered_tools += [(tool, each.path) for each in hosted for tool in each.tools]
        offer = await offer_tools(spec, request, offered_tools, units)
        spec = offer.spec
        by_label = {each.tool.server_label: each for each in listings}
        offered = {label: frozenset(tool.name for tool in each.offered) for label, each in by_label.items()}
        answered = self._approvals.read(spec, offered, owner, now)
        spec = structs.replace(spec, answers=answered.answers)
        if not (listings or hosted or offer.search):
            return spec, None
        named_servers = {label: each.server for label, each in by_label.items()}
        call_tool = MeasuredCalls(self._servers, named_servers, self._report)
        runners: dict[HostedToolKind, ToolRunner] = {each.tools[0].kind: each.runner for each in hosted}
        turn = HostedTurn(
            runners={"mcp": McpRunner(call_tool), **runners},
            rules=CallRules(
                sign=partial(self._approvals.sign, owner, now),
                lists=tuple(_told_lists(spec.prompt_input.items, listings)),
                approved=answered.approved,
                max_calls=spec.max_tool_calls,
                search=offer.search,
                sources=next((each.sources for each in hosted if each.sources.sources), SourceList()),
            ),
            allowed_later=offer.allowed_later,
            stored=StoredTools.of(request, now, offer),
        )
        return spec, turn

    async def reopen_tools(self, stored: StoredTools, owner: str) -> ReopenedTools:
        """Returns what runs the calls of a turn that another process began.

        Calls of a tool that cannot be used any more fail, each with the reason.
        """
        servers, refused, errors = dict[str, ToolServer](), dict[str, str](), list[ApiError]()
        runners: dict[HostedToolKind, ToolRunner] = {}
        for request, has_secrets in ((each.read(), each.has_secrets) for each in stored.requests):
            label = request.tool.server_label if isinstance(request.tool, McpTool) else ""
            try:
                if label and has_secrets:
                    refused[label] = NO_CREDENTIALS.format(label=clip_text(label))
                elif label:
                    servers[label] = self._find_server(request)
                else:
                    offers = await self._hosted.offer_tools([request], (), owner)
                    runners = {each.tools[0].kind: each.runner for each in offers} | runners  # of a kind, the first
            except ApiError as error:
                if label:
                    refused[label] = error.message
                else:
                    errors.append(error)
        runners["mcp"] = McpRunner(refuse_calls(MeasuredCalls(self._servers, servers, self._report), refused))
        return ReopenedTools(
            runners=add_unavailable(runners, errors),
            sign=partial(self._approvals.sign, owner, stored.now),
            allowed_later=None if stored.allowed_later is None else frozenset(stored.allowed_later),
            search=None if stored.search is None else stored.search.create_search(),
        )

    # Servers and their lists

    def _find_server(self, request: HostedToolRequest) -> ToolServer:
        """Returns the server that a tool names. Raises `ApiError` 400 if the operator does not allow it.

        Credentials of the operator are sent to the operator's URL only, those of the client to the client's.
        """
        tool, secret = request.tool, request.secrets
        assert isinstance(tool, McpTool)
        own = self._servers.servers.get(tool.connector_id or tool.server_label)
        if own is not None and (not tool.server_url or tool.server_url == own.url):
            if secret.headers or secret.authorization:
                path = request.find_path("headers")
                raise invalid_value(path, f"The operator sets the credentials of '{own.label}'. Leave '{path}' out.")
            return own
        if not tool.server_url:
            name = clip_text(tool.connector_id or tool.server_label)
            raise self._not_allowed(request, f"This server has no tool server '{name}'.")
        try:
            address = check_client_url(tool.server_url, self._policy.client_urls)
        except ValueError as error:
            raise self._not_allowed(request, str(error)) from None
        try:
            headers = check_client_headers(dict(secret.headers), secret.authorization or None)
        except ValueError as error:
            path = request.find_path("headers")
            raise invalid_value(path, f"Invalid '{path}': {error}") from None
        return create_client_server(tool.server_label, address, headers)

    def _not_allowed(self, request: HostedToolRequest, reason: str) -> ApiError:
        remedy = "The operator names servers with --tool-server LABEL=URL, or allows their hosts with --mcp-allow HOST."
        return ApiError(400, "mcp_server_not_allowed", f"{reason} {remedy}", request.find_path("server_url"))

    async def _list_all(
        self, requests: Sequence[HostedToolRequest], servers: Sequence[ToolServer], owner: str
    ) -> list[_Listing]:
        tasks = [asyncio.ensure_future(self._servers.list_tools(server, owner)) for server in servers]
        try:
            lists = await asyncio.gather(*tasks)
        except ToolListError as error:
            raise ApiError(424, "http_error", error.message, "tools", kind="external_connector_error") from None
        finally:
            for task in tasks:
                task.cancel()
        return [
            self._select_tools(request, server, listed)
            for request, server, listed in zip(requests, servers, lists, strict=True)
        ]

    def _select_tools(self, request: HostedToolRequest, server: ToolServer, listed: ToolList) -> _Listing:
        tool = request.tool
        assert isinstance(tool, McpTool)
        selected = tuple(
            each
            for each in listed.tools
            if request.allowed.matches(each.name, each.read_only) and each.name not in request.hidden_tools
        )
        forced = server.is_operator and server.label in self._policy.approve_labels
        offered = tuple(
            HostedTool(
                kind="mcp",
                name=each.name,
                server_label=tool.server_label,
                description=each.description,
                parameters=each.input_schema,
                read_only=each.read_only,
                needs_approval=needs_approval(request.approval, each.name, each.read_only, forced=forced),
            )
            for each in selected
        )
        if not request.can_ask and any(each.needs_approval for each in offered):
            raise refused_approval(request, forced_by=server.label if forced else "")
        return _Listing(request, tool, server, offered, selected, _select_left_out(request, listed))


def _defer_tools(request: HostedToolsRequest, listings: Sequence[_Listing]) -> list[DeferredUnit]:
    """Returns what a search of the server can find; nothing if the request names none."""
    if request.client_tools.search != "server":
        return []
    units = [defer_client_tool(each) for each in request.client_tools.deferred]
    deferred = (each for each in listings if each.tool.defer_loading and each.offered)
    units += [
        defer_server(each.tool.server_label, each.tool.server_description, each.request.path, each.offered)
        for each in deferred
    ]
    return units


def _select_left_out(request: HostedToolRequest, listed: ToolList) -> tuple[LeftOutTool, ...]:
    """Returns the tools that the client allows and that are not offered, also those that the server does not list.

    A tool that the client does not allow is not left out by this server.
    """
    known = {each.name for each in listed.tools} | {each.sent_name for each in listed.left_out}
    unlisted = sorted((request.allowed.names or frozenset()) - known - set(request.hidden_tools))
    return (
        *(
            each
            for each in listed.left_out
            if request.allowed.matches(each.sent_name, each.read_only) and each.sent_name not in request.hidden_tools
        ),
        *(LeftOutTool(clip_text(name), UNLISTED) for name in unlisted),
    )


def _told_lists(items: Sequence[AnyInput], listings: Sequence[_Listing]) -> list[McpListTools]:
    """Returns the lists that the conversation does not have yet."""
    known = {item.server_label for item in items if isinstance(item, InputMcpList)}
    return [
        McpListTools(
            id="",
            server_label=listing.tool.server_label,
            tools=tuple(
                {
                    "name": each.name,
                    "description": each.description,
                    "input_schema": each.input_schema,
                    "annotations": {"read_only": bool(each.read_only)},
                }
                for each in listing.listed
            ),
            left_out=tuple({"name": each.name, "reason": each.reason} for each in listing.left_out) or UNSET,
        )
        for listing in listings
        if listing.tool.server_label not in known
    ]
