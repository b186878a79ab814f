"""Metrics of the tools that the server calls."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from antiphon.app.tools.measured_calls import ToolCallStats

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ToolMetrics:
    """Counts calls of tools. The labels are the operator's: never a client's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "antiphon:tool_calls",
            "Calls of MCP tools by the operator's label of their server (`client` for those of clients) and their end.",
            ["server_label", "result"],
            registry=registry,
        )
        self._call_time = Histogram(
            "antiphon:tool_call_seconds",
            "Duration of calls of MCP tools.",
            ["server_label"],
            registry=registry,
            buckets=_BUCKETS_S,
        )

    def record(self, stats: ToolCallStats) -> None:
        """Records a call of a tool that has ended."""
        self._calls.labels(stats.label, stats.result).inc()
        self._call_time.labels(stats.label).observe(stats.elapsed_s)
