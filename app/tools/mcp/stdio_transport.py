"""The transport of the `mcp` SDK for a command: JSON-RPC messages as lines of its input and output.

The SDK's own transport lets a line grow without limit and hands on more of the environment.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from mcp.types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from antiphon.app.tools.mcp.faults import BAD_ANSWER, ToolServerError
from antiphon.app.tools.mcp.line_reader import Line, RequestId, find_broken_answer, read_lines
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer
from antiphon.engine.process.spawn import child_environment
from antiphon.events.json_lines import escape_line_separators

_log = structlog.get_logger(__name__)

INHERITED_VARIABLES = ("PATH", "HOME", "LANG")
"""All that a command learns of this server's environment. It is a program of others that talks to the network, and gets
a variable that it needs from the operator, as an argument of `env`."""
STOP_GRACE_S = 1.0
"""Time for a command to end after its input is closed, and again after SIGTERM."""
CANCELLED = "notifications/cancelled"
NO_MESSAGE = "Failed to parse a line of the command"
LINE_TOO_LARGE_MESSAGE = "Answer larger than the limit of a line"
"""Messages of the errors that take the place of an answer that cannot be read. The client knows them."""
MAX_STDERR_CHARS = 500
"""Of one logged line."""


@asynccontextmanager
async def run_command(
    server: ToolServer, limits: ToolLimits, is_ready: Callable[[], bool], ended: asyncio.Event
) -> AsyncIterator[TransportStreams]:
    """Runs the command while the context is open. Sets `ended` when the command says no more."""
    try:
        process = await asyncio.create_subprocess_exec(
            *server.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=child_environment(os.environ, only=INHERITED_VARIABLES),
            start_new_session=True,
        )
    except (OSError, ValueError):
        raise ToolServerError(BAD_ANSWER, "The command of the server could not be started.") from None
    to_session, from_command = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_command, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    waiting: dict[RequestId, None] = {}
    try:
        async with to_session, from_command, to_command, from_session, anyio.create_task_group() as tasks:
            tasks.start_soon(_read_messages, process, to_session, limits.max_body_bytes, waiting, ended)
            tasks.start_soon(_write_messages, process, from_session, waiting, ended)
            tasks.start_soon(_log_stderr, process, server.label, is_ready)
            try:
                yield from_command, to_command
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop_process(process)


async def _read_messages(
    process: Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    max_bytes: int,
    waiting: dict[RequestId, None],
    ended: asyncio.Event,
) -> None:
    """Hands on what the command says. `waiting` has the ids of the requests that it has not answered."""
    assert process.stdout is not None
    try:
        async with to_session:
            async for line in read_lines(process.stdout, max_bytes):
                if (message := _parse_line(line, waiting)) is not None:
                    if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                        waiting.pop(coerce_request_id(message.id), None)
                    await to_session.send(SessionMessage(message))
    except ValueError:
        _log.warning("a line of a tool server does not end; the command is stopped")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        pass
    finally:
        ended.set()


def _parse_line(line: Line, waiting: Collection[RequestId]) -> JSONRPCMessage | None:
    """Returns the message of a line: an error, if it should have been an answer; None if it is nothing."""
    text = LINE_TOO_LARGE_MESSAGE if line.is_cut else NO_MESSAGE
    if not line.is_cut:
        with suppress(ValidationError):
            message = jsonrpc_message_adapter.validate_json(line.content, by_name=False)
            if not isinstance(message, JSONRPCError) or message.id is not None:
                return message
            text = message.error.message  # of an error that names no request
    if (request_id := find_broken_answer(line, waiting)) is None:
        return None
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=text))


async def _write_messages(
    process: Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    waiting: dict[RequestId, None],
    ended: asyncio.Event,
) -> None:
    assert process.stdin is not None
    try:
        async with from_session:
            async for item in from_session:
                if isinstance(item.message, JSONRPCRequest):
                    waiting[coerce_request_id(item.message.id)] = None
                elif isinstance(item.message, JSONRPCNotification) and item.message.method == CANCELLED:
                    waiting.pop(cancelled_request_id_from_params(item.message.params) or "", None)
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(escape_line_separators(line.encode()) + b"\n")
                await process.stdin.drain()
    except OSError:
        ended.set()


async def _log_stderr(process: Process, label: str, is_ready: Callable[[], bool]) -> None:
    """Logs why a command does not start. Later lines may tell of users' calls, and are dropped."""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:
            continue
        if not line:
            return
        if not is_ready():
            text = line.decode(errors="replace").strip()[:MAX_STDERR_CHARS]
            _log.info("a tool server starts", label=label, stderr=text)


async def _stop_process(process: Process) -> None:
    """Ends the command and all processes that it started: first by the end of its input, then by signals."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if await _wait_for_exit(process):
                break
            _signal_group(process, signal_number)
    finally:
        _signal_group(process, signal.SIGKILL)
    await _wait_for_exit(process)
    # A descendant in another group may hold the pipes open: closing the transport closes this end of them.
    process._transport.close()  # type: ignore[attr-defined]


async def _wait_for_exit(process: Process) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_GRACE_S):
            await process.wait()
    return process.returncode is not None


def _signal_group(process: Process, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal_number)
