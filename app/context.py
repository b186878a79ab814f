"""The server context: objects that every route uses, created once."""

from collections.abc import Callable, Sequence
from typing import Any

from litestar import Request
from msgspec import Struct, structs

from antiphon.app.adapters.updates import AdapterUpdates
from antiphon.app.batches.runner import BatchRunner
from antiphon.app.http.endpoints.table import EndpointTable
from antiphon.app.http.request_body import BodyMemory
from antiphon.app.http.request_state import request_state
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.inspection.server_figures import FiguresReporter, takes_requests
from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.keys.reloader import Reloader
from antiphon.app.lifecycle.struct_types import prepare_struct_types
from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.pdf_reader import PdfReader
from antiphon.app.media.processor_files import PDF_PACKAGES, can_prepare_images, find_missing_packages
from antiphon.app.models.status import is_starting
from antiphon.app.observability.audit_log import AuditLog
from antiphon.app.observability.metrics.collector import MetricsCollector
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.options.settings import Settings
from antiphon.app.outbound.fetcher import UrlFetcher, create_fetch_policy, parse_allowed_host
from antiphon.app.outbound.policy import AllowedHost
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.query_fields import AnyQueryFields
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.tool_host import create_tool_host
from antiphon.app.tracing.tracer import Tracer, open_tracer
from antiphon.app.turn_types.encryption import Sealer, open_sealer
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.media.resolver import MediaResolver
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.app.usage.meter import UsageMeter, create_meter
from antiphon.app.usage.recorder import UsageRecorder
from antiphon.state.drafts import OutputSettings

AnyRequest = Request[Any, Any, Any]
MAX_IMAGE_TOKENS = 1024
"""Default of `Settings.max_image_tokens`."""


class MediaOptionError(Exception):
    """An option about images and files cannot be used. The message is one line for the operator."""


class ServerContext(Struct, kw_only=True):
    """Components of a running server."""

    settings: Settings
    models: ModelRegistry
    capacity: TurnCapacity
    turn_manager: TurnManager
    store: ResponseStore
    metrics: MetricsCollector
    adapter_updates: AdapterUpdates
    body_memory: BodyMemory
    keys: KeyRing
    meter: UsageMeter
    reloader: Reloader
    audit: AuditLog
    batches: BatchRunner | None
    """None if the server runs no batches."""
    tracer: Tracer | None
    """None if nothing is traced."""
    grpc_ports: tuple[int, ...] = ()
    """Ports of gRPC, once it is served: one for each model that generates text."""

    @property
    def usage(self) -> UsageRecorder:
        """Sums of what API keys use."""
        assert self.meter.recorder is not None
        return self.meter.recorder

    @property
    def page_key(self) -> str:
        """Key of the page and of `/v1/inspect`; empty if API keys are required."""
        return self.keys.page_key

    draining: bool = False
    """True once shutdown will begin: the server is not ready any more."""
    begin_drain: Callable[[], None] = lambda: None
    """Begins a graceful shutdown."""
    shutting_down: bool = False
    """True once shutdown has begun: the server accepts no new work."""

    def begin_frame_trace(self, handshake: RequestTrace) -> RequestTrace | None:
        """Returns the span of a request on a connection, which belongs to the span that the handshake named."""
        return None if self.tracer is None else self.tracer.begin_span(handshake.parent)


def server_context(request: AnyRequest) -> ServerContext:
    """Returns the context of the server that received the request."""
    context: ServerContext = request.app.state["context"]
    return context


def endpoint_table(request: AnyRequest) -> EndpointTable:
    """Returns the endpoints of the server that received the request."""
    table: EndpointTable = request.app.state["endpoints"]
    return table


def request_query(request: AnyRequest, kind: type[AnyQueryFields]) -> AnyQueryFields:
    """Returns the query of a request, of the type that its endpoint declares."""
    query = request_state(request.scope).query
    assert isinstance(query, kind)
    return query


def request_owner(request: AnyRequest) -> str:
    """Returns the owner of the request, as determined by the request guard."""
    return request_state(request.scope).owner


def request_models(request: AnyRequest) -> ModelRegistry:
    """Returns the models that the request may use."""
    return server_context(request).models.restrict(request_state(request.scope).key.models)


def _open_media(settings: Settings, metrics: MetricsCollector) -> tuple[MediaPreparer | None, PdfReader | None]:
    """Returns what prepares images, and what reads PDFs. None: it is switched off, or the extra `vision` is missing."""
    limits = MediaLimits(
        max_image_bytes=settings.max_image_mib << 20,
        memory_bytes=settings.media_memory_mib << 20,
        num_workers=settings.media_workers,
        image_tokens=settings.image_tokens,
        max_image_tokens=settings.max_image_tokens or max(MAX_IMAGE_TOKENS, settings.image_tokens),
    )
    preparer = MediaPreparer(limits, metrics.media.observe) if can_prepare_images(settings) else None
    reader = None if find_missing_packages(PDF_PACKAGES) else PdfReader(limits, metrics.media.observe)
    metrics.media.watch(found for found in (preparer, reader) if found is not None)
    return preparer, reader


