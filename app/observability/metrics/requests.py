"""Metrics of HTTP requests, and of the connections that are open."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from antiphon.app.turn_types.access_record import AccessRecord

COUNTED_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
"""Other methods are counted as `other`: a client can invent any number of them, and each label set takes memory."""
MAX_REASONS = 64
"""Number of codes that have a label of their own; a faulty engine behind this server may invent others."""
CLIENT_GONE, SERVER_BUG = 499, 500


class RequestMetrics:
    """Counts answered requests and open streams. The labels hold nothing of a client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "antiphon:http_requests", "HTTP responses by method and status.", ["method", "status"], registry=registry
        )
        self._requests = cache(requests.labels)  # looking up a label set takes longer than counting
        self._rejected = Counter(
            "antiphon:requests_rejected",
            "Requests that were refused, by the code of the error.",
            ["reason"],
            registry=registry,
        )
        self._reasons: set[str] = set()
        self._open_streams = Gauge(
            "antiphon:open_streams",
            "Event streams that are being sent, by their API, and connections by WebSocket (`websocket`).",
            ["api"],
            registry=registry,
        )

    def count(self, record: AccessRecord) -> None:
        """Counts an answered HTTP request."""
        method = record.method if record.method in COUNTED_METHODS else "other"
        self._requests(method, str(record.status)).inc()
        if record.status >= 400 and record.status not in (CLIENT_GONE, SERVER_BUG):
            self.count_rejection(record.error_code or f"status_{record.status}")

    def count_rejection(self, reason: str) -> None:
        """Counts a request that was refused with this code."""
        if reason not in self._reasons:
            if len(self._reasons) >= MAX_REASONS:
                reason = "other"
            self._reasons.add(reason)
        self._rejected.labels(reason).inc()

    @contextmanager
    def count_stream(self, api: str) -> Iterator[None]:
        """Counts an open stream during the block."""
        gauge = self._open_streams.labels(api)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()
