"""Observers of traffic, and a guard that keeps their errors from the traffic itself."""

import logging
import traceback
from collections.abc import Callable

from antiphon.kit.proxy.messages import ExchangeEnding, HeaderList
from antiphon.kit.terminal_text import show_controls

_log = logging.getLogger(__name__)


class ExchangeObserver:
    """Sees one exchange, after its bytes have been passed on. This class does nothing with them."""

    def on_request(self, body: bytes) -> None:
        """The request has been sent."""

    def on_reply(self, status: int, headers: HeaderList) -> None:
        """The head of the reply."""

    def on_data(self, data: bytes) -> None:
        """A part of the reply's body."""

    def on_end(self, ending: ExchangeEnding) -> None:
        """The end of the exchange. It comes once, whatever happened before."""

    def on_failure(self) -> None:
        """One of the methods above raised. No further one is called."""


class CallGuard:
    """Calls the methods of an observer until one fails. The failure is logged; the observer sees nothing more.

    `name` is the observer's, for the log; `on_failure` is called after the failure.
    """

    def __init__(self, name: str, on_failure: Callable[[], None] = lambda: None) -> None:
        self._name, self._on_failure = name, on_failure
        self._is_broken = False

    def call(self, method: Callable[..., None], *args: object) -> None:
        """Calls a method of the observer."""
        if self._is_broken:
            return
        try:
            method(*args)
        except Exception:  # noqa: BLE001  logged; traffic must not depend on a check
            self._is_broken = True
            # An error's message may quote the traffic, and nothing between this log and the terminal escapes it.
            _log.error("%s failed; the traffic goes on\n%s", self._name, show_controls(traceback.format_exc()))
            self._on_failure()
