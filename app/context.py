"""What every route works with, put together once."""

from typing import Any

from litestar import Request
from msgspec import Struct

from antiphon.app.encryption import open_sealer
from antiphon.app.http.request_state import request_state
from antiphon.app.model_registry import ModelRegistry
from antiphon.app.observability.metrics import MetricsCollector
from antiphon.app.settings import Settings
from antiphon.app.store.base import ResponseStore
from antiphon.app.store.memory import MemoryStore
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.turn import TurnTimeouts

AnyRequest = Request[Any, Any, Any]


class ServerContext(Struct, kw_only=True):
    """The parts of a running server."""

    settings: Settings
    models: ModelRegistry
    turn_manager: TurnManager
    store: ResponseStore
    metrics: MetricsCollector
    shutting_down: bool = False
    """The server was told to go: it takes no new work."""


def server_context(request: AnyRequest) -> ServerContext:
    """The house that a request came to."""
    found: ServerContext = request.app.state["house"]
    return found


def request_owner(request: AnyRequest) -> str:
    """Whose request it is, as the gate found out."""
    return request_state(request.scope).owner


def create_context(
    settings: Settings, catalogue: ModelRegistry, pace: TurnTimeouts | None = None, store: ResponseStore | None = None
) -> ServerContext:
    """A house. `pace`: how patient its turns are, None: as usual; `store`: None is one in memory.

    Raises `SecretError`.
    """
    store = MemoryStore() if store is None else store
    seals = open_sealer(settings.encryption_key_path)
    counted = MetricsCollector(catalogue.served)
    turns = TurnManager(
        store,
        reasoning_output=settings.reasoning_output,
        timeouts=pace or TurnTimeouts(),
        sealer=seals,
        observer=counted,
    )
    return ServerContext(settings=settings, models=catalogue, turn_manager=turns, store=store, metrics=counted)
