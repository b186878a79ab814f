"""Faults that the replies of a script ask for: the engine chooses a reply, and its fault belongs to the request."""

from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial

from msgspec import Struct

from antiphon.app.errors import ApiError, RefusedJobError
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.protocol import Job
from antiphon.engine.scripted.engine import ScriptedEngine, ScriptedReply, ScriptError
from antiphon.kit.faults import CountedFault, FaultError, WireFault, parse_fault
from antiphon.kit.faults.fault import ApiName


class FaultyRequest(Struct):
    """The facts of a request that decide its faults, and the fault of its reply once the engine has chosen one."""

    api: ApiName | None
    """None: a WebSocket."""
    streamed: bool | None = False
    """None: a background response that is read later."""
    fault: WireFault | None = None


CURRENT_REQUEST: ContextVar[FaultyRequest | None] = ContextVar("faulty_request", default=None)
"""The request whose turns run in this context. None: its reply cannot be broken."""


def connect_script_faults(models: ModelRegistry) -> bool:
    """Makes engines note the faults of their scripts. Returns whether there are any. Raises `ScriptError`."""
    engines = [unwrap_engine(model.engine) for model in models.served]
    has_faults = [_connect_engine(engine) for engine in engines if isinstance(engine, ScriptedEngine)]
    return any(has_faults)


def _connect_engine(engine: ScriptedEngine) -> bool:
    faults = {}
    for reply in engine.replies:
        if reply.fault is not None:
            try:
                faults[reply.name] = CountedFault(parse_fault(reply.fault))
            except FaultError as error:
                raise ScriptError(f"reply {reply.name!r}: {error}") from None
    if faults:
        engine.on_reply = partial(_note_fault, faults)
    return bool(faults)


def _note_fault(faults: Mapping[str, CountedFault], _: Job, reply: ScriptedReply) -> None:
    """Notes the fault of a job. Raises `RefusedJobError` if it is an HTTP status, or does not apply to the request."""
    counted, request = faults.get(reply.name), CURRENT_REQUEST.get()
    fault = counted.take_fault() if counted is not None else None
    if fault is None:
        return
    if fault.kind == "status":
        raise RefusedJobError(
            ApiError(fault.http_status, fault.error_code, fault.error_message, headers=fault.error_headers)
        )
    if request is None or request.streamed is None or request.fault is not None:
        return
    if request.api is None:
        raise _script_error(f"the fault {fault.kind} applies to HTTP replies, not to WebSockets")
    try:
        fault.check_use(request.api, streamed=request.streamed)
    except FaultError as error:
        raise _script_error(str(error)) from None
    request.fault = fault


def _script_error(message: str) -> RefusedJobError:
    return RefusedJobError(ApiError(500, "script_error", f"The script cannot be played: {message}."))
