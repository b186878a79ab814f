"""`/v1/models`: the served models under all of their names; and the endpoints by which Ollama clients find models."""

from typing import Any

from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, server_context
from antiphon.app.errors import ANTHROPIC_HEADER, ApiError, clip_text, report_engine_errors
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.projections.codex_models import codex_model
from antiphon.app.projections.models import anthropic_model, context_length, ollama_model, ollama_tag, openai_model
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.query_fields import BetaQuery
from antiphon.app.route_helpers.http_replies import json_reply

OLLAMA_VERSION = "0.14.0"
"""Ollama version to report. Agents reject servers that are older than the version they require."""


class ModelsQuery(BetaQuery, frozen=True, kw_only=True):
    """Query of the list of models."""

    client_version: str | None = None
    """Version of Codex, which sends it. Changes nothing."""


@endpoint("GET", "/v1/models", query=ModelsQuery, shape="by_header")
async def list_models(request: AnyRequest) -> Response[Any]:
    """Lists all models, with an entry for each alias, because clients look for the name that they will request.

    `data` is OpenAI's list. `models` is Codex's catalog, without models that are still loading: their context length is
    not available yet. Anthropic's clients, which send `anthropic-version`, get Anthropic's list.
    """
    context = server_context(request)
    if _is_anthropic(request):
        return json_reply(_anthropic_page(request_models(request)))
    allowed = request_models(request)
    listed = (*allowed, *allowed.encoder_names)
    data = [openai_model(name, model, context.settings) for name, model in listed]
    models = [
        codex_model(name, model, context.settings) for name, model in allowed if context_length(model) is not None
    ]
    return json_reply({"object": "list", "data": data, "models": models})


def _is_anthropic(request: AnyRequest) -> bool:
    return ANTHROPIC_HEADER in request.headers


def _anthropic_page(models: ModelRegistry) -> dict[str, Any]:
    data = [anthropic_model(name, model) for name, model in models]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}


@endpoint("GET", "/v1/models/{name:path}", query=BetaQuery, shape="by_header")
async def retrieve_model(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
    """Returns one model. The name is a path parameter because hub ids contain a slash."""
    name = name.removeprefix("/")
    context = server_context(request)
    encoder = request_models(request).get_encoder(name)
    if encoder is not None:
        return json_reply(openai_model(name, encoder, context.settings))
    model = request_models(request).find_model(name)
    if _is_anthropic(request):
        return json_reply(anthropic_model(name, model))
    return json_reply(openai_model(name, model, context.settings))


@endpoint("GET", "/api/version", shape="ollama")
async def get_version() -> Response[Any]:
    """Returns the Ollama version, which `codex --oss` requests first."""
    return json_reply({"version": OLLAMA_VERSION})


@endpoint("GET", "/api/tags", shape="ollama")
async def list_ollama_tags(request: AnyRequest) -> Response[Any]:
    """Lists the models in Ollama's format."""
    models = [ollama_tag(name, model) for name, model in request_models(request)]
    return json_reply({"models": models})


@endpoint("POST", "/api/show", shape="ollama")
async def show_ollama_model(request: AnyRequest) -> Response[Any]:
    """Describes the model that `model`, or `name` in older clients, names."""
    body = await parse_body(await request.body())
    name = body.get("model") or body.get("name")
    if not isinstance(name, str):
        raise ApiError(400, "missing_required_parameter", "model is required")
    model = request_models(request).get_model(name)
    if model is None:
        raise ApiError(404, "model_not_found", f"model '{clip_text(name)}' not found")
    with report_engine_errors():
        return json_reply(ollama_model(model, server_context(request).settings))
