"""Metrics of models that are loaded and unloaded while the server runs."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.app.model_registry import EncoderModel, ServedModel
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.models.status import read_residence

LABELS = ["model_name"]


class LoadStateCollector(Collector):
    """Reads at scrape time which models are loaded, how often each was loaded, and the memory reserved for it."""

    def __init__(self, models: Sequence[ServedModel | EncoderModel]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        """Returns nothing, so that registration reads no engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per figure, with one sample per model."""
        loaded = GaugeMetricFamily("antiphon:model_loaded", "1 if the model is loaded.", labels=LABELS)
        memory = GaugeMetricFamily("antiphon:model_memory_bytes", "Memory reserved for the model.", labels=LABELS)
        loads = CounterMetricFamily("antiphon:model_loads", "Times that the model was loaded.", labels=LABELS)
        unloads = CounterMetricFamily("antiphon:model_unloads", "Times that the model was unloaded.", labels=LABELS)
        for model in self._models:
            name, engine = [model.names[0]], model.engine
            loaded.add_metric(name, float(read_residence(engine) == "loaded"))
            if isinstance(engine, OnDemandEngine):
                memory.add_metric(name, engine.reserved_bytes)
                loads.add_metric(name, engine.num_loads)
                unloads.add_metric(name, engine.num_unloads)
        yield from (loaded, memory, loads, unloads)
