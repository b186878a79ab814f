"""What every route works with, put together once."""

from typing import Any

from litestar import Request
from msgspec import Struct

from antiphon.app.model_registry import Catalogue
from antiphon.app.observability.metrics import Metrics
from antiphon.app.settings import Settings
from antiphon.app.store.base import Store
from antiphon.app.turns.manager import Turns

AnyRequest = Request[Any, Any, Any]


class House(Struct, kw_only=True):
    """The parts of a running server."""

    settings: Settings
    catalogue: Catalogue
    turns: Turns
    store: Store
    metrics: Metrics
    draining: bool = False
    """The server was told to go: it takes no new work."""


def house(request: AnyRequest) -> House:
    """The house that a request came to."""
    found: House = request.app.state["house"]
    return found


def owner(request: AnyRequest) -> str:
    """Whose request it is, as the gate found out."""
    found: str = request.scope["state"]["owner"]
    return found
