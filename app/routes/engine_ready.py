"""What a request that needs an engine does first: it waits until there is one to take it."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.context import AnyRequest, House, house
from antiphon.app.errors import from_engine
from antiphon.app.routes.replies import unless_gone
from antiphon.engine.protocol import EngineError


async def awake(request: AnyRequest, body: Mapping[str, Any]) -> None:
    """Return when the engine of the model that `body` asks for would take a turn. Raises `ApiError` 429 or 503.

    Nothing else of a request is looked at before: an engine that still loads cannot say what it serves, and a request
    too many is to cost nothing. A model that does not exist is left to whoever reads the request.
    """
    home = house(request)
    model = home.catalogue.get(body.get("model"))
    if model is not None and model.engine.unready_reason() is not None:
        await unless_gone(request, woken(home, body))
    else:
        await woken(home, body)


async def woken(home: House, body: Mapping[str, Any]) -> None:
    """The same for whoever looks after its client itself."""
    model = home.catalogue.get(body.get("model"))
    if model is None:
        return
    try:
        await model.engine.wait_ready()
    except EngineError as error:
        raise from_engine(error) from None
