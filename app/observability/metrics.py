"""Numbers for Prometheus, under the names that dashboards for model servers know, with `antiphon:` before them.

What an engine counts is asked of it when somebody looks; what a turn takes is noted once, when it is over, so that no
token waits for a counter. Labels name models, endings and status codes: never a client, a key or a word that was said.
"""

import asyncio
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from antiphon.app.model_registry import ServedModel
from antiphon.app.observability.access_log import AccessRecord

CONTENT_TYPE = CONTENT_TYPE_LATEST
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TURN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_BUCKETS = tuple(2**power for power in range(0, 18, 2))


class TurnStats(Struct, frozen=True, kw_only=True):
    """What a turn took. Times are seconds; `first` is None where no token came."""

    finish_reason: str
    """`completed`, or `incomplete`, `failed`, `cancelled`, `refused`."""
    elapsed_s: float
    time_to_first_token_s: float | None
    prompt_tokens: int
    generated_tokens: int


class TurnObserver(Protocol):
    """Hears what turns took."""

    def on_turn_end(self, model: str, taken: TurnStats) -> None:
        """A turn is over."""


class MetricsCollector:
    """All that is counted of one server."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineStatsCollector(tuple(models)))
        name, registry = ["model_name"], self.registry
        self._ended = Counter(
            "antiphon:request_success", "Turns that are over, by how they ended.", [*name, "finished_reason"],
            registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "antiphon:time_to_first_token_seconds", "From the request to its first token.", name,
            registry=registry, buckets=_WAIT_BUCKETS_S,
        )  # fmt: skip
        self._each = Histogram(
            "antiphon:time_per_output_token_seconds", "Mean pause between a turn's tokens.", name,
            registry=registry, buckets=_GAP_BUCKETS_S,
        )  # fmt: skip
        self._whole = Histogram(
            "antiphon:e2e_request_latency_seconds", "From the request to its last token.", name,
            registry=registry, buckets=_TURN_BUCKETS_S,
        )  # fmt: skip
        self._read = Histogram(
            "antiphon:request_prompt_tokens", "Tokens of a prompt.", name, registry=registry, buckets=_TOKEN_BUCKETS
        )
        self._spoken = Histogram(
            "antiphon:request_generation_tokens",
            "Tokens of an answer.",
            name,
            registry=registry,
            buckets=_TOKEN_BUCKETS,
        )
        http = Counter("antiphon:http_requests", "Requests answered.", ["method", "status"], registry=registry)
        self._http = cache(http.labels)  # to look one up takes longer than to count

    def on_turn_end(self, model: str, taken: TurnStats) -> None:
        """A turn is over."""
        self._ended.labels(model, taken.finish_reason).inc()
        self._whole.labels(model).observe(taken.elapsed_s)
        self._read.labels(model).observe(taken.prompt_tokens)
        self._spoken.labels(model).observe(taken.generated_tokens)
        if taken.time_to_first_token_s is not None:
            self._first.labels(model).observe(taken.time_to_first_token_s)
            if taken.generated_tokens > 1:
                self._each.labels(model).observe(
                    (taken.elapsed_s - taken.time_to_first_token_s) / (taken.generated_tokens - 1)
                )

    def count_request(self, line: AccessRecord) -> None:
        """A request was answered."""
        self._http(line.method if line.method in COUNTED_METHODS else "other", str(line.status)).inc()

    def render_page(self) -> bytes:
        """Everything as text, as Prometheus reads it."""
        return generate_latest(self.registry)


COUNTED_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
"""Anybody may invent a method; a label for each would be a way to fill our memory."""


class _EngineStatsCollector(Collector):
    """What the engines count themselves, asked when somebody looks."""

    def __init__(self, models: tuple[ServedModel, ...]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of an engine before somebody looks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One family for each number, one sample for each model."""
        gauges = {
            "num_requests_running": ("Turns that the engine works on.", "running"),
            "num_requests_waiting": ("Turns that wait for the engine.", "waiting"),
            "kv_cache_tokens": ("Tokens held for turns that run.", "running_cache_tokens"),
            "prefix_cache_tokens": ("Tokens of ended turns, held for those that begin alike.", "idle_cache_tokens"),
        }
        counters = {
            "prompt_tokens": ("Tokens of prompts.", "prompt_tokens"),
            "generation_tokens": ("Tokens generated.", "generated_tokens"),
            "prefix_cache_queries": ("Prompt tokens that were looked for in the cache.", "prompt_tokens"),
            "prefix_cache_hits": ("Prompt tokens that were found there.", "prefix_hit_tokens"),
            "engine_steps": ("Passes through the model.", "steps"),
            "engine_faults": ("Turns that the engine failed.", "failed_jobs"),
        }
        yield GaugeMetricFamily("antiphon:tasks", "Tasks of the event loop.", len(asyncio.all_tasks()))
        for name, (says, of) in gauges.items():
            yield self._add_samples(GaugeMetricFamily(f"antiphon:{name}", says, labels=["model_name"]), of)
        for name, (says, of) in counters.items():
            yield self._add_samples(CounterMetricFamily(f"antiphon:{name}", says, labels=["model_name"]), of)

    def _add_samples(self, family: GaugeMetricFamily | CounterMetricFamily, of: str) -> Metric:
        for model in self._models:
            family.add_metric([model.names[0]], getattr(model.engine.stats(), of))
        return family
