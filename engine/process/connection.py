"""One engine process as its parent sees it: orders go out, reports come in, and its end, however it comes, is told."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from antiphon.engine.process.messages import Failed, Order, Ping, Ready, Report, Stop, pack, reports
from antiphon.engine.process.spawn import Host, Spawn

GRACE = 1.0
"""Seconds for a process to leave by itself when it is told to."""
QUARTERS = 4
"""Silence is counted in quarters of its limit, so that a parent that was itself asleep does not blame the child."""


class Link(asyncio.Protocol):
    """``heard`` gets every report, in the event loop. ``ended`` is done when the process is gone, with the reason."""

    def __init__(self, host: Host, heard: Callable[[Report], None]) -> None:
        self.host = host
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._heard, self._reports = heard, reports()
        self._transport: asyncio.Transport | None = None
        self._quiet = 0
        self._loaded = False
        self._reason: str | None = None
        self._burial: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, spawn: Spawn, heard: Callable[[Report], None], first: Order) -> "Link":
        """Begin a process and say the first word to it. Raises ``OSError`` where none can be begun."""
        near, far = socket.socketpair()
        near.setblocking(False)
        try:
            link = cls(spawn(far), heard)
        except OSError:
            near.close()
            raise
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=near)
        link.say(first)
        return link

    def say(self, order: Order) -> None:
        """Send an order; to a process that is gone it is not sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(order))

    async def watch(self, *, hang_after: float, load_within: float) -> None:
        """Kill the process when it has been silent for too long: it is pinged, and answers between two steps."""
        quarter = hang_after / QUARTERS
        while True:
            self._quiet += 1
            if self._loaded:
                self.say(Ping())
            await asyncio.sleep(quarter)
            limit = hang_after if self._loaded else load_within
            if self._quiet * quarter >= limit:
                self.kill(f"no answer for {limit:g} s")

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self._reason = self._reason or reason
        self.host.kill()

    async def close(self) -> None:
        """Ask the process to leave, make it leave, and see it off."""
        self.say(Stop())
        if not self._loaded:
            self.kill("stopped")
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), GRACE)
        finally:
            self.kill("stopped")
        await asyncio.shield(self.ended)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on what is whole: one wake-up, however many streams it is about."""
        self._quiet = 0
        try:
            found = self._reports.feed(data)
        except msgspec.DecodeError as error:
            self.kill(f"a message that cannot be read: {error}")
            return
        for report in found:
            if isinstance(report, Ready):
                self._loaded = True
            elif isinstance(report, Failed):
                self._reason = self._reason or report.reason
            self._heard(report)

    def connection_lost(self, _: Exception | None) -> None:
        """The process has let go of the socket: it is dead or dying."""
        self._burial = asyncio.get_running_loop().create_task(self._bury(), name="engine burial")

    async def _bury(self) -> None:
        self.host.kill()
        how = await self.host.wait()
        self.ended.set_result(self._reason or how)
