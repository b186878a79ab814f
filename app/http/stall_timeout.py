"""Cuts off clients that stop reading."""

import asyncio

from antiphon.app.settings import Settings


class StallTimeoutMixin:
    """A slow one is waited for; one that stops for good is cut off, which ends its turn."""

    settings = Settings()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The system's buffers are full."""
        super().pause_writing()  # type: ignore[misc]  # of the protocol that this is mixed into
        self._stall_timer = self.loop.call_later(self.settings.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads on."""
        self._cancel_stall_timer()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._cancel_stall_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
