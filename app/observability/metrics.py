"""Prometheus metrics, named after those of vLLM with the prefix `antiphon:`.

Engine counters are read at scrape time; a turn is recorded once, when it ends, so that no token waits for a counter.
Label values are model names, finish reasons, methods, status codes and the operator's labels of tool servers: never a
client, a key or a piece of content.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily as CounterFamily
from prometheus_client.core import GaugeMetricFamily as GaugeFamily
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from antiphon.app.base.access_record import AccessRecord
from antiphon.app.base.engine_wrapper import unwrap_engine
from antiphon.app.base.turn_stats import TurnStats
from antiphon.app.model_registry import NamedModel
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.models.status import shown_load_state
from antiphon.app.observability.media_metrics import MediaMetrics
from antiphon.app.tools.measured_calls import ToolCallStats
from antiphon.engine.remote.engine import RemoteEngine

CONTENT_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")
"""Media type without its charset, which litestar adds."""
_TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TURN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOOL_CALL_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_COUNT_BUCKETS = tuple(2**power for power in range(0, 18, 2))


class MetricsCollector:
    """The metrics of one server: counters and histograms of turns and requests, and those of the engines."""

    def __init__(self, models: Iterable[NamedModel]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(tuple(models)))
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
        self._tool_calls = Counter(
            "antiphon:tool_calls",
            "Calls of MCP tools by the operator's label of their server (`client` for those of clients) and their end.",
            ["server_label", "result"],
            registry=self.registry,
        )
        self._tool_call_time = Histogram(
            "antiphon:tool_call_seconds",
            "Duration of calls of MCP tools.",
            ["server_label"],
            registry=self.registry,
            buckets=_TOOL_CALL_BUCKETS_S,
        )
        self.media = MediaMetrics(self.registry)
        self._http_requests = cache(http_requests.labels)  # looking up a label set takes longer than counting

    def on_turn_end(self, stats: TurnStats) -> None:
        """Records a finished turn."""
        model, times = stats.model, stats.times
        self._finished.labels(model, stats.status).inc()
        self._latency.labels(model).observe(times.seconds_until(times.ended) or 0.0)
        self._prompt_tokens.labels(model).observe(stats.input_tokens)
        self._generated_tokens.labels(model).observe(stats.output_tokens)
        first_s, last_s = times.seconds_until(times.first_token), times.seconds_until(times.last_token)
        if first_s is not None and last_s is not None:
            self._time_to_first_token.labels(model).observe(first_s)
            if stats.output_tokens > 1:
                self._time_per_output_token.labels(model).observe((last_s - first_s) / (stats.output_tokens - 1))

    def on_tool_call(self, stats: ToolCallStats) -> None:
        """Records a call of a tool that has ended."""
        self._tool_calls.labels(stats.label, stats.result).inc()
        self._tool_call_time.labels(stats.label).observe(stats.elapsed_s)

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


_Family = tuple[type[GaugeFamily | CounterFamily], str, str, str]
"""Kind, name and help text of a metric, and the attribute that it shows."""
_ENGINE_FAMILIES: tuple[_Family, ...] = (
    (GaugeFamily, "num_requests_running", "Requests that the engine is processing.", "running"),
    (GaugeFamily, "num_requests_waiting", "Requests queued in the engine.", "waiting"),
    (GaugeFamily, "kv_cache_tokens", "Tokens in the KV caches of running requests.", "running_cache_tokens"),
    (GaugeFamily, "prefix_cache_tokens", "Tokens of finished requests kept in the prefix cache.", "idle_cache_tokens"),
    (CounterFamily, "prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
    (CounterFamily, "generation_tokens", "Tokens generated.", "generated_tokens"),
    (CounterFamily, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prompt_tokens"),
    (CounterFamily, "prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
    (CounterFamily, "prefix_disk_hits", "Tokens whose keys and values were read from disk.", "disk_hit_tokens"),
    (CounterFamily, "prefix_disk_pages_written", "Pages of prefixes written to disk.", "disk_pages_written"),
    (CounterFamily, "prefix_disk_pages_damaged", "Damaged pages of prefixes on disk.", "disk_pages_damaged"),
    (GaugeFamily, "feature_cache_bytes", "Bytes of the features of images that are kept.", "feature_cache_bytes"),
    (CounterFamily, "feature_cache_hits", "Images whose features were in the cache.", "feature_cache_hits"),
    (CounterFamily, "feature_cache_misses", "Images that the engine has encoded.", "encoded_images"),
    (CounterFamily, "spec_decode_num_draft_tokens", "Tokens that were drafted.", "drafted_tokens"),
    (CounterFamily, "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", "accepted_tokens"),
    (CounterFamily, "engine_steps", "Forward passes of the model.", "steps"),
    (CounterFamily, "engine_request_failures", "Requests that failed in the engine.", "failed_jobs"),
)
_REPLICA_FAMILIES: tuple[_Family, ...] = (
    (GaugeFamily, "engine_replica_running", "Requests of this server that have a token.", "running"),
    (GaugeFamily, "engine_replica_waiting", "Requests of this server that wait for their first token.", "waiting"),
    (CounterFamily, "engine_replica_attempts", "Requests sent to this server, retries included.", "attempts"),
    (CounterFamily, "engine_replica_failures", "Requests that ended with an error of this server.", "failures"),
    (
        *(CounterFamily, "engine_replica_grammar_departures"),
        *("Responses that left the grammar given to this server.", "grammar_departures"),
    ),
)
_LOAD_FAMILIES: tuple[_Family, ...] = (
    (GaugeFamily, "model_memory_bytes", "Memory reserved for the model.", "reserved_bytes"),
    (CounterFamily, "model_loads", "Times that the model was loaded.", "num_loads"),
    (CounterFamily, "model_unloads", "Times that the model was unloaded.", "num_unloads"),
)


class _EngineCollector(Collector):
    """Reads at scrape time what the engines count, and which models are loaded."""

    def __init__(self, models: tuple[NamedModel, ...]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per figure, with one sample per model or replica."""
        yield GaugeFamily("antiphon:event_loop_tasks", "Tasks on the event loop.", len(asyncio.all_tasks()))
        engines = [((model.names[0],), model.engine) for model in self._models]
        stats = [(labels, engine.stats()) for labels, engine in engines]
        yield from _build_families(_ENGINE_FAMILIES, ["model_name"], stats)
        yield from self._collect_replicas()
        loaded = GaugeFamily("antiphon:model_loaded", "1 if the model is loaded.", labels=["model_name"])
        for labels, engine in engines:
            loaded.add_metric(labels, float(shown_load_state(engine) == "loaded"))
        yield loaded
        on_demand = [(labels, engine) for labels, engine in engines if isinstance(engine, OnDemandEngine)]
        yield from _build_families(_LOAD_FAMILIES, ["model_name"], on_demand)

    def _collect_replicas(self) -> Iterator[Metric]:
        """Yields the figures of the servers behind remote engines; nothing if there are none."""
        engines = [(model.names[0], unwrap_engine(model.engine)) for model in self._models]
        replicas = [
            ((name, replica.name), replica)
            for name, engine in engines
            if isinstance(engine, RemoteEngine)
            for replica in engine.replicas
        ]
        if not replicas:
            return
        names = ["model_name", "replica"]
        up = GaugeFamily("antiphon:engine_replica_up", "1 if this server can take requests.", labels=names)
        for labels, replica in replicas:
            up.add_metric(labels, float(replica.profile is not None))
        yield up
        yield from _build_families(_REPLICA_FAMILIES, names, [(labels, replica.stats) for labels, replica in replicas])


def _build_families(
    families: Iterable[_Family], names: Sequence[str], sources: Sequence[tuple[Sequence[str], object]]
) -> Iterator[Metric]:
    """Yields the families, with a sample of each source. `names` are those of the labels, whose values precede it."""
    for kind, name, help_text, attribute in families:
        family = kind(f"antiphon:{name}", help_text, labels=names)
        for labels, source in sources:
            family.add_metric(labels, getattr(source, attribute))
        yield family
