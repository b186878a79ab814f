"""The parent's connection to one worker process: sends commands, receives reports, and detects the worker's exit."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from antiphon.engine.process.descriptors import DescriptorSender
from antiphon.engine.process.messages import (
    Command,
    PingCommand,
    Report,
    StartCommand,
    StopCommand,
    WorkerFailed,
    WorkerReady,
    encode_message,
    report_decoder,
)
from antiphon.engine.process.spawn import SpawnWorker, WorkerProcess
from antiphon.engine.process.timeouts import FLUSH_TIMEOUT_S

EXIT_TIMEOUT_S = 1.0
"""Seconds that a worker has to exit after a stop command, before it is killed; it may write prefixes before them."""
TICKS_PER_STEP_TIMEOUT = 4
"""Watchdog ticks per step timeout. Silence is counted in ticks, so that a parent that was itself suspended counts only
one, and does not blame the worker for its own pause."""


class WorkerConnection(asyncio.Protocol):
    """Calls `on_report` with every report, in the event loop. `exit_reason` is set when the process has exited."""

    def __init__(self, worker: WorkerProcess, on_report: Callable[[Report], None]) -> None:
        self.worker = worker
        self.descriptors = DescriptorSender()
        self.exit_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_report, self._decoder = on_report, report_decoder()
        self._transport: asyncio.Transport | None = None
        self._exit_timeout_s = EXIT_TIMEOUT_S
        self._silent_ticks = 0
        self._loaded = False
        self._reason: str | None = None
        self._reap_task: asyncio.Task[None] | None = None

    @classmethod
    async def spawn_worker(
        cls,
        spawn: SpawnWorker,
        on_report: Callable[[Report], None],
        first_command: Command,
        on_created: Callable[["WorkerConnection"], None],
    ) -> "WorkerConnection":
        """Starts a worker and sends the first command to it. Raises `OSError` if it cannot be started.

        `on_created` gets the connection before `on_report` gets its first report.
        """
        parent_end, worker_end = socket.socketpair()
        parent_end.setblocking(False)
        try:
            connection = cls(spawn(worker_end), on_report)
        except OSError:
            parent_end.close()
            raise
        if isinstance(first_command, StartCommand) and first_command.options.prefix_cache_disk is not None:
            connection._exit_timeout_s += FLUSH_TIMEOUT_S
        on_created(connection)
        data = encode_message(first_command)
        try:
            sent = connection.descriptors.send_with(parent_end, data)
        except OSError:  # the worker has exited, which the connection will find
            sent = 0
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=parent_end)
        if sent < len(data):
            connection.send_bytes(data[sent:])
        return connection

    def send(self, command: Command) -> None:
        """Sends a command; does nothing if the connection is closed."""
        self.send_bytes(encode_message(command))

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes; does nothing if the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def run_watchdog(self, *, step_timeout: float, load_timeout: float) -> None:
        """Kills the worker after too long a silence. A loaded worker answers pings between two steps."""
        interval = step_timeout / TICKS_PER_STEP_TIMEOUT
        while True:
            self._silent_ticks += 1
            if self._loaded:
                self.send(PingCommand())
            await asyncio.sleep(interval)
            limit = step_timeout if self._loaded else load_timeout
            if self._silent_ticks * interval >= limit:
                self.kill(f"no answer for {limit:g} s")

    def kill(self, reason: str) -> None:
        """Kills the process. `reason` becomes the exit reason, unless there is one."""
        self._reason = self._reason or reason
        self.worker.kill()

    async def close(self) -> None:
        """Asks the worker to exit, kills it after a timeout, and waits for its end."""
        self.send(StopCommand())
        if not self._loaded:
            self.kill("stopped")
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.exit_reason), self._exit_timeout_s)
        finally:
            self.kill("stopped")
        await asyncio.shield(self.exit_reason)

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Passes complete reports on. A step costs one wake-up for all its jobs."""
        self._silent_ticks = 0
        try:
            reports = self._decoder.feed(data)
        except msgspec.DecodeError as error:
            self.kill(f"invalid message from the worker: {error}")
            return
        for report in reports:
            if isinstance(report, WorkerReady):
                self._loaded = True
            elif isinstance(report, WorkerFailed):
                self._reason = self._reason or report.reason
            self._on_report(report)

    def connection_lost(self, _: Exception | None) -> None:
        """Kills and reaps the worker, which closes the socket only when it exits."""
        self._reap_task = asyncio.get_running_loop().create_task(self._reap(), name="engine-reap")

    async def _reap(self) -> None:
        self.descriptors.close()
        self.worker.kill()
        exit_status = await self.worker.wait()
        self.exit_reason.set_result(self._reason or exit_status)
