"""Metrics of the servers behind a remote engine."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.app.base.engine_wrapper import unwrap_engine
from antiphon.app.model_registry import EncoderModel, ServedModel
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.replica import Replica

LABELS = ["model_name", "replica"]
GAUGES = {
    "engine_replica_running": ("Requests of this server that have a token.", "running"),
    "engine_replica_waiting": ("Requests of this server that wait for their first token.", "waiting"),
}
COUNTERS = {
    "engine_replica_attempts": ("Requests sent to this server, retries included.", "attempts"),
    "engine_replica_failures": ("Requests that ended with an error of this server.", "failures"),
    "engine_replica_grammar_departures": (
        "Responses that left the grammar given to this server.",
        "grammar_departures",
    ),
}


class ReplicaStatsCollector(Collector):
    """Reads the counts of the replicas at scrape time. Yields nothing for engines that run here."""

    def __init__(self, models: Sequence[ServedModel | EncoderModel]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        """Returns nothing, so that registration reads no engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per count, with one sample per replica."""
        replicas = list(self._list_replicas())
        if not replicas:
            return
        up = GaugeMetricFamily("antiphon:engine_replica_up", "1 if this server can take requests.", labels=LABELS)
        for model, replica in replicas:
            up.add_metric([model, replica.name], float(replica.profile is not None))
        yield up
        for family_type, families in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (help_text, field) in families.items():
                family = family_type(f"antiphon:{name}", help_text, labels=LABELS)
                for model, replica in replicas:
                    family.add_metric([model, replica.name], getattr(replica.stats, field))
                yield family

    def _list_replicas(self) -> Iterator[tuple[str, Replica]]:
        for model in self._models:
            engine = unwrap_engine(model.engine)
            if isinstance(engine, RemoteEngine):
                for replica in engine.replicas:
                    yield model.names[0], replica
