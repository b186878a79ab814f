"""Builds the OpenAPI document: each route of the application with its parameters, body, replies and errors."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute

from antiphon.app.http.endpoints.endpoint import JSON, UNKNOWN_ENDPOINT, Endpoint, Form, Key, declared_endpoint
from antiphon.app.openapi.schemas import REF_TEMPLATE, Json, body_schema, query_parameters, reply_schemas
from antiphon.app.projections.included_outputs import TOOL_OUTPUTS
from antiphon.app.projections.listed_media import INCLUDE_PICTURES, INCLUDE_SCREENSHOTS
from antiphon.app.requests.batches.body import (
    FILE_PURPOSES,
    MAX_ANTHROPIC_LIFETIME_S,
    MAX_FILE_LIFETIME_S,
    MIN_FILE_LIFETIME_S,
)


def _object(**properties: Json) -> Json:
    """Returns the schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


OPENAPI_VERSION = "3.1.0"
OTHER_BODIES: dict[str, Json] = {
    "show_ollama_model": {"type": "object", "properties": {"model": {"type": "string"}, "name": {"type": "string"}}},
    "upload_file": {
        "type": "object",
        "properties": {
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "purpose": {"type": "string", "enum": [*FILE_PURPOSES]},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {
                "type": "integer",
                "minimum": MIN_FILE_LIFETIME_S,
                "maximum": MAX_FILE_LIFETIME_S,
            },
            "expires_in_seconds": {
                "type": "integer",
                "minimum": MIN_FILE_LIFETIME_S,
                "maximum": MAX_ANTHROPIC_LIFETIME_S,
                "description": "With `anthropic-version`, which also makes `purpose` and `expires_after` unknown.",
            },
        },
        "required": ["file"],
    },
    "add_upload_part": {
        "type": "object",
        "properties": {"data": {"type": "string", "contentMediaType": "application/octet-stream"}},
        "required": ["data"],
    },
}
"""Bodies that no struct decodes, by the name of the handler."""
BODY_TYPES = {"upload_file": "multipart/form-data", "add_upload_part": "multipart/form-data"}
"""Media types of bodies that are not JSON."""
EMPTY_BODIES = frozenset({"create_conversation"})
"""Handlers whose body may be left out."""

_STRING: Json = {"type": "string"}
_SHOWN_OUTPUTS = f"{', '.join(f'`{name}`' for name in sorted(TOOL_OUTPUTS))} show what tools of the server returned."
QUERY_TEXTS = {
    "include": f"`{INCLUDE_PICTURES}` and `{INCLUDE_SCREENSHOTS}` show data URLs of pictures, else null. "
    + _SHOWN_OUTPUTS
}
"""Descriptions of fields of queries that hold names of other modules."""
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
ERROR_SCHEMAS: Json = {
    "Error": _object(error=_object(message=_STRING, type=_STRING, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "AnthropicError": _object(
        type={"const": "error"}, error=_object(type=_STRING, message=_STRING), request_id=_STRING
    ),
    "OllamaError": _object(error=_STRING),
}
ERROR_NAMES = {"openai": "Error", "by_header": "Error", "anthropic": "AnthropicError", "ollama": "OllamaError"}
"""Names of the schemas, by the shape of errors."""
ERROR_TEXTS = {
    400: "The request is invalid.",
    401: "The API key is missing or wrong.",
    403: "The API key is not that of an operator, or a page of another origin has sent the request.",
    404: "What the path or the body names does not exist.",
    409: "The name belongs to another model, or the file to a batch that has not ended.",
    413: "The body is too large.",
    415: "The body is not JSON, or has an unknown encoding.",
    429: "The server is busy, or a limit of the key is reached. Retry after the time in `Retry-After`.",
    500: "The server or the model's turn failed.",
    503: "The model is not ready, or the store is unavailable. Retry the request.",
}


SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
SECURITY: list[Json] = [{name: []} for name in SCHEMES]


def build_document(routes: Iterable[BaseRoute], *, needs_key: bool) -> Json:
    """Returns the document. `needs_key`: the server has API keys."""
    paths: dict[str, Json] = {}
    routes = [*routes]
    for route in sorted(routes, key=lambda route: route.path_format):
        if isinstance(route, HTTPRoute):
            operations = {method: _operation(route, handler) for method, handler in _handlers(route)}
            paths[route.path_format] = dict(sorted(operations.items()))
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Antiphon", "version": version("antiphon"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": ERROR_SCHEMAS | reply_schemas(_list_reply_types(routes)),
            "securitySchemes": SCHEMES,
        },
        "security": SECURITY if needs_key else [],
    }


_DESCRIPTION = (
    "The OpenAI Responses API, and Chat Completions, Completions, Anthropic Messages and embeddings. Null means the "
    "same as leaving a field out; an unknown field is an error. `x-handling` tells what a field does: `honoured` "
    "changes the reply, `echoed` is only returned, `accepted` has no effect here, `refused` is an error."
)


