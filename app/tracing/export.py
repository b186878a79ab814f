"""The queue of spans, and the thread that sends them. A collector never delays a request: what has no place is dropped.

A collector that does not answer delays the exit of the server by `EXPORT_CLOSE_TIMEOUT_S` at most.

`BatchSpanProcessor` of OpenTelemetry 1.45 does not do this: a full queue drops its oldest spans and tells no number, a
batch that is not delivered is not reported, and the end waits for its thread for up to 30 s.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

EXPORT_CLOSE_TIMEOUT_S = 1.8
"""Time for which the exit of the server waits until the last spans are sent: with all else, less than two seconds."""
_FLUSH_SHARE = 0.75
"""Part of that time after which a request that is being sent is given up."""
LOG_INTERVAL_S = 60.0
"""Time between two lines about spans that were dropped."""
LIBRARY_LOGGER = "opentelemetry"
"""Logs a line for each batch that is not delivered; this module logs one a minute."""
_log = structlog.get_logger(__name__)


class Exporter(Protocol):
    """Sends spans to a collector."""

    def export(self, spans: Sequence[Any], /) -> object:
        """Sends a batch, which may take seconds. Returns a value with the name `SUCCESS` if it was delivered."""

    def shutdown(self) -> None:
        """Ends a retry that waits."""


class SpanQueue:
    """Holds up to `max_spans` spans for a thread that sends them in batches. `on_dropped` gets the number of lost ones.

    A batch is sent when it is full, or `delay_s` after the one before.
    """

    def __init__(
        self,
        exporter: Exporter,
        *,
        max_spans: int,
        max_batch: int,
        delay_s: float,
        on_dropped: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter, self._on_dropped, self._clock = exporter, on_dropped, clock
        self._max_spans, self._max_batch, self._delay_s = max_spans, min(max_batch, max_spans), delay_s
        self._spans: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_closing, self._num_sending = False, 0
        self._num_unreported, self._next_report = 0, 0.0
        logging.getLogger(LIBRARY_LOGGER).setLevel(logging.CRITICAL + 1)
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def add(self, spans: Sequence[Any]) -> None:
        """Adds spans, or as many of them as there are places. Never waits for the collector."""
        with self._changed:
            num_free = 0 if self._is_closing else self._max_spans - len(self._spans)
            self._spans.extend(spans[: max(num_free, 0)])
            if len(self._spans) >= self._max_batch:
                self._changed.notify()
        self._drop(len(spans) - max(num_free, 0), "the collector is too slow, or does not answer")

    def close(self, timeout_s: float = EXPORT_CLOSE_TIMEOUT_S) -> None:
        """Sends what is left, within a time. The rest is dropped."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s * _FLUSH_SHARE)
        if self._thread.is_alive():
            self._exporter.shutdown()
            self._thread.join(timeout_s * (1 - _FLUSH_SHARE))
        with self._changed:
            num_left = len(self._spans) + (self._num_sending if self._thread.is_alive() else 0)
            self._spans.clear()
        self._drop(num_left, "the server has stopped before the collector took them", at_exit=True)

    def _run(self) -> None:
        while batch := self._take_batch():
            try:
                is_delivered = getattr(self._exporter.export(batch), "name", "") == "SUCCESS"
            except Exception as error:  # noqa: BLE001  # the thread must continue, whatever the library raises
                is_delivered = False
                _log.debug("the exporter of spans failed", fault=type(error).__name__)
            with self._changed:
                self._num_sending = 0
            if not is_delivered:
                self._drop(len(batch), "the collector did not take them")

    def _take_batch(self) -> list[Any]:
        """Returns the next batch; an empty one at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or len(self._spans) >= self._max_batch, self._delay_s)
            while not self._spans and not self._is_closing:
                self._changed.wait(self._delay_s)
            batch = [self._spans.popleft() for _ in range(min(len(self._spans), self._max_batch))]
            self._num_sending = len(batch)
            return batch

    def _drop(self, count: int, reason: str, *, at_exit: bool = False) -> None:
        """Counts spans that are lost, and logs them: one line a minute, and one at the exit."""
        if count <= 0:
            return
        self._on_dropped(count)
        with self._changed:
            self._num_unreported += count
            if not at_exit and self._clock() < self._next_report:
                return
            self._next_report = self._clock() + LOG_INTERVAL_S
            num_dropped, self._num_unreported = self._num_unreported, 0
        _log.warning("spans were dropped", count=num_dropped, reason=reason)
