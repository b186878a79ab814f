"""Tells why engines are not ready, and waits for the one of a request before anything else of it is processed."""

from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.app.context import AnyRequest, ServerContext, request_models, server_context
from antiphon.app.errors import report_engine_errors
from antiphon.app.http.request_state import request_state
from antiphon.app.models.status import blocked_reason, is_starting, known_info
from antiphon.app.registry.model_registry import ModelRegistry, NamedModel, ServedModel
from antiphon.app.route_helpers.http_replies import cancel_on_disconnect


async def wait_until_ready(request: AnyRequest, body: Mapping[str, Any]) -> None:
    """Waits until the engine of the requested model can accept a turn. Raises `ApiError` 429 or 503.

    Runs before the request is parsed: an engine that is still loading cannot report what it supports, and an excess
    request must cost nothing. An unloaded model whose properties are known gets its memory here. Its turn waits for the
    load, so that its client sees a stream meanwhile. Returns immediately for an unknown model: the parser reports it.
    If the client disconnects, the wait is cancelled.
    """
    context, models = server_context(request), request_models(request)
    model = models.get_model(body.get("model"))
    is_batch = request_state(request.scope).turn_admission is not None
    waiting = wait_for_engine(context, models, body, is_batch=is_batch)
    if model is not None and model.engine.unready_reason() is not None:
        await cancel_on_disconnect(request, waiting)
    else:
        await waiting


async def wait_for_engine(
    context: ServerContext, models: ModelRegistry, body: Mapping[str, Any], *, is_batch: bool = False
) -> None:
    """Does the same as `wait_until_ready`, but does not notice when the client disconnects.

    Turns that have lost their readers make room, except for the line of a batch, which waits.
    """
    model = models.get_model(body.get("model"))
    if model is None:
        return
    if not is_batch:
        await context.turn_manager.make_room(model.engine)
    await _wait_ready(model)


async def wait_until_known(request: AnyRequest, model: NamedModel | None) -> None:
    """Waits until the properties of a model are known, for requests that need no engine. Raises `ApiError` 429 or 503.

    They stay known while a model is unloaded, so only its first use loads it.
    """
    if model is not None and known_info(model) is None:
        await cancel_on_disconnect(request, _wait_ready(model))


async def _wait_ready(model: NamedModel) -> None:
    with report_engine_errors():
        await model.engine.wait_ready()


def unready_reason(context: ServerContext, model: ServedModel | None = None) -> str | None:
    """Returns the reason why the server would not accept a request now, or one for this model; None if it would.

    At the start, the server waits for all models. Later, it is ready while any of them is: a load balancer must not
    take the others away because one restarts.
    """
    if context.draining:
        return "the server is shutting down"
    models = context.models.all_models if model is None else (model,)
    unready = list_unready(models)
    starting = any(is_starting(each.engine) for each in models)
    if not starting and len(unready) < len(models):
        return None
    return "; ".join(f"{name}: {reason}" for name, reason in unready.items()) or None


def list_unready(models: Iterable[NamedModel]) -> dict[str, str]:
    """Returns the reasons of models that are not ready, by their first names."""
    reasons = {model.names[0]: blocked_reason(model.engine) for model in models}
    return {name: reason for name, reason in reasons.items() if reason is not None}
