"""Metrics of the store of responses."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.app.store.store import ResponseStore

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


def watch_store(registry: CollectorRegistry, store: ResponseStore, file: Path | None) -> None:
    """Shows a store from now on. `file` is that of a store on this machine's disk."""
    commits = Histogram(
        "antiphon:store_commit_seconds",
        "Duration of transactions of the store's writer.",
        registry=registry,
        buckets=_BUCKETS_S,
    )
    store.watch_commits(commits.observe)
    registry.register(_StoreCollector(store, file))


class _StoreCollector(Collector):
    """Reads at scrape time what the store counts. No database is asked."""

    def __init__(self, store: ResponseStore, file: Path | None) -> None:
        self._store, self._file = store, file

    def collect(self) -> Iterator[Metric]:
        """Yields one gauge a figure."""
        store = self._store
        is_available = float(store.unavailable_reason() is None)
        yield GaugeMetricFamily("antiphon:store_available", "1 if the store can be written to.", is_available)
        yield GaugeMetricFamily(
            "antiphon:store_waiting_steps", "Steps and changes that wait for the store's writer.", store.num_waiting
        )
        yield GaugeMetricFamily(
            "antiphon:store_bytes", "Size of the store's database, measured by its writer.", store.num_bytes
        )
        free = _read_free_bytes(self._file)
        if free is not None:
            yield GaugeMetricFamily(
                "antiphon:store_free_bytes", "Free space on the disk of the store's file.", float(free)
            )


def _read_free_bytes(file: Path | None) -> int | None:
    """Returns the free space where a file is; None if there is none or it is unknown."""
    with contextlib.suppress(OSError):
        return None if file is None else shutil.disk_usage(file.parent).free
    return None
