"""Options of traces: the flags of the server, and the standard variables of OpenTelemetry.

The exporter itself reads `OTEL_EXPORTER_OTLP_*`, and the resource `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from antiphon.app.options.settings import Settings
from antiphon.app.tracing.sampling import Sampler, SamplerError, create_sampler

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
TRACES_PATH = "/v1/traces"
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
MAX_QUEUE_SPANS, MAX_BATCH_SPANS, BATCH_DELAY_MS = 2048, 512, 5000
"""Defaults of `OTEL_BSP_MAX_QUEUE_SIZE`, `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` and `OTEL_BSP_SCHEDULE_DELAY`."""
_log = structlog.get_logger(__name__)


class TraceOptionError(Exception):
    """An option of traces cannot be used. The message is one line for the operator."""


class TraceOptions(Struct, frozen=True, kw_only=True):
    """How spans are sampled, what they contain, and where they go."""

    endpoint: str | None
    """URL that spans are sent to; None: as the variables say."""
    sampler: Sampler
    content: str = "off"
    content_owner: str = ""
    """The owner whose content is exported; empty for a server without keys."""
    max_queue: int = MAX_QUEUE_SPANS
    max_batch: int = MAX_BATCH_SPANS
    delay_s: float = BATCH_DELAY_MS / 1000


def read_trace_options(settings: Settings, variables: Mapping[str, str] = os.environ) -> TraceOptions | None:
    """Returns the options; None if nothing is to be traced. Raises `TraceOptionError`.

    Variables alone never keep a server from starting, since they are often set for all programs of a machine: one that
    cannot be followed is logged, and nothing is traced.
    """
    _find_content_owner(settings)
    has_variable = any(variables.get(name, "").strip() for name in ENDPOINT_VARIABLES)
    is_off = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or not (settings.otlp_endpoint or has_variable):
        return None
    try:
        return _read_options(settings, variables)
    except TraceOptionError as error:
        if settings.otlp_endpoint:
            raise
        _log.warning("no traces are exported", reason=str(error))
        return None


def _read_options(settings: Settings, variables: Mapping[str, str]) -> TraceOptions | None:
    exporters = variables.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporters == "none":
        return None
    if exporters != "otlp":
        raise TraceOptionError("OTEL_TRACES_EXPORTER: this server has the exporters otlp and none")
    protocol = next((variables[name].strip() for name in PROTOCOL_VARIABLES if variables.get(name, "").strip()), "")
    if protocol not in ("", PROTOCOL):
        raise TraceOptionError(f"{PROTOCOL_VARIABLES[1]}: this server speaks {PROTOCOL} only, on port 4318 as a rule")
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        raise TraceOptionError("traces need packages that are not installed: pip install 'antiphon[otel]'")
    try:
        sampler = create_sampler(variables)
    except SamplerError as error:
        raise TraceOptionError(str(error)) from None
    return TraceOptions(
        endpoint=None if settings.otlp_endpoint is None else complete_endpoint(settings.otlp_endpoint),
        sampler=sampler,
        content=settings.otlp_content,
        content_owner=_find_content_owner(settings),
        max_queue=_read_number(variables, "OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUE_SPANS),
        max_batch=_read_number(variables, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MAX_BATCH_SPANS),
        delay_s=_read_number(variables, "OTEL_BSP_SCHEDULE_DELAY", BATCH_DELAY_MS) / 1000,
    )


def _find_content_owner(settings: Settings) -> str:
    """Returns the owner whose content may be exported, who is the only one unless the operator names one.

    Raises `TraceOptionError`. Owners that a reload of the keys adds later are not exported.
    """
    owners = {key.owner for key in (*settings.fixed_keys, *settings.file_keys)}
    if settings.otlp_content != "off" and len(owners) > 1 and settings.otlp_content_of is None:
        raise TraceOptionError(
            "--otlp-content exports what all owners of API keys write: name one with --otlp-content-of OWNER"
        )
    return settings.otlp_content_of or next(iter(owners), "")


def complete_endpoint(url: str) -> str:
    """Returns the URL of traces for that of a collector. Raises `TraceOptionError`."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment or parts.username or parts.password:
        raise TraceOptionError("--otlp-endpoint: give the URL of a collector, such as http://127.0.0.1:4318")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith(TRACES_PATH) else path + TRACES_PATH}"


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def _read_number(variables: Mapping[str, str], name: str, default: int) -> int:
    """Returns a positive number; the default for anything else, as the specification says."""
    text = variables.get(name, "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else default
