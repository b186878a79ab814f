"""Faults that the replies of a script ask for, from the engine's choice of a reply to the reply over HTTP."""

from collections.abc import Mapping, Sequence
from functools import partial

from antiphon.app.base.engine_wrapper import unwrap_engine
from antiphon.app.base.errors import ApiError, RefusedJobError
from antiphon.app.base.event_log import EventLog
from antiphon.app.model_registry import ModelRegistry
from antiphon.engine.protocol import Job
from antiphon.engine.scripted.engine import ScriptedEngine, ScriptedReply, ScriptError
from antiphon.kit.faults import CountedFault, FaultError, WireFault, parse_fault
from antiphon.kit.faults.fault import ApiName

MAX_PENDING_FAULTS = 1024
"""Number of turns whose fault may wait for a reply. The oldest is forgotten: its client has disconnected."""


class ScriptFaults:
    """Faults of the turns that run now. The engines report the reply of each job; the routes take its fault."""

    def __init__(self) -> None:
        self._pending: dict[str, WireFault] = {}

    def connect_engine(self, engine: ScriptedEngine) -> bool:
        """Applies the faults of an engine's script. Returns whether it has any. Raises `ScriptError`."""
        faults = {}
        for reply in engine.replies:
            if reply.fault is not None:
                try:
                    faults[reply.name] = CountedFault(parse_fault(reply.fault))
                except FaultError as error:
                    raise ScriptError(f"reply {reply.name!r}: {error}") from None
        if faults:
            engine.on_reply = partial(self._note_reply, faults)
        return bool(faults)

    def take_fault(self, logs: Sequence[EventLog], api: ApiName, *, streamed: bool) -> WireFault | None:
        """Returns the fault of a reply that is about to be sent, or None. Raises `ApiError` if it does not apply."""
        found = [fault for log in logs if (fault := self._pending.pop(log.id, None)) is not None]
        if not found:
            return None
        try:
            found[0].check_use(api, streamed=streamed)
        except FaultError as error:
            raise script_error(str(error)) from None
        return found[0]

    def refuse_fault(self, log: EventLog) -> None:
        """Raises `ApiError` if the turn has a fault: the connection is not one that faults apply to."""
        fault = self._pending.pop(log.id, None)
        if fault is not None:
            raise script_error(f"the fault {fault.kind} applies to HTTP replies, not to WebSockets")

    def _note_reply(self, faults: Mapping[str, CountedFault], job: Job, reply: ScriptedReply) -> None:
        """Notes the fault of a job. Raises `RefusedJobError` if it is an HTTP status."""
        counted = faults.get(reply.name)
        fault = counted.take_fault() if counted is not None else None
        if fault is None:
            return
        if fault.kind == "status":
            raise RefusedJobError(
                ApiError(fault.http_status, fault.error_code, fault.error_message, headers=fault.error_headers)
            )
        while len(self._pending) >= MAX_PENDING_FAULTS:
            del self._pending[next(iter(self._pending))]
        self._pending[job.id] = fault


def connect_script_faults(models: ModelRegistry) -> ScriptFaults | None:
    """Returns the faults of the models' scripts, or None if there are none. Raises `ScriptError`."""
    faults = ScriptFaults()
    engines = [unwrap_engine(model.engine) for model in models.served]
    has_faults = [faults.connect_engine(engine) for engine in engines if isinstance(engine, ScriptedEngine)]
    return faults if any(has_faults) else None


def script_error(message: str) -> ApiError:
    """Returns the error of a request that a script cannot answer."""
    return ApiError(500, "script_error", f"The script cannot be played: {message}.")
