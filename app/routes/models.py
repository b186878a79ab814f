"""`/v1/models`: what is served, under every name it goes by; and the two questions that Ollama's clients ask first."""

from typing import Any

import msgspec
from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.model_registry import ServedModel
from antiphon.app.projections.codex_models import codex_model
from antiphon.app.projections.models import ollama_tag, openai_model
from antiphon.app.routes.replies import json_reply
from antiphon.engine.protocol import EngineError

OLLAMA_VERSION = "0.14.0"
"""The version of Ollama whose answers these are: agents refuse to talk to one that is older than they like."""


@get("/v1/models")
async def list_models(request: AnyRequest) -> Response[Any]:
    """All models, aliases as entries of their own: clients look for the name they will ask for.

    `data` is OpenAI's list, `models` is Codex's catalogue: of a model that has yet to load nothing is known.
    """
    home = server_context(request)
    data = [openai_model(name, model) for name, model in home.models]
    models = [codex_model(name, model, home.settings) for name, model in home.models if _is_loaded(model)]
    return json_reply(msgspec.json.encode({"object": "list", "data": data, "models": models}))


def _is_loaded(model: ServedModel) -> bool:
    try:
        return model.engine.info is not None
    except EngineError:
        return False


@get("/v1/models/{name:path}")
async def retrieve_model(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
    """One model. A hub id has a slash in it, hence the path."""
    name = name.removeprefix("/")
    return json_reply(msgspec.json.encode(openai_model(name, server_context(request).models.find_model(name))))


@get("/api/version")
async def get_version() -> Response[Any]:
    """What `codex --oss` asks an Ollama before anything else."""
    return json_reply(msgspec.json.encode({"version": OLLAMA_VERSION}))


@get("/api/tags")
async def list_ollama_tags(request: AnyRequest) -> Response[Any]:
    """The models as Ollama lists them."""
    models = [ollama_tag(name, model) for name, model in server_context(request).models]
    return json_reply(msgspec.json.encode({"models": models}))
