"""`/metrics`: metrics of this server for Prometheus. Requires an API key if the server does."""

from typing import Any

from litestar import get
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.observability.metrics import CONTENT_TYPE


@get("/metrics")
async def get_metrics(request: AnyRequest) -> Response[Any]:
    """Returns all metrics in the Prometheus text format."""
    return Response(server_context(request).metrics.render_page(), media_type=CONTENT_TYPE)
