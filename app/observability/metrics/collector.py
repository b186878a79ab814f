"""Prometheus metrics, named after those of vLLM with the prefix `antiphon:`.

Engine counters are read at scrape time; a turn is recorded once, when it ends, so that no token waits for a counter.
Label values are model names, finish reasons, codes of errors, methods, status codes and the operator's labels of tool
servers: never a client, a key or a piece of content.
"""

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from antiphon.app.observability.metrics.engines import EngineCollector
from antiphon.app.observability.metrics.exposition import render_registry
from antiphon.app.observability.metrics.histograms import Exemplar
from antiphon.app.observability.metrics.media import MediaMetrics
from antiphon.app.observability.metrics.process import watch_process
from antiphon.app.observability.metrics.requests import RequestMetrics
from antiphon.app.observability.metrics.store import watch_store
from antiphon.app.observability.metrics.tools import ToolMetrics
from antiphon.app.observability.metrics.turns import TurnMetrics
from antiphon.app.registry.model_registry import NamedModel
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.measured_calls import ToolCallStats
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.tracing.turn_trace import TurnTrace
from antiphon.app.turn_types.turn_stats import TurnStats


class MetricsCollector:
    """The metrics of one server: of turns, requests, engines, tools, media, the store and the process."""

    def __init__(
        self, models: Iterable[NamedModel], store: ResponseStore | None = None, store_file: Path | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(tuple(models)))
        self.turns = TurnMetrics(self.registry)
        self.requests = RequestMetrics(self.registry)
        self.tools = ToolMetrics(self.registry)
        self.media = MediaMetrics(self.registry)
        if store is not None:
            watch_store(self.registry, store, store_file)
        self._spans_dropped = Counter(
            "antiphon:spans_dropped", "Spans that no collector has received.", registry=self.registry
        )
        watch_process(self.registry)

    def on_turn_end(self, stats: TurnStats) -> None:
        """Records a finished turn."""
        self.turns.record(stats, _create_exemplar(stats.trace))

    def on_tool_call(self, stats: ToolCallStats) -> None:
        """Records a call of a tool that has ended."""
        self.tools.record(stats)

    def on_spans_dropped(self, count: int) -> None:
        """Counts spans that are lost. It may be called from any thread."""
        self._spans_dropped.inc(count)

    def count_request(self, record: AccessRecord) -> None:
        """Counts an answered HTTP request."""
        self.requests.count(record)

    def render_page(self, accept: str = "") -> tuple[bytes, str]:
        """Returns all metrics, and their media type: as OpenMetrics if the header `accept` names it."""
        return render_registry(self.registry, accept)


def _create_exemplar(trace: TurnTrace | None) -> Exemplar | None:
    """Returns the ids of a turn whose spans are exported."""
    if trace is None or not trace.ids.is_sampled:
        return None
    return {"trace_id": trace.ids.trace_hex, "span_id": trace.ids.span_hex}
