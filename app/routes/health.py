"""`/health`: the process is running. `/ready`: it accepts requests now. Neither needs a key; `/metrics` does."""

from collections.abc import Iterable
from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.http.endpoints.endpoint import Key, endpoint
from antiphon.app.models.status import loaded_info
from antiphon.app.registry.model_registry import NamedModel
from antiphon.app.requests.query_fields import AnyQuery
from antiphon.app.route_helpers.engine_ready import list_unready, unready_reason
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.engine.fallbacks import list_kinds


@endpoint("GET", "/health", query=AnyQuery, key=Key.NONE, traced=False)
async def get_health() -> Response[Any]:
    """Returns 200 as long as the event loop runs."""
    return json_reply(b'{"status":"ok"}')


@endpoint("GET", "/metrics", query=AnyQuery, traced=False, media_types=("text/plain", "application/openmetrics-text"))
async def get_metrics(request: AnyRequest) -> Response[Any]:
    """Returns all metrics in the text format of Prometheus, or as OpenMetrics to clients that accept it."""
    page, media_type = server_context(request).metrics.render_page(request.headers.get("accept", ""))
    return Response(page, media_type=media_type)


@endpoint("GET", "/ready", query=AnyQuery, key=Key.NONE, traced=False)
async def get_ready(request: AnyRequest) -> Response[Any]:
    """Returns 200, with the models that are not ready beside others and the fallbacks of all, or 503 with the reason.

    Of fallbacks it has the kinds: the reasons are for the operator, and this reply is for everyone.
    """
    context = server_context(request)
    reason = unready_reason(context)
    if reason is not None:
        return json_reply({"status": "not ready", "reason": reason}, 503)
    unready = list_unready(context.models.all_models)
    fallbacks = _list_fallbacks(context.models.all_models)
    return json_reply(
        {"status": "ready"}
        | ({"unready_models": unready} if unready else {})
        | ({"fallbacks": fallbacks} if fallbacks else {})
    )


def _list_fallbacks(models: Iterable[NamedModel]) -> dict[str, list[str]]:
    """Returns the kinds of fallbacks of loaded models that have some, by their first names."""
    infos = {model.names[0]: loaded_info(model) for model in models}
    return {name: list_kinds(info.fallbacks) for name, info in infos.items() if info is not None and info.fallbacks}
