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

from antiphon.app.http.middleware import Line
from antiphon.app.model_registry import ServedModel

CONTENT_TYPE = CONTENT_TYPE_LATEST
_PAUSES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TURNS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SIZES = tuple(2**power for power in range(0, 18, 2))


class Taken(Struct, frozen=True, kw_only=True):
    """What a turn took. Times are seconds; `first` is None where no token came."""

    ending: str
    """`completed`, or `incomplete`, `failed`, `cancelled`, `refused`."""
    whole: float
    first: float | None
    prompt: int
    generated: int


class Watch(Protocol):
    """Hears what turns took."""

    def turn(self, model: str, taken: Taken) -> None:
        """A turn is over."""


class Metrics:
    """All that is counted of one server."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(tuple(models)))
        name, registry = ["model_name"], self.registry
        self._ended = Counter(
            "antiphon:request_success", "Turns that are over, by how they ended.", [*name, "finished_reason"],
            registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "antiphon:time_to_first_token_seconds", "From the request to its first token.", name,
            registry=registry, buckets=_WAITS,
        )  # fmt: skip
        self._each = Histogram(
            "antiphon:time_per_output_token_seconds", "Mean pause between a turn's tokens.", name,
            registry=registry, buckets=_PAUSES,
        )  # fmt: skip
        self._whole = Histogram(
            "antiphon:e2e_request_latency_seconds", "From the request to its last token.", name,
            registry=registry, buckets=_TURNS,
        )  # fmt: skip
        self._read = Histogram(
            "antiphon:request_prompt_tokens", "Tokens of a prompt.", name, registry=registry, buckets=_SIZES
        )
        self._spoken = Histogram(
            "antiphon:request_generation_tokens", "Tokens of an answer.", name, registry=registry, buckets=_SIZES
        )
        http = Counter("antiphon:http_requests", "Requests answered.", ["method", "status"], registry=registry)
        self._http = cache(http.labels)  # to look one up takes longer than to count

    def turn(self, model: str, taken: Taken) -> None:
        """A turn is over."""
        self._ended.labels(model, taken.ending).inc()
        self._whole.labels(model).observe(taken.whole)
        self._read.labels(model).observe(taken.prompt)
        self._spoken.labels(model).observe(taken.generated)
        if taken.first is not None:
            self._first.labels(model).observe(taken.first)
            if taken.generated > 1:
                self._each.labels(model).observe((taken.whole - taken.first) / (taken.generated - 1))

    def http(self, line: Line) -> None:
        """A request was answered."""
        self._http(line.method if line.method in METHODS else "other", str(line.status)).inc()

    def page(self) -> bytes:
        """Everything as text, as Prometheus reads it."""
        return generate_latest(self.registry)


METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
"""Anybody may invent a method; a label for each would be a way to fill our memory."""


class _Engines(Collector):
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
            yield self._filled(GaugeMetricFamily(f"antiphon:{name}", says, labels=["model_name"]), of)
        for name, (says, of) in counters.items():
            yield self._filled(CounterMetricFamily(f"antiphon:{name}", says, labels=["model_name"]), of)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, of: str) -> Metric:
        for model in self._models:
            family.add_metric([model.names[0]], getattr(model.engine.stats(), of))
        return family
