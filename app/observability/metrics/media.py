"""Metrics of the pictures and PDFs that requests bring."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.app.media.media_event import MediaEvent
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.pdf_reader import PdfReader

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class MediaMetrics:
    """Counts pictures and PDFs by what became of them. The labels hold nothing of a client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._media = Counter(
            "antiphon:media",
            "Pictures and PDFs that requests needed: `prepared`, `known`, `cancelled`, or the code of a fault.",
            ["kind", "result"],
            registry=registry,
        )
        self._prepare_time = Histogram(
            "antiphon:media_prepare_seconds",
            "Time to read a picture or PDF, the wait for a process included.",
            ["kind"],
            registry=registry,
            buckets=_BUCKETS_S,
        )

    def observe(self, event: MediaEvent) -> None:
        """Records a picture or PDF that a request needed."""
        self._media.labels(event.kind, event.result).inc()
        if event.result == "prepared":
            self._prepare_time.labels(event.kind).observe(event.elapsed_s)

    def watch(self, readers: Iterable[MediaPreparer | PdfReader]) -> None:
        """Shows from now on how often the processes of these readers have ended."""
        self._registry.register(_RestartCollector(tuple(readers)))


class _RestartCollector(Collector):
    """Reads at scrape time how often processes that read pictures and PDFs have ended."""

    def __init__(self, readers: tuple[MediaPreparer | PdfReader, ...]) -> None:
        self._readers = readers

    def collect(self) -> Iterator[Metric]:
        """Yields one counter."""
        count = sum(reader.num_restarts for reader in self._readers)
        yield CounterMetricFamily(
            "antiphon:media_worker_restarts", "Processes that ended while they read a picture or PDF.", count
        )
