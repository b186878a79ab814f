"""Keeps the errors of whatever observes traffic from the traffic itself."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


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
            _log.exception("%s failed; the traffic goes on", self._name)
            self._on_failure()
