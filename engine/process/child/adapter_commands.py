"""Applies the parent's commands about adapters to a core, in the worker process."""

import logging
from typing import Any

from antiphon.engine.errors import one_line
from antiphon.engine.process.messages import AdapterReport, LoadAdapter, UnloadAdapter
from antiphon.engine.protocol import EngineError

log = logging.getLogger(__name__)


def apply_adapter_command(core: Any, command: LoadAdapter | UnloadAdapter) -> AdapterReport:
    """Loads or unloads an adapter of the core. An error is reported and never raised."""
    adapters = getattr(core, "adapters", None)
    if adapters is None:
        return AdapterReport(command.request, "invalid_request", "this engine was started without support for adapters")
    try:
        if isinstance(command, UnloadAdapter):
            adapters.unload(command.name)
        else:
            adapters.load(command.name, command.path, command.root)
    except EngineError as error:
        return AdapterReport(command.request, error.code, error.message)
    except Exception as error:  # an adapter's fault is reported, and the worker serves on
        log.exception("a command about the adapter %s failed", command.name)
        return AdapterReport(command.request, "server_error", one_line(error))
    return AdapterReport(command.request)
