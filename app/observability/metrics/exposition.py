"""The two text formats of `/metrics`: that of Prometheus, and OpenMetrics, which has exemplars.

The text is that of `prometheus_client` with `escaping="allow-utf-8"`: without it, OpenMetrics has an underscore in the
place of the colon, which is another name. Here it is written in a tenth of the time, since the event loop waits for it.
"""

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.samples import Sample

from antiphon.app.observability.metrics.histograms import HistogramFamily, write_number

# A second sample for each counter, which nothing needs that reads the first ones regularly.
disable_created_metrics()  # type: ignore[no-untyped-call]
_PLAIN_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")
"""Litestar adds the charset to types of text."""
_MEDIA_TYPE = "application/openmetrics-text"
MAX_CACHED_NAMES = 20_000
"""Names of samples, with their labels, that are kept: those of some fifty models."""


def render_registry(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Returns all metrics in the format that a client accepts, and its media type.

    `accept` is the header of the request. OpenMetrics is sent to those that name it, as Prometheus does.
    """
    if any(_accepts_openmetrics(part) for part in accept.split(",")):
        text = "".join(map(_write_openmetrics, registry.collect()))
        return f"{text}# EOF\n".encode(), OPENMETRICS_TYPE
    return "".join(map(_write_plain, registry.collect())).encode(), _PLAIN_TYPE


def _accepts_openmetrics(part: str) -> bool:
    """Tells whether one media type of an `Accept` header is OpenMetrics, and not with the weight zero."""
    media_type, *parameters = (each.strip().lower().replace(" ", "") for each in part.split(";"))
    weight = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    return media_type == _MEDIA_TYPE and bool(weight.strip("0."))


def _write_openmetrics(metric: Metric) -> str:
    help_text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    head = f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.type}\n"
    return head + _write_samples(metric, openmetrics=True)


def _write_plain(metric: Metric) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    help_text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    head = f"# HELP {name} {help_text}\n# TYPE {name} {metric.type}\n"
    return head + _write_samples(metric, openmetrics=False)


def _write_samples(metric: Metric, *, openmetrics: bool) -> str:
    if isinstance(metric, HistogramFamily):
        return metric.write_lines(openmetrics=openmetrics)
    return "".join(_write_lines(metric.samples))


def _write_lines(samples: Iterable[Sample]) -> Iterable[str]:
    for sample in samples:
        name = _write_name(sample.name, tuple(sample.labels.items())) if sample.labels else f"{sample.name} "
        yield f"{name}{write_number(sample.value)}\n"


@lru_cache(MAX_CACHED_NAMES)
def _write_name(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """Returns the name of a sample with its labels. Names of labels are this project's own."""
    escaped = [
        f'{key}="{value}"'.replace("\n", r"\n")
        for key, value in sorted((key, value.replace("\\", r"\\").replace('"', r"\"")) for key, value in labels)
    ]
    return f"{name}{{{','.join(escaped)}}} "
