"""Metrics of the engines: what they count, read at scrape time."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client.core import CounterMetricFamily as CounterFamily
from prometheus_client.core import GaugeMetricFamily as GaugeFamily
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.models.status import loaded_info, shown_load_state
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import NamedModel
from antiphon.engine.fallbacks import list_kinds
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.resident_memory import read_resident_bytes
from antiphon.engine.remote.engine import RemoteEngine

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
    (GaugeFamily, "gpu_memory_bytes", "Memory of GPUs that the engine holds.", "gpu_memory_bytes"),
    (CounterFamily, "engine_request_failures", "Requests that failed in the engine.", "failed_jobs"),
)
_WORKER_FAMILIES: tuple[_Family, ...] = (
    (CounterFamily, "engine_restarts", "Times that the engine's process was started again.", "num_restarts"),
)
_HAS_PROC = Path("/proc/self").exists()
"""Elsewhere, asking for the memory of a process takes milliseconds, in which the event loop would wait."""
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


class EngineCollector(Collector):
    """Reads at scrape time what the engines count, and which models are loaded."""

    def __init__(self, models: tuple[NamedModel, ...]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per figure, with one sample per model or replica."""
        engines = [((model.names[0],), model.engine) for model in self._models]
        stats = [(labels, engine.stats()) for labels, engine in engines]
        yield from _build_families(_ENGINE_FAMILIES, ["model_name"], stats)
        yield from self._collect_workers()
        yield from self._collect_replicas()
        loaded = GaugeFamily("antiphon:model_loaded", "1 if the model is loaded.", labels=["model_name"])
        for labels, engine in engines:
            loaded.add_metric(labels, float(shown_load_state(engine) == "loaded"))
        yield loaded
        yield self._collect_fallbacks()
        on_demand = [(labels, engine) for labels, engine in engines if isinstance(engine, OnDemandEngine)]
        yield from _build_families(_LOAD_FAMILIES, ["model_name"], on_demand)

    def _collect_fallbacks(self) -> Metric:
        """Returns a sample for each kind of fallback of a loaded model."""
        family = GaugeFamily(
            "antiphon:engine_fallback",
            "1 for each kind of fallback: what the model does more slowly, or not at all "
            "(docs/reference/fallbacks.md).",
            labels=["model_name", "kind"],
        )
        for model in self._models:
            info = loaded_info(model)
            for kind in list_kinds(info.fallbacks) if info is not None else ():
                family.add_metric([model.names[0], kind], 1.0)
        return family

    def _collect_workers(self) -> Iterator[Metric]:
        """Yields the figures of worker processes; nothing if there are none."""
        engines = [((model.names[0],), unwrap_engine(model.engine)) for model in self._models]
        workers = [(labels, engine) for labels, engine in engines if isinstance(engine, ProcessEngine)]
        if not workers:
            return
        yield from _build_families(_WORKER_FAMILIES, ["model_name"], workers)
        resident = GaugeFamily(
            "antiphon:engine_resident_bytes", "Resident memory of the engine's process.", labels=["model_name"]
        )
        for labels, engine in workers if _HAS_PROC else ():
            if engine.pid is not None and (num_bytes := read_resident_bytes(engine.pid)) is not None:
                resident.add_metric(labels, num_bytes)
        yield resident

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
