"""What a request that needs an engine does first: it waits until there is one to take it."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.context import AnyRequest, ServerContext, server_context
from antiphon.app.errors import from_engine
from antiphon.app.routes.replies import cancel_on_disconnect
from antiphon.engine.protocol import EngineError


async def wait_until_ready(request: AnyRequest, body: Mapping[str, Any]) -> None:
    """Return when the engine of the model that `body` asks for would take a turn. Raises `ApiError` 429 or 503.

    Nothing else of a request is looked at before: an engine that still loads cannot say what it serves, and a request
    too many is to cost nothing. A model that does not exist is left to whoever reads the request.
    """
    home = server_context(request)
    model = home.models.get_model(body.get("model"))
    if model is not None and model.engine.unready_reason() is not None:
        await cancel_on_disconnect(request, wait_for_engine(home, body))
    else:
        await wait_for_engine(home, body)


async def wait_for_engine(home: ServerContext, body: Mapping[str, Any]) -> None:
    """The same for whoever looks after its client itself."""
    model = home.models.get_model(body.get("model"))
    if model is None:
        return
    try:
        await model.engine.wait_ready()
    except EngineError as error:
        raise from_engine(error) from None
