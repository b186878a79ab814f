"""Prometheus metrics, named after those of vLLM with the prefix `antiphon:`.

Engine counters are read at scrape time; a turn is recorded once, when it ends, so that no token waits for a counter.
Label values are model names, finish reasons, methods and status codes: never a client, a key or a piece of content.
"""

import asyncio
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from antiphon.app.base.access_record import AccessRecord
from antiphon.app.model_registry import EncoderModel, ServedModel
from antiphon.app.observability.load_metrics import LoadStateCollector
from antiphon.app.observability.replica_metrics import ReplicaStatsCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")
"""Media type without its charset, which litestar adds."""
_TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TURN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_COUNT_BUCKETS = tuple(2**power for power in range(0, 18, 2))


class TurnStats(Struct, frozen=True, kw_only=True):
    """Duration and token counts of a finished turn. `time_to_first_token_s` is None if no token was generated."""

    finish_reason: str
    """`completed`, `incomplete`, `failed`, `cancelled` or `refused`."""
    elapsed_s: float
    time_to_first_token_s: float | None
    prompt_tokens: int
    generated_tokens: int


class MetricsCollector:
    """The metrics of one server: counters and histograms of turns and requests, and those of the engines."""

    def __init__(self, models: Iterable[ServedModel | EncoderModel]) -> None:
        self.registry = CollectorRegistry()
        served = tuple(models)
        self.registry.register(_EngineStatsCollector(served))
        self.registry.register(ReplicaStatsCollector(served))
        self.registry.register(LoadStateCollector(served))
        self._finished = Counter(
            "antiphon:requests_finished",
            "Finished turns by finish reason, failed and cancelled ones included.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._time_to_first_token = self._add_histogram(
            "time_to_first_token_seconds", "Time from the request to its first token.", _FIRST_TOKEN_BUCKETS_S
        )
        self._time_per_output_token = self._add_histogram(
            "time_per_output_token_seconds", "Mean time between the output tokens of a turn.", _TOKEN_GAP_BUCKETS_S
        )
        self._latency = self._add_histogram(
            "e2e_request_latency_seconds", "Time from the request to its last token.", _TURN_BUCKETS_S
        )
        self._prompt_tokens = self._add_histogram(
            "request_prompt_tokens", "Prompt tokens per turn.", _TOKEN_COUNT_BUCKETS
        )
        self._generated_tokens = self._add_histogram(
            "request_generation_tokens", "Generated tokens per turn.", _TOKEN_COUNT_BUCKETS
        )
        http_requests = Counter(
            "antiphon:http_requests", "HTTP responses by method and status.", ["method", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._http_requests = cache(http_requests.labels)  # looking up a label set takes longer than counting

    def on_turn_end(self, model: str, stats: TurnStats) -> None:
        """Records a finished turn."""
        self._finished.labels(model, stats.finish_reason).inc()
        self._latency.labels(model).observe(stats.elapsed_s)
        self._prompt_tokens.labels(model).observe(stats.prompt_tokens)
        self._generated_tokens.labels(model).observe(stats.generated_tokens)
        first_s = stats.time_to_first_token_s
        if first_s is not None:
            self._time_to_first_token.labels(model).observe(first_s)
            if stats.generated_tokens > 1:
                gaps = stats.generated_tokens - 1
                self._time_per_output_token.labels(model).observe((stats.elapsed_s - first_s) / gaps)

    def count_request(self, record: AccessRecord) -> None:
        """Counts an answered HTTP request."""
        method = record.method if record.method in COUNTED_METHODS else "other"
        self._http_requests(method, str(record.status)).inc()

    def render_page(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _add_histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"antiphon:{name}", help_text, ["model_name"], registry=self.registry, buckets=buckets)


COUNTED_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
"""Other methods are counted as `other`: a client can invent any number of them, and each label set takes memory."""


class _EngineStatsCollector(Collector):
    """Reads the engines' own counters at scrape time."""

    def __init__(self, models: tuple[ServedModel | EncoderModel, ...]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        """Returns nothing, so that registration reads no engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per counter, with one sample per model."""
        gauges = {
            "num_requests_running": ("Requests that the engine is processing.", "running"),
            "num_requests_waiting": ("Requests queued in the engine.", "waiting"),
            "kv_cache_tokens": ("Tokens in the KV caches of running requests.", "running_cache_tokens"),
            "prefix_cache_tokens": ("Tokens of finished requests kept in the prefix cache.", "idle_cache_tokens"),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens processed.", "prompt_tokens"),
            "generation_tokens": ("Tokens generated.", "generated_tokens"),
            "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prompt_tokens"),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
            "engine_steps": ("Forward passes of the model.", "steps"),
            "engine_request_failures": ("Requests that failed in the engine.", "failed_jobs"),
        }
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("antiphon:event_loop_tasks", "Tasks on the event loop.", tasks)
        for name, (help_text, field) in gauges.items():
            yield self._add_samples(GaugeMetricFamily(f"antiphon:{name}", help_text, labels=["model_name"]), field)
        for name, (help_text, field) in counters.items():
            yield self._add_samples(CounterMetricFamily(f"antiphon:{name}", help_text, labels=["model_name"]), field)

    def _add_samples(self, family: GaugeMetricFamily | CounterMetricFamily, field: str) -> Metric:
        for model in self._models:
            family.add_metric([model.names[0]], getattr(model.engine.stats(), field))
        return family
