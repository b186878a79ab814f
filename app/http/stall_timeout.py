"""Stall timeout: closes connections whose clients stop reading."""

import asyncio

from antiphon.app.options.settings import Settings


class StallTimeoutMixin:
    """Waits for slow clients, but aborts a connection that is not read for `stall_timeout`, which ends its turn."""

    settings = Settings()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Starts the timer: the send buffers are full."""
        super().pause_writing()  # type: ignore[misc]  # defined by the protocol class
        self._stall_timer = self.loop.call_later(self.settings.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancels the timer: the client reads again."""
        self._cancel_stall_timer()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timer."""
        self._cancel_stall_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
