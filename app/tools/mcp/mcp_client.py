"""Sessions of the `mcp` SDK with tool servers, over HTTP and over the pipes of a command. Imports the SDK.

A session over HTTP lives for one list or one call, in the task that opened it, so that no two users share what a server
remembers of a session. A command lives as long as this server, in a task of its own, and serves everybody.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import mcp
from mcp import types
from mcp.client.session import ClientSession, IncomingMessage, MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions
from mcp.types import methods
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from antiphon.app.outbound.resolver import Resolve
from antiphon.app.tools.mcp.faults import BAD_ANSWER, NO_ANSWER, ToolServerError, WireRecord, describe_status
from antiphon.app.tools.mcp.results import remove_secrets
from antiphon.app.tools.mcp.stdio_transport import LINE_TOO_LARGE_MESSAGE, run_command
from antiphon.app.tools.mcp.tool_lists import ListBuilder, ToolList
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer
from antiphon.app.tools.mcp.transport import create_http_client
from antiphon.app.turn_types.tracing.context import build_outgoing_headers
from antiphon.events.hosted import McpCallError, McpProtocolError

CLIENT_INFO = types.Implementation(name="antiphon", version="1")
LIBRARY_LOGGERS = ("mcp", "client")
"""Their lines hold URLs and pieces of bodies, which may repeat a token. This server reports every fault itself."""
MAX_MCP_MESSAGE_CHARS = 1000
LATEST_PROTOCOL_VERSION = MODERN_PROTOCOL_VERSIONS[-1]

_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_SDK_ERRORS = {
    "Server returned an error response": "",
    "Not Found": "",
    "Session terminated": "",
    "Connection closed": "The connection to the server broke.",
    "SSE stream": "The connection to the server broke.",
    "Failed to parse": "The server sent what is no message of MCP.",
    LINE_TOO_LARGE_MESSAGE: "The answer of the server is too large.",
    "Unexpected content type": "The server sent another content type than JSON or an event stream.",
    "server answered a request with 202": "The server accepted the request, but sent no answer.",
}
"""Beginnings of JSON-RPC errors that the SDK itself makes, and what they say. Empty: the HTTP status says it."""

for _name in LIBRARY_LOGGERS:
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_http_session(
    server: ToolServer,
    limits: ToolLimits,
    record: WireRecord,
    resolve: Resolve,
    mode: str,
    on_change: Callable[[], None],
) -> AsyncIterator[ClientSession]:
    """Opens a session over HTTP. `mode` is a protocol version, "legacy" or "auto". Enter and leave it in one task.

    The session calls `on_change` when the server says that its list of tools has changed.
    """
    async with create_http_client(server, limits, record, resolve) as http_client:
        streams = streamable_http_client(
            server.url, http_client=http_client, max_sse_event_size=limits.max_sse_event_bytes
        )
        handler = _watch_list(on_change)
        async with mcp.Client(
            streams, mode=mode, cache=None, client_info=CLIENT_INFO, message_handler=handler
        ) as client:
            yield client.session


def _watch_list(on_change: Callable[[], None]) -> MessageHandlerFnT:
    async def handle_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    return handle_message


def find_mode(session: ClientSession) -> str:
    """Returns the mode that opens the next session without a question about the protocol."""
    version = session.protocol_version
    return version if version in MODERN_PROTOCOL_VERSIONS else "legacy"


def _ignore_change() -> None:
    """Keeps what is known of the list."""


class CommandSession:
    """The session with a command. The command starts when it is first needed, and again when it has ended."""

    def __init__(self, server: ToolServer, limits: ToolLimits, on_change: Callable[[], None] = _ignore_change) -> None:
        self._server, self._limits, self._on_change = server, limits, on_change
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[ClientSession] | None = None
        self._ended = asyncio.Event()
        self._start_lock = asyncio.Lock()

    async def open(self, timeout_s: float) -> ClientSession:
        """Returns the session of the running command. Raises ToolServerError if it does not start in time."""
        ended: asyncio.Event | None = None
        try:
            async with asyncio.timeout(timeout_s):
                async with self._start_lock:
                    if self._owner is None or self._owner.done() or self._ended.is_set():
                        await self.close()
                        self._ended = asyncio.Event()
                        self._ready = asyncio.get_running_loop().create_future()
                        self._owner = asyncio.create_task(self._run(self._ready, self._ended))
                    assert self._ready is not None
                    ready, ended = self._ready, self._ended
                await asyncio.wait({ready})
        except TimeoutError:
            if ended is not None:
                ended.set()
            raise ToolServerError(NO_ANSWER, "The command of the server did not get ready in time.") from None
        return ready.result()

    async def close(self) -> None:
        """Ends the command and all its processes."""
        self._ended.set()
        if self._owner is not None and not self._owner.done():
            await asyncio.wait({self._owner})

    async def _run(self, ready: asyncio.Future[ClientSession], ended: asyncio.Event) -> None:
        """Runs the command until it ends or `ended` is set. The session is entered and left in this task."""
        starting = asyncio.create_task(self._hold(ready, ended))
        waiting = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and not ready.done():
                starting.cancel()
            await asyncio.wait({starting})
        finally:
            waiting.cancel()
            ended.set()
        fault = None if starting.cancelled() else starting.exception()
        if not ready.done():
            reason = ToolServerError(BAD_ANSWER, "The command of the server ended before it was ready.")
            ready.set_exception(fault if isinstance(fault, ToolServerError) else reason)
            ready.exception()

    async def _hold(self, ready: asyncio.Future[ClientSession], ended: asyncio.Event) -> None:
        streams = run_command(self._server, self._limits, ready.done, ended)
        handler = _watch_list(self._on_change)
        async with mcp.Client(streams, cache=None, client_info=CLIENT_INFO, message_handler=handler) as client:
            ready.set_result(client.session)
            await ended.wait()


async def fetch_list(session: ClientSession, limits: ToolLimits, secrets: tuple[str, ...]) -> ToolList:
    """Fetches all pages of a list of tools, in which no secret is left. Raises ToolServerError beyond a limit.

    Not `session.send_request`, which refuses a whole page for one tool that is none.
    """
    version = session.protocol_version or LATEST_PROTOCOL_VERSION
    builder = ListBuilder(limits, partial(_read_tool, version))
    cursor: str | None = None
    while True:
        data: dict[str, Any] = {"method": "tools/list", "params": {"cursor": cursor} if cursor else {}}
        options: CallOptions = {}
        session._stamp(data, options)
        page = await session._dispatcher.send_raw_request(data["method"], data["params"], options)
        tools, cursor, ttl_ms = page.get("tools"), page.get("nextCursor"), page.get("ttlMs")
        if not isinstance(tools, list) or not isinstance(cursor, str | None):
            raise ToolServerError(BAD_ANSWER, "The server sent what is no message of MCP.")
        has_ttl = version in MODERN_PROTOCOL_VERSIONS and isinstance(ttl_ms, int | float)
        builder.add_page(remove_secrets(tools, secrets), cursor, int(max(ttl_ms or 0, 0)) if has_ttl else None)
        if not cursor:
            return builder.build()


def _read_tool(version: str, tool: Any) -> dict[str, Any]:
    """Returns a tool of a list in the form that the protocol's version has. Raises ValueError with what is wrong."""
    page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [tool]}
    try:
        with suppress(KeyError):
            methods.validate_server_result("tools/list", version, page)
        return types.Tool.model_validate(tool, by_name=False).model_dump(by_alias=True, mode="json", exclude_none=True)
    except ValidationError as fault:
        error = fault.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(str(part) for part in error["loc"] if part not in ("tools", 0))
        raise ValueError(f"its {path or 'definition'} is not valid: {error['msg']}"[:MAX_MCP_MESSAGE_CHARS]) from None


