"""The exporter of spans by OTLP over HTTP. Imports the SDK of OpenTelemetry."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from antiphon.app.tracing.options import TraceOptionError, TraceOptions


def create_exporter(options: TraceOptions) -> OTLPSpanExporter:
    """Returns the exporter for a collector, which reads `OTEL_EXPORTER_OTLP_*`. Raises `TraceOptionError`."""
    try:
        return OTLPSpanExporter(endpoint=options.endpoint)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise TraceOptionError(f"OTEL_EXPORTER_OTLP_*: the exporter cannot be created: {reason}") from None
