"""The handlers of all endpoints, and their declarations, from the modules that have routes."""

from litestar.handlers import HTTPRouteHandler

from antiphon.app.encoders import routes as encoders
from antiphon.app.http.endpoints.endpoint import declared_endpoint
from antiphon.app.routes import (
    adapters,
    batches,
    chat,
    compact,
    completions,
    conversations,
    health,
    messages,
    models,
    openapi,
    responses,
    stored_chat,
    tokenize,
)
from antiphon.app.routes.files import files, uploads
from antiphon.app.routes.inspection import server, turns
from antiphon.app.routes.operations import admin, usage

MODULES = (
    *(server, turns, responses, compact, conversations, chat, stored_chat, completions, messages, models, admin),
    *(adapters, files, uploads, batches, encoders, usage, tokenize, health, openapi),
)
"""In the order in which pages list their endpoints."""
ROUTE_HANDLERS = tuple(
    value for module in MODULES for value in vars(module).values() if isinstance(value, HTTPRouteHandler)
)
ENDPOINTS = tuple(found for handler in ROUTE_HANDLERS if (found := declared_endpoint(handler)) is not None)