async def call_tool(session: ClientSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Calls a tool once. Returns the result as on the wire. Raises ToolServerError if the tool asks for input.

    Not `session.call_tool`, which fetches the list after a call and runs the server's schema over the result; nor
    `Client.call_tool`, which may call again.
    """
    meta = cast("types.RequestParamsMeta", build_outgoing_headers())  # MCP's place for a trace, also over pipes
    params = types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta or None)
    request = types.CallToolRequest(params=params)
    result = await session.send_request(request, _CALL_RESULT)
    if isinstance(result, types.InputRequiredResult):
        raise ToolServerError(BAD_ANSWER, "The tool asks its user for input, which is not possible here.")
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def load_header_names(session: ClientSession, name: str, limits: ToolLimits) -> None:
    """Lets the session learn which arguments of a tool are sent as headers (`x-mcp-header`)."""
    cursor: str | None = None
    for _ in range(limits.max_list_pages):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        cursor = page.next_cursor
        if not cursor or any(tool.name == name for tool in page.tools):
            return


def convert_exception(fault: BaseException, record: WireRecord, secrets: tuple[str, ...]) -> McpCallError:
    """Returns the error for what a list or call raised."""
    causes = list(_flatten(fault))
    for cause in causes:
        if isinstance(cause, ToolServerError):
            return cause.to_error()
    for cause in causes:
        if isinstance(cause, mcp.MCPError):
            return _convert_mcp_error(cause, record, secrets)
    if record.fault is not None:
        return record.fault.to_error()
    if any(isinstance(cause, ValidationError) for cause in causes):
        return ToolServerError(BAD_ANSWER, "The server sent what is no message of MCP.").to_error()
    return ToolServerError(BAD_ANSWER, "The session with the server failed.").to_error()


def _convert_mcp_error(fault: mcp.MCPError, record: WireRecord, secrets: tuple[str, ...]) -> McpCallError:
    """Tells the server's own errors from those that the SDK makes of a broken connection or an HTTP status."""
    message = str(fault.error.message)
    for beginning, reason in _SDK_ERRORS.items():
        if not message.startswith(beginning):
            continue
        if record.fault is not None:
            return record.fault.to_error()
        if record.status is not None and record.status >= 400:
            return ToolServerError(record.status, describe_status(record.status)).to_error()
        if reason:
            return ToolServerError(BAD_ANSWER, reason).to_error()
    return McpProtocolError(code=fault.error.code, message=remove_secrets(message, secrets)[:MAX_MCP_MESSAGE_CHARS])


def _flatten(fault: BaseException) -> list[BaseException]:
    if isinstance(fault, BaseExceptionGroup):
        return [cause for inner in fault.exceptions for cause in _flatten(inner)]
    return [fault]
