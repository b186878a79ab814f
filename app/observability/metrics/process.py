"""Metrics of the server's process, and of its build."""

import asyncio
import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


def watch_process(registry: CollectorRegistry) -> None:
    """Shows the process from now on: Prometheus' own `process_*` on Linux, tasks, and the build."""
    ProcessCollector(registry=registry)
    registry.register(_ProcessCollector())


class _ProcessCollector(Collector):
    def __init__(self) -> None:
        labels = {"version": version("antiphon"), "python_version": platform.python_version()}
        self._build = GaugeMetricFamily(
            "antiphon:build_info", "1, with the versions of the server and of Python.", labels=list(labels)
        )
        self._build.add_metric(list(labels.values()), 1.0)

    def collect(self) -> Iterator[Metric]:
        """Yields two gauges."""
        yield self._build
        yield GaugeMetricFamily("antiphon:event_loop_tasks", "Tasks on the event loop.", len(asyncio.all_tasks()))
