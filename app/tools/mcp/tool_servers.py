"""The tool servers of this server: lists their tools and calls them, within limits of time, size and number."""

import asyncio
import importlib.util
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec import Struct

from antiphon.app.lifecycle.malloc_trim import MemoryReleaser
from antiphon.app.outbound.resolver import Resolve, resolve_host
from antiphon.app.outbound.slots import KeyedSlots
from antiphon.app.tools.mcp.faults import BAD_ANSWER, NO_ANSWER, ToolListError, ToolServerError, WireRecord
from antiphon.app.tools.mcp.results import convert_error, convert_result, remove_secrets
from antiphon.app.tools.mcp.tool_lists import LeftOutTool, ListCache, ToolList
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.events.hosted import McpCallError, McpHttpError, McpProtocolError

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

    from antiphon.app.tools.mcp.mcp_client import CommandSession

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

MAX_KNOWN_SERVERS = 256
HEADER_MISMATCH = -32020
"""MCP's error for a call that lacks arguments as headers. It is not sent again; the next one has them."""
ABANDON_MARGIN_S = 0.5
"""Time for a task to end after the traffic of its session has ended."""


def check_extra() -> None:
    """Imports the `mcp` SDK, which takes about a second. Raises RuntimeError if it is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise RuntimeError("Tool servers need the package mcp. Install it: pip install 'antiphon[tools]'")
    from antiphon.app.tools.mcp import mcp_client  # noqa: F401, PLC0415  the rest of the server runs without the extra


class _KnownServer(Struct):
    """Facts that earlier sessions with a server have shown."""

    mode: str = "auto"
    """The protocol that it speaks."""
    header_tools: frozenset[str] = frozenset()
    """Tools whose arguments are also sent as headers."""
    left_out: tuple[LeftOutTool, ...] = ()
    """Tools that the operator was told about."""


class ToolServers:
    """Lists and calls tools. `servers` are the operator's, by label; clients may name others."""

    def __init__(
        self,
        servers: Mapping[str, ToolServer],
        *,
        limits: ToolLimits = ToolLimits(),  # noqa: B008  frozen
        resolve: Resolve = resolve_host,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = servers
        self._limits = limits
        self._resolve = resolve
        self._lists = ListCache(limits, clock)
        self._known: OrderedDict[str, _KnownServer] = OrderedDict()
        self._call_slots = KeyedSlots(limits.max_parallel_calls)
        self._commands: dict[str, CommandSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._memory = MemoryReleaser()

    async def list_tools(self, server: ToolServer, owner: str) -> ToolList:
        """Returns the tools of a server, from the cache of this owner if they are there. Raises ToolListError."""
        try:
            return await self._lists.get((owner, server.identity), lambda: self._fetch_list(server))
        except _WorkError as fault:
            _log_fault(server, fault.error)
            raise ToolListError(server.label, _describe_for_client(fault.error)) from None
        except ToolServerError as fault:
            raise ToolListError(server.label, fault.message) from None

    async def call_tool(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Calls a tool once. Every failure is an outcome with an error. Cancel the awaiting task to end the call."""
        try:
            return await self._call(server, name, arguments)
        except _WorkError as fault:
            _log_fault(server, fault.error)
            return convert_error(fault.error)
        except Exception as fault:  # noqa: BLE001  a tool must not end the response
            _log.error("a tool call failed", fault=type(fault).__name__)
            return convert_error(ToolServerError(BAD_ANSWER, "The call failed inside this server.").to_error())

    async def close(self) -> None:
        """Ends all calls, and all commands with their processes."""
        await self._lists.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.cancel_grace_s)
        await asyncio.gather(*(command.close() for command in self._commands.values()))

    async def _call(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        from antiphon.app.tools.mcp import mcp_client  # noqa: PLC0415  see check_extra

        async def call(session: "ClientSession") -> ToolOutcome:
            result = await mcp_client.call_tool(session, name, arguments)
            return convert_result(remove_secrets(result, server.secrets), self._limits)

        gate = self._call_slots.get(server.identity)
        return await self._run(server, call, self._limits.call_timeout_s, gate=gate, tool=name)

    async def _fetch_list(self, server: ToolServer) -> ToolList:
        from antiphon.app.tools.mcp import mcp_client  # noqa: PLC0415  see check_extra

        async def fetch(session: "ClientSession") -> ToolList:
            return await mcp_client.fetch_list(session, self._limits, server.secrets)

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self._limits.start_timeout_s if server.command else self._limits.list_timeout_s)
        try:
            found = await self._run(server, fetch, self._limits.list_timeout_s, deadline_s=deadline_s)
        except _WorkError as fault:
            is_silent = isinstance(fault.error, McpHttpError) and fault.error.code == NO_ANSWER
            if not server.command or is_silent or loop.time() >= deadline_s:
                raise
            # The call of another turn may have ended the process. A list changes nothing, so it is read again.
            found = await self._run(server, fetch, self._limits.list_timeout_s, deadline_s=deadline_s)
        known = self._recall(server)
        for tool in found.left_out if server.is_operator and found.left_out != known.left_out else ():
            _log.warning("a tool is not offered", label=server.label, tool=tool.name, reason=tool.reason)
        known.left_out = found.left_out
        known.header_tools = frozenset(tool.name for tool in found.tools if tool.has_header_arguments)
        return found

    async def _run(
        self,
        server: ToolServer,
        work: "Callable[[ClientSession], Awaitable[_T]]",
        timeout_s: float,
        *,
        deadline_s: float = math.inf,
        gate: asyncio.Semaphore | None = None,
        tool: str = "",
    ) -> _T:
        """Does the work in a session, in a task of its own, which ends in time. Raises _WorkError.

        A session must be left in the task that entered it. The result does not wait for that. `deadline_s`: time of the
        event loop for the work and the start of a command together.
        """
        record, loop = WireRecord(), asyncio.get_running_loop()
        start_s = min(self._limits.start_timeout_s, deadline_s - loop.time())
        command = await self._open_command(server, start_s) if server.command else None
        timeout_s = max(min(timeout_s, deadline_s - loop.time()), 0.0)
        result: asyncio.Future[_T] = loop.create_future()
        task = asyncio.create_task(self._work(server, record, work, result, command, gate or nullcontext(), tool))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._forget_task(task, result, record))
        try:
            await asyncio.wait({result}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._abandon(task, record)
            raise
        if not result.done():
            await self._abandon(task, record)
            raise _WorkError(_no_answer(timeout_s))
        return result.result()

    async def _open_command(self, server: ToolServer, timeout_s: float) -> "ClientSession":
        from antiphon.app.tools.mcp import mcp_client  # noqa: PLC0415  see check_extra

        if server.identity not in self._commands:
            on_change = partial(self._lists.forget_server, server.identity)
            self._commands[server.identity] = mcp_client.CommandSession(server, self._limits, on_change)
        try:
            return await self._commands[server.identity].open(timeout_s)
        except ToolServerError as fault:
            raise _WorkError(fault.to_error()) from None

    async def _work(
        self,
        server: ToolServer,
        record: WireRecord,
        work: "Callable[[ClientSession], Awaitable[_T]]",
        result: asyncio.Future[_T],
        command: "ClientSession | None",
        gate: AbstractAsyncContextManager[None],
        tool: str,
    ) -> None:
        from antiphon.app.tools.mcp import mcp_client  # noqa: PLC0415  see check_extra

        known = self._recall(server)
        try:
            async with gate:
                if command is not None:
                    result.set_result(await work(command))
                    return
                on_change = partial(self._lists.forget_server, server.identity)
                session_context = mcp_client.open_http_session(
                    server, self._limits, record, self._resolve, known.mode, on_change
                )
                async with session_context as session:
                    known.mode = mcp_client.find_mode(session)
                    if tool in known.header_tools:
                        await mcp_client.load_header_names(session, tool, self._limits)
                    result.set_result(await work(session))
                    record.finish_within(self._limits.cancel_grace_s)
        except Exception as fault:  # noqa: BLE001  the SDK raises what its transport, pydantic and anyio raise
            if result.done():
                return
            error = mcp_client.convert_exception(fault, record, server.secrets)
            known.mode = "auto"
            if isinstance(error, McpProtocolError) and error.code == HEADER_MISMATCH:
                known.header_tools |= {tool}
            result.set_exception(_WorkError(error))

    async def _abandon(self, task: asyncio.Task[None], record: WireRecord) -> None:
        """Ends a session: an older server is told, then the connection is closed."""
        record.finish_within(self._limits.cancel_grace_s)
        task.cancel()
        await asyncio.wait({task}, timeout=self._limits.cancel_grace_s + ABANDON_MARGIN_S)

    def _forget_task(self, task: asyncio.Task[None], result: asyncio.Future[Any], record: WireRecord) -> None:
        self._tasks.discard(task)
        self._memory.on_request_end(record.num_bytes)
        if not result.done():
            result.set_exception(_WorkError(ToolServerError(BAD_ANSWER, "This server stops.").to_error()))
        result.exception()

    def _recall(self, server: ToolServer) -> _KnownServer:
        known = self._known.setdefault(server.identity, _KnownServer())
        self._known.move_to_end(server.identity)
        if len(self._known) > MAX_KNOWN_SERVERS:
            self._known.popitem(last=False)
        return known


class _WorkError(Exception):
    """The work in a session failed. `error` is that of a call."""

    def __init__(self, error: McpCallError) -> None:
        super().__init__()
        self.error = error


def _log_fault(server: ToolServer, error: McpCallError) -> None:
    """Tells the operator about a server of theirs. A label that a client chose is not logged."""
    if server.is_operator:
        _log.warning("a tool server failed", label=server.label, reason=_describe_for_client(error))


def _no_answer(timeout_s: float) -> McpHttpError:
    return ToolServerError(NO_ANSWER, f"The server did not answer within {round(timeout_s, 1):g} s.").to_error()


def _describe_for_client(error: McpCallError) -> str:
    """Returns the reason why a list failed. It repeats no text of the server."""
    if isinstance(error, McpHttpError):
        return error.message
    return f"The server answered with MCP error {error.code}." if isinstance(error, McpProtocolError) else ""