def _handlers(route: HTTPRoute) -> Iterator[tuple[str, HTTPRouteHandler]]:
    """Yields the methods of a route and their handlers, without those that Litestar adds."""
    for handler in route.route_handlers:
        if handler.http_methods != {"OPTIONS"}:
            for method in handler.http_methods:
                yield method.lower(), handler


def _list_reply_types(routes: Iterable[BaseRoute]) -> list[type]:
    """Returns the structs of replies, each once."""
    http = (route for route in routes if isinstance(route, HTTPRoute))
    declared = (declared_endpoint(handler) for route in http for handler in route.route_handlers)
    return [*dict.fromkeys(each.reply for each in declared if each is not None and each.reply is not None)]


def _operation(route: HTTPRoute, handler: HTTPRouteHandler) -> Json:
    name, path = handler.fn.__name__, route.path_format
    endpoint = declared_endpoint(handler) or UNKNOWN_ENDPOINT
    kind = endpoint.body
    body = OTHER_BODIES.get(name) if kind is None or isinstance(kind, Form) else body_schema(kind)
    fields = frozenset(body["properties"] if body else endpoint.query.__struct_fields__)
    summary, _, details = (handler.fn.__doc__ or name).partition("\n\n")
    operation: Json = {
        "operationId": name if path == endpoint.path.replace(":path}", "}") else name + re.sub(r"\W+", "_", path),
        "summary": " ".join(summary.split()),
        "tags": [_tag(path)],
        "parameters": [*_path_parameters(route), *_query_parameters(endpoint)],
        "responses": _responses(route, name, endpoint, fields),
    }
    if details:
        operation["description"] = " ".join(details.split())
    if body is not None:
        operation["requestBody"] = {
            "required": name not in EMPTY_BODIES,
            "content": {BODY_TYPES.get(name, "application/json"): {"schema": body}},
        }
    if endpoint.key is Key.NONE or endpoint.is_private:  # whether the server has keys or not
        operation["security"] = [] if endpoint.key is Key.NONE else SECURITY
    return operation


def _tag(path: str) -> str:
    """Returns the group of a path: the part after the version, or the first one."""
    parts = path.removeprefix("/").split("/")
    return parts[1] if len(parts) > 1 and re.fullmatch(r"v\d+", parts[0]) else parts[0]


def _path_parameters(route: HTTPRoute) -> list[Json]:
    return [{"name": name, "in": "path", "required": True, "schema": _STRING} for name in route.path_parameters]


def _query_parameters(endpoint: Endpoint) -> list[Json]:
    found = {each["name"]: each for each in query_parameters(endpoint.query)}
    if endpoint.anthropic_query is not None:
        for each in query_parameters(endpoint.anthropic_query):
            note = f"With `anthropic-version`. {each.get('description', '')}".strip()
            found.setdefault(each["name"], {**each, "description": note})
    for name in QUERY_TEXTS.keys() & found.keys():
        found[name]["description"] = QUERY_TEXTS[name]
    return [*found.values()]


def _responses(route: HTTPRoute, name: str, endpoint: Endpoint, fields: frozenset[str]) -> Json:
    """Returns the replies by status: the reply itself, and every error that this operation may have."""
    schema = {"type": "object"}
    if endpoint.reply is not None:
        schema = {"$ref": REF_TEMPLATE.format(name=endpoint.reply.__name__)}
    content = {each: {"schema": schema if each == JSON else _STRING} for each in endpoint.media_types}
    if "stream" in fields and endpoint.reply is not None:
        content["text/event-stream"] = {"schema": _STRING}
    responses: Json = {"200": {"description": "Success.", "content": content}}
    for status in _error_statuses(route, name, endpoint, fields):
        error = {"schema": {"$ref": REF_TEMPLATE.format(name=ERROR_NAMES[endpoint.shape])}}
        responses[str(status)] = {"description": ERROR_TEXTS[status], "content": {JSON: error}}
    return responses


def _error_statuses(route: HTTPRoute, name: str, endpoint: Endpoint, fields: frozenset[str]) -> list[int]:
    if endpoint.key is Key.NONE:
        return [503] if name == "get_ready" else []
    has_body = endpoint.method == "POST" and bool(fields)
    conditions = {
        400: True,
        401: True,
        403: endpoint.is_private or name == "list_usage",
        404: bool(route.path_parameters) or bool({"model", "lora_name"} & fields),
        409: "lora_path" in fields or name == "delete_file",
        413: has_body,
        415: has_body,
        429: endpoint.is_limited or has_body,
        500: True,
        503: has_body or bool(route.path_parameters),
    }
    return [status for status, applies in conditions.items() if applies]
