"""`/v1/models`: what is served, under every name it goes by."""

from typing import Any

import msgspec
from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from app.catalogue import ServedModel
from app.house import AnyRequest, house
from app.routes.replies import json_reply


@get("/v1/models")
async def listing(request: AnyRequest) -> Response[Any]:
    """All models, aliases as entries of their own: clients look for the name they will ask for."""
    data = [_entry(name, model) for name, model in house(request).catalogue]
    return json_reply(msgspec.json.encode({"object": "list", "data": data}))


@get("/v1/models/{name:path}")
async def one(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
    """One model. A hub id has a slash in it, hence the path."""
    name = name.removeprefix("/")
    return json_reply(msgspec.json.encode(_entry(name, house(request).catalogue.find(name))))


def _entry(name: str, model: ServedModel) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}
