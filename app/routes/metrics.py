"""`/metrics`: the numbers of this server, for Prometheus. Asked for with a key where keys are asked for."""

from typing import Any

from litestar import get
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.observability.metrics import CONTENT_TYPE


@get("/metrics")
async def get_metrics(request: AnyRequest) -> Response[Any]:
    """All of them as text."""
    return Response(server_context(request).metrics.render_page(), media_type=CONTENT_TYPE)
