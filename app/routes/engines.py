"""What a request that needs an engine does first: it waits until there is one to take it."""

from collections.abc import Mapping
from typing import Any

from app.errors import from_engine
from app.house import AnyRequest, house
from app.routes.replies import unless_gone
from engine.protocol import EngineError


async def awake(request: AnyRequest, body: Mapping[str, Any]) -> None:
    """Return when the engine of the model that `body` asks for would take a turn. Raises `ApiError` 429 or 503.

    Nothing else of a request is looked at before: an engine that still loads cannot say what it serves, and a request
    too many is to cost nothing. A model that does not exist is left to whoever reads the request.
    """
    model = house(request).catalogue.get(body.get("model"))
    if model is None:
        return
    try:
        if model.engine.obstacle() is None:
            await model.engine.ready()
        else:
            await unless_gone(request, model.engine.ready())
    except EngineError as error:
        raise from_engine(error) from None