def read_allowed_hosts(settings: Settings) -> tuple[AllowedHost, ...]:
    """Returns the hosts whose URLs are fetched. Raises `MediaOptionError`."""
    try:
        return tuple(
            parse_allowed_host(host, may_be_any=settings.allow_any_image_host) for host in settings.image_hosts
        )
    except ValueError as error:
        raise MediaOptionError(f"--allow-image-host: {error}") from None


def _create_reloader(settings: Settings, keys: KeyRing, turn_manager: TurnManager, audit: AuditLog) -> Reloader:
    def on_revoked(revoked: Sequence[ApiKey]) -> int:
        digests = frozenset(key.digest for key in revoked)
        return turn_manager.cancel_turns_of_keys(digests) if settings.on_revoke == "cancel" else 0

    fixed = ("the keys of --api-key and ANTIPHON_API_KEY",) if settings.fixed_keys else ()
    grpc = ("the certificate of gRPC",) if settings.grpc_port is not None and settings.ssl_certfile else ()
    reloader = Reloader(keys, settings.key_file, on_revoked, (*fixed, *grpc, "all other options"), settings.file_marks)
    reloader.on_reload.append(audit.record_reload)
    return reloader


def create_recorder(settings: Settings) -> TurnRecorder | None:
    """Returns what records turns; None if nothing does."""
    if settings.inspect_mode == "off":
        return None
    return TurnRecorder(settings.inspect_mib << 20, uses_store=settings.inspect_mode == "store")


def _create_media_resolver(
    settings: Settings, metrics: MetricsCollector, store: ResponseStore, sealer: Sealer, memory: BodyMemory
) -> tuple[Settings, MediaResolver]:
    """Returns the settings, without images if they cannot be prepared, and what finds the images of requests."""
    preparer, reader = _open_media(settings, metrics)
    if preparer is None:
        settings = structs.replace(settings, images="off")
    fetcher = UrlFetcher(create_fetch_policy(read_allowed_hosts(settings)))
    secret = sealer.derive_key("image names")
    return settings, MediaResolver(store, settings, preparer, reader, fetcher, secret=secret, memory=memory)


def create_context(
    settings: Settings,
    models: ModelRegistry,
    timeouts: TurnTimeouts = TurnTimeouts(),  # noqa: B008  # it is frozen
    *,
    store: ResponseStore,
) -> ServerContext:
    """Creates a server context. Raises `KeyFileError`, and the errors of options of tools, media and traces."""
    prepare_struct_types()
    sealer = open_sealer(settings.encryption_key_path)
    metrics = MetricsCollector(models.all_models, store, settings.store_file)
    capacity, memory = TurnCapacity(model.engine for model in models.served), BodyMemory(settings.max_body_bytes)
    settings, media = _create_media_resolver(settings, metrics, store, sealer, memory)
    if media.source is not None:
        for model in models.served:
            model.engine.attach_media(media.source)
    audit = AuditLog(settings.audit_log)
    keys, tracer = KeyRing(settings.fixed_keys, settings.file_keys), open_tracer(settings, metrics.on_spans_dropped)
    meter = create_meter(store, keys)
    turn_manager = TurnManager(
        store,
        capacity,
        output_settings=OutputSettings(reasoning=settings.reasoning_output, patch_diffs=settings.apply_patch_diffs),
        timeouts=structs.replace(timeouts, disconnect_grace_s=settings.disconnect_grace),
        sealer=sealer,
        tool_host=create_tool_host(settings, sealer, new_id, metrics.on_tool_call),
        media=media,
        on_turn_end=metrics.on_turn_end,
        meter=meter,
        recorder=create_recorder(settings),
        tracer=tracer,
    )
    return _connect_store(
        ServerContext(
            settings=settings,
            models=models,
            capacity=capacity,
            turn_manager=turn_manager,
            store=store,
            metrics=metrics,
            adapter_updates=AdapterUpdates(models, settings.lora_dirs if settings.allow_lora_updates else ()),
            body_memory=memory,
            keys=keys,
            meter=meter,
            reloader=_create_reloader(settings, keys, turn_manager, audit),
            audit=audit,
            batches=BatchRunner(store, models, meter=meter) if settings.enable_batches else None,
            tracer=tracer,
        )
    )


def _connect_store(context: ServerContext) -> ServerContext:
    """Gives the store the limits of owners, and the figures of this server to report. Returns the context."""
    context.store.limit_owners(context.keys.list_store_limits)
    models, turn_manager = context.models, context.turn_manager

    def is_serving() -> bool:
        return not context.draining and not any(is_starting(model.engine) for model in models.all_models)

    reporter = FiguresReporter(context.settings, models.served, lambda: turn_manager.num_running, is_serving)
    context.store.servers.takes_requests = takes_requests
    context.store.report_figures(reporter.report)
    return context
