"""Builds the OpenAPI document: each route of the application with its parameters, body, replies and errors."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import get_args

from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute

from antiphon.app.http.endpoints.endpoint import UNKNOWN_ENDPOINT, Endpoint, Form, Key, declared_endpoint
from antiphon.app.openapi.schemas import REF_TEMPLATE, Json, body_schema, reply_schemas
from antiphon.app.projections.chat.schema import ChatCompletion
from antiphon.app.projections.completions.schema import TextCompletion
from antiphon.app.projections.included_outputs import TOOL_OUTPUTS
from antiphon.app.projections.listed_media import INCLUDE_PICTURES, INCLUDE_SCREENSHOTS
from antiphon.app.projections.messages.schema import AnthropicMessage
from antiphon.app.requests.batches.body import (
    FILE_PURPOSES,
    LISTED_PURPOSES,
    MAX_ANTHROPIC_LIFETIME_S,
    MAX_FILE_LIFETIME_S,
    MIN_FILE_LIFETIME_S,
)
from antiphon.app.requests.pagination import DEFAULT_LIMIT, MAX_FILES_LIMIT, MAX_LIMIT
from antiphon.app.requests.responses.body import Includable
from antiphon.events.response import Response


def _object(**properties: Json) -> Json:
    """Returns the schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


OPENAPI_VERSION = "3.1.0"
REPLY_TYPES: dict[str, type] = {
    "create_response": Response,
    "retrieve_response": Response,
    "cancel_response": Response,
    "create_chat_completion": ChatCompletion,
    "create_completion": TextCompletion,
    "create_message": AnthropicMessage,
}
"""Type of the reply, by the name of the handler. Other replies are described as objects."""
PLAIN_REPLIES = {
    "get_metrics": "text/plain",
    "retrieve_content": "application/octet-stream",
    "load_lora_adapter": "text/plain",
    "unload_lora_adapter": "text/plain",
}
"""Replies that are not JSON."""
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
_STREAM = ("stream", {"type": "string", "enum": ["true", "1"]}, "Streams the events instead.")
_PAGE = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": int(DEFAULT_LIMIT)}, "Most entries."),
    ("after", _STRING, "Id of the entry before the page."),
    ("order", {"type": "string", "enum": ["asc", "desc"]}, "By time."),
)
_INCLUDABLE: Json = {"type": "array", "items": {"type": "string", "enum": [*get_args(Includable)]}}
_SHOWN_OUTPUTS = f"{', '.join(f'`{name}`' for name in sorted(TOOL_OUTPUTS))} show what tools of the server returned."
_INCLUDE = (
    "include",
    _INCLUDABLE,
    f"`{INCLUDE_PICTURES}` and `{INCLUDE_SCREENSHOTS}` show data URLs of pictures, else null. {_SHOWN_OUTPUTS}",
)
QUERY_PARAMETERS: dict[str, tuple[tuple[str, Json, str], ...]] = {
    "list_batches": _PAGE[:2],
    "list_usage": (
        ("start_time", {"type": "integer", "minimum": 0}, "Start in seconds since 1970; required."),
        ("end_time", {"type": "integer", "minimum": 0}, "End, exclusive. Default: now."),
        ("bucket_width", {"type": "string", "enum": ["1m", "1h", "1d"], "default": "1d"}, "Period of a bucket."),
        (
            "limit",
            {"type": "integer", "minimum": 1, "maximum": 1440},
            "Most buckets: 31 days, 168 hours, 1440 minutes.",
        ),
        ("page", _STRING, "The `next_page` of the page before."),
        (
            "group_by",
            {"type": "array", "items": {"enum": ["model", "api_key_id", "user_id"]}},
            "Sums of each of these.",
        ),
        *((name, {"type": "array", "items": _STRING}, "Only these.") for name in ("models", "api_key_ids", "user_ids")),
    ),
    "list_files": (
        ("limit", {"type": "integer", "minimum": 1, "maximum": MAX_FILES_LIMIT, "default": MAX_FILES_LIMIT}, "Most."),
        *_PAGE[1:],
        ("purpose", {"type": "string", "enum": [*LISTED_PURPOSES]}, "Only files with this purpose."),
        ("page", _STRING, "With `anthropic-version`: the `next_page` of the page before."),
        ("ids", {"type": "array", "items": _STRING}, "With `anthropic-version`: only these files."),
    ),
    "retrieve_response": (
        _STREAM,
        ("starting_after", {"type": "integer", "minimum": -1}, "With `stream`: the last event that is known already."),
        ("include_obfuscation", _STREAM[1], "With `stream`: pads every delta."),
        ("include", _INCLUDABLE, _SHOWN_OUTPUTS),
    ),
    "list_input_items": (*_PAGE, _INCLUDE),
    "list_items": (*_PAGE, _INCLUDE),
    "create_items": (_INCLUDE,),
    "retrieve_item": (_INCLUDE,),
    "list_messages": _PAGE,
    "list_completions": (
        *_PAGE,
        ("model", _STRING, "Only completions of this model."),
        ("metadata", {"type": "object", "additionalProperties": _STRING}, "Only completions with these pairs."),
    ),
}
"""Name, schema and description of the parameters in the query, by the name of the handler."""
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
    403: "The API key is not that of an operator.",
    404: "What the path or the body names does not exist.",
    409: "The name belongs to another model, or the file to a batch that has not ended.",
    413: "The body is too large.",
    415: "The body is not JSON, or has an unknown encoding.",
    429: "The server is busy. Retry after the time in `Retry-After`.",
    500: "The server or the model's turn failed.",
    503: "The model is not ready, or the store is unavailable. Retry the request.",
}


