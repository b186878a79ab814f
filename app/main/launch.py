"""Starts a server from the parsed options: the model, its engine, the store, and the HTTP server.

Importing this module takes half a second or more. An engine worker that was spawned before runs its own imports in
that time.
"""

import gc
import os
import signal
import sys
from functools import partial
from importlib.util import find_spec

import structlog
import uvloop

from antiphon.app.assembly.models import create_models
from antiphon.app.context import MediaOptionError, ServerContext, create_context, read_allowed_hosts
from antiphon.app.lifecycle.process import open_process
from antiphon.app.lifecycle.tls import load_ssl_context
from antiphon.app.main import server
from antiphon.app.media.processor_files import IMAGE_PACKAGES, find_missing_packages
from antiphon.app.models.status import loaded_info
from antiphon.app.observability import log_config, startup
from antiphon.app.observability.access_log import AccessLog, console_format, json_format
from antiphon.app.observability.audit_log import AuditLogError
from antiphon.app.observability.log_sink import LogSink, describe_dropped, open_missing_descriptors
from antiphon.app.options.serve_options import LogFormat, ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.requests.media.vision import explain_blindness
from antiphon.app.store.base import StoreError
from antiphon.app.store.factory import open_store
from antiphon.app.tools.hosted_options import ToolOptionError, check_tool_options
from antiphon.app.tracing.options import TraceOptionError
from antiphon.app.turn_types.encryption import KeyFileError
from antiphon.console.runtime_file import RuntimeInfo, delete_runtime_file, write_runtime_file
from antiphon.engine.host.malloc_tuning import keep_large_blocks_mapped
from antiphon.engine.process.spawn import SpawnWorker
from antiphon.engine.protocol import EngineError
from antiphon.engine.scripted.engine import ScriptError
from antiphon.harmony.detection.detect import DialectError

START_ERRORS = (
    *(EngineError, ScriptError, DialectError, StoreError),
    *(KeyFileError, ToolOptionError, MediaOptionError, TraceOptionError, AuditLogError),
)
"""Errors for which the server does not start. Each has a message of one line for the operator."""
MAX_PORT = 65_535
"""Largest TCP port."""
_log = structlog.get_logger(__name__)
GC_THRESHOLD = 20_000
"""Number of new objects that triggers a collection of the youngest generation: a millisecond of work."""


def run_until_signal(
    options: ServeOptions, settings: Settings, style: LogFormat, spawn: SpawnWorker, *, replace: bool = False
) -> None:
    """Serves until a signal arrives. `spawn` starts the engine's worker process. Raises `ServeError`."""
    open_missing_descriptors()
    keep_large_blocks_mapped()
    sink = LogSink(describe=log_config.describe_dropped_json if style == "json" else describe_dropped)
    log_config.configure_logging(style, sink)
    try:
        exit_signal = uvloop.run(_run_server(options, settings, style, spawn, sink, replace))
    except START_ERRORS as error:
        raise ServeError(str(error)) from None
    except KeyboardInterrupt:
        exit_signal = signal.SIGINT
    finally:
        sink.close()
    if exit_signal == signal.SIGINT:
        sys.exit(130)
    if exit_signal is not None:  # the parent sees that the signal has ended the process
        signal.signal(exit_signal, signal.SIG_DFL)
        signal.raise_signal(exit_signal)


async def _run_server(
    options: ServeOptions, settings: Settings, style: LogFormat, spawn: SpawnWorker, sink: LogSink, replace: bool
) -> int | None:
    screen = startup.create_console(sink)
    display = startup.StartupLog(sink) if style == "json" else startup.StartupScreen(screen)
    check_grpc(settings, len(options.models))
    check_tool_options(settings)
    read_allowed_hosts(settings)
    load_ssl_context(settings)  # first, so that an unusable certificate fails immediately
    process, listener = open_process(settings, replace=replace)  # early, too: a port in use fails immediately
    with listener:
        port, store = listener.getsockname()[1], open_store(settings)
        try:
            with display:
                registry, notes = await create_models(options, settings, display.update, spawn)
                if not options.load_on_demand:
                    display.start([model.names[0] for model in registry.all_models])
                context = create_context(settings, registry, store=store)
                access_log = AccessLog(json_format if style == "json" else console_format(screen), display.print_lines)
                try:
                    return await server.run_server(
                        context,
                        listener,
                        on_ready=partial(_on_ready, display, context, notes),
                        on_request_done=access_log.add_record,
                        process=process,
                    )
                finally:
                    access_log.flush_lines()
                    delete_runtime_file(port)
        finally:
            await store.close()


def check_grpc(settings: Settings, num_models: int) -> None:
    """Raises `ServeError` if gRPC cannot be served: packages are missing, or there is no port for each model."""
    missing = [name for name in ("grpc", "grpc_health", "grpc_reflection") if find_spec(name) is None]
    if settings.grpc_port is not None and missing:
        raise ServeError(f"--grpc needs packages that are not installed ({missing[0]}): pip install 'antiphon[grpc]'")
    first = settings.grpc_port or 0
    if first and (last := first + num_models - 1) > MAX_PORT:
        raise ServeError(
            f"--grpc {first}: {num_models} models take the ports from {first} to {last}; "
            f"choose {MAX_PORT - num_models + 1} or less"
        )


def tune_gc() -> None:
    """Freezes start-up objects and raises the GC threshold, to keep collection pauses out of request latency.

    Start-up objects are never freed, and most objects that a request or a token creates are in no reference cycle.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def _on_ready(display: startup.StartupDisplay, context: ServerContext, notes: dict[str, str], port: int) -> None:
    tune_gc()
    settings = context.settings
    _write_runtime_file(context, port)
    images = _explain_images(context)
    notes = {name: "; ".join(filter(None, (notes.get(name), images.get(name)))) for name in notes | images}
    display.show_ready(settings, context.models, port, notes, context.page_key)
    show_grpc(display, context)


def _write_runtime_file(context: ServerContext, port: int) -> None:
    """Tells programs of this user where the server is. Without the file they need `--url`, and the page its key."""
    info = RuntimeInfo(
        url=startup.base_urls(context.settings, port)[0],
        page_key=context.page_key,
        control_key=context.keys.control_key,
        pid=os.getpid(),
    )
    try:
        write_runtime_file(port, info)
    except OSError as error:
        _log.warning("the runtime file cannot be written", reason=str(error))


def _explain_images(context: ServerContext) -> dict[str, str]:
    """Returns why models that could see do not, by their first names."""
    loaded = [(model, loaded_info(model)) for model in context.models.served]
    missing = find_missing_packages(IMAGE_PACKAGES)
    remedy = f"Images need {' and '.join(missing)}: install antiphon[vision]" if missing else ""
    reasons = {
        model.names[0]: explain_blindness(model, info) or (remedy if info.image_form != "none" else "")
        for model, info in loaded
        if info is not None
    }
    return {name: f"Images are not shown to this model: {reason}." for name, reason in reasons.items() if reason}


def show_grpc(display: startup.StartupDisplay, context: ServerContext) -> None:
    """Shows each port of gRPC with the model whose engine service it has, if there are several."""
    for model, port in zip(context.models.served, context.grpc_ports, strict=False):
        name = model.names[0] if len(context.grpc_ports) > 1 else ""
        display.show_grpc(startup.grpc_address(context.settings, port), name)
