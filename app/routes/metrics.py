"""`/metrics`: the numbers of this server, for Prometheus. Asked for with a key where keys are asked for."""

from typing import Any

from litestar import get
from litestar.response import Response

from antiphon.app.context import AnyRequest, house
from antiphon.app.observability.metrics import CONTENT_TYPE


@get("/metrics")
async def metrics(request: AnyRequest) -> Response[Any]:
    """All of them as text."""
    return Response(house(request).metrics.page(), media_type=CONTENT_TYPE)