def build_document(routes: Iterable[BaseRoute], *, needs_key: bool) -> Json:
    """Returns the document. `needs_key`: the server has API keys."""
    paths: dict[str, Json] = {}
    for route in sorted(routes, key=lambda route: route.path_format):
        if isinstance(route, HTTPRoute):
            operations = {method: _operation(route, handler) for method, handler in _handlers(route)}
            paths[route.path_format] = dict(sorted(operations.items()))
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}, "x-api-key": _API_KEY_HEADER}
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Antiphon", "version": version("antiphon"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": ERROR_SCHEMAS | reply_schemas(dict.fromkeys(REPLY_TYPES.values())),
            "securitySchemes": schemes,
        },
        "security": [{name: []} for name in schemes] if needs_key else [],
    }


_API_KEY_HEADER: Json = {"type": "apiKey", "in": "header", "name": "x-api-key"}
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


def _operation(route: HTTPRoute, handler: HTTPRouteHandler) -> Json:
    name, path = handler.fn.__name__, route.path_format
    endpoint = declared_endpoint(handler) or UNKNOWN_ENDPOINT
    kind = endpoint.body
    body = OTHER_BODIES.get(name) if kind is None or isinstance(kind, Form) else body_schema(kind)
    fields = frozenset(body["properties"]) if body else frozenset(key for key, _, _ in QUERY_PARAMETERS.get(name, ()))
    summary, _, details = (handler.fn.__doc__ or name).partition("\n\n")
    operation: Json = {
        "operationId": name if path == endpoint.path.replace(":path}", "}") else name + re.sub(r"\W+", "_", path),
        "summary": " ".join(summary.split()),
        "tags": [_tag(path)],
        "parameters": [*_path_parameters(route), *_query_parameters(name)],
        "responses": _responses(route, name, endpoint, fields),
    }
    if details:
        operation["description"] = " ".join(details.split())
    if body is not None:
        operation["requestBody"] = {
            "required": name not in EMPTY_BODIES,
            "content": {BODY_TYPES.get(name, "application/json"): {"schema": body}},
        }
    return operation | ({"security": []} if endpoint.key is Key.NONE else {})


def _tag(path: str) -> str:
    """Returns the group of a path: the part after the version, or the first one."""
    parts = path.removeprefix("/").split("/")
    return parts[1] if len(parts) > 1 and re.fullmatch(r"v\d+", parts[0]) else parts[0]


def _path_parameters(route: HTTPRoute) -> list[Json]:
    return [{"name": name, "in": "path", "required": True, "schema": _STRING} for name in route.path_parameters]


def _query_parameters(name: str) -> list[Json]:
    return [
        {"name": key, "in": "query", "schema": schema, "description": description}
        | ({"style": "deepObject"} if schema["type"] == "object" else {})
        for key, schema, description in QUERY_PARAMETERS.get(name, ())
    ]


def _responses(route: HTTPRoute, name: str, endpoint: Endpoint, fields: frozenset[str]) -> Json:
    """Returns the replies by status: the reply itself, and every error that this operation may have."""
    reply_type = REPLY_TYPES.get(name)
    schema = {"type": "object"} if reply_type is None else {"$ref": REF_TEMPLATE.format(name=reply_type.__name__)}
    media_type = PLAIN_REPLIES.get(name, "application/json")
    content: Json = {media_type: {"schema": schema if media_type == "application/json" else _STRING}}
    if "stream" in fields:
        content["text/event-stream"] = {"schema": _STRING}
    responses: Json = {"200": {"description": "Success.", "content": content}}
    for status in _error_statuses(route, name, endpoint, fields):
        error = {"schema": {"$ref": REF_TEMPLATE.format(name=ERROR_NAMES[endpoint.shape])}}
        responses[str(status)] = {"description": ERROR_TEXTS[status], "content": {"application/json": error}}
    return responses


def _error_statuses(route: HTTPRoute, name: str, endpoint: Endpoint, fields: frozenset[str]) -> list[int]:
    if endpoint.key is Key.NONE:
        return [503] if name == "get_ready" else []
    is_post = endpoint.method == "POST"
    has_body = is_post and bool(fields)
    conditions = {
        400: has_body or name in QUERY_PARAMETERS or is_post,
        401: True,
        403: endpoint.key is Key.OPERATOR or name == "list_usage",
        404: bool(route.path_parameters) or bool({"model", "lora_name"} & fields),
        409: "lora_path" in fields or name == "delete_file",
        413: has_body,
        415: has_body,
        429: endpoint.starts is not None or "model" in fields,
        500: True,
        503: has_body or bool(route.path_parameters),
    }
    return [status for status, applies in conditions.items() if applies]
