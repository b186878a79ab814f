"""One engine process as its parent sees it: orders go out, reports come in, and its end, however it comes, is told."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from antiphon.engine.process.messages import (
    Command,
    PingCommand,
    Report,
    StopCommand,
    WorkerFailed,
    WorkerReady,
    encode_message,
    report_decoder,
)
from antiphon.engine.process.spawn import SpawnWorker, WorkerHandle

EXIT_TIMEOUT_S = 1.0
"""Seconds for a process to leave by itself when it is told to."""
WATCHDOG_TICKS = 4
"""Silence is counted in quarters of its limit, so that a parent that was itself asleep does not blame the child."""


class WorkerConnection(asyncio.Protocol):
    """``heard`` gets every report, in the event loop. ``ended`` is done when the process is gone, with the reason."""

    def __init__(self, worker: WorkerHandle, on_report: Callable[[Report], None]) -> None:
        self.worker = worker
        self.exit_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_report, self._decoder = on_report, report_decoder()
        self._transport: asyncio.Transport | None = None
        self._silent_ticks = 0
        self._loaded = False
        self._reason: str | None = None
        self._reap_task: asyncio.Task[None] | None = None

    @classmethod
    async def spawn_worker(
        cls, spawn: SpawnWorker, on_report: Callable[[Report], None], first_command: Command
    ) -> "WorkerConnection":
        """Begin a process and say the first word to it. Raises ``OSError`` where none can be begun."""
        near, far = socket.socketpair()
        near.setblocking(False)
        try:
            link = cls(spawn(far), on_report)
        except OSError:
            near.close()
            raise
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=near)
        link.send(first_command)
        return link

    def send(self, command: Command) -> None:
        """Send an order; to a process that is gone it is not sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_message(command))

    async def run_watchdog(self, *, step_timeout: float, load_timeout: float) -> None:
        """Kill the process when it has been silent for too long: it is pinged, and answers between two steps."""
        quarter = step_timeout / WATCHDOG_TICKS
        while True:
            self._silent_ticks += 1
            if self._loaded:
                self.send(PingCommand())
            await asyncio.sleep(quarter)
            limit = step_timeout if self._loaded else load_timeout
            if self._silent_ticks * quarter >= limit:
                self.kill(f"no answer for {limit:g} s")

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self._reason = self._reason or reason
        self.worker.kill()

    async def close(self) -> None:
        """Ask the process to leave, make it leave, and see it off."""
        self.send(StopCommand())
        if not self._loaded:
            self.kill("stopped")
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.exit_reason), EXIT_TIMEOUT_S)
        finally:
            self.kill("stopped")
        await asyncio.shield(self.exit_reason)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on what is whole: one wake-up, however many streams it is about."""
        self._silent_ticks = 0
        try:
            found = self._decoder.feed(data)
        except msgspec.DecodeError as error:
            self.kill(f"a message that cannot be read: {error}")
            return
        for report in found:
            if isinstance(report, WorkerReady):
                self._loaded = True
            elif isinstance(report, WorkerFailed):
                self._reason = self._reason or report.reason
            self._on_report(report)

    def connection_lost(self, _: Exception | None) -> None:
        """The process has let go of the socket: it is dead or dying."""
        self._reap_task = asyncio.get_running_loop().create_task(self._reap(), name="engine-reap")

    async def _reap(self) -> None:
        self.worker.kill()
        how = await self.worker.wait()
        self.exit_reason.set_result(self._reason or how)
