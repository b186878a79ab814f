"""Replies of `/v1/inspect`: no cache keeps them, and no page of another site may use them."""

from typing import Any

import msgspec
from litestar.response import Response, Stream

LINES = "application/x-ndjson"
HEADERS = {
    "cache-control": "no-store",
    "vary": "authorization",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


def json_page(content: object) -> Response[bytes]:
    """Returns a reply with a JSON value."""
    return text_page(msgspec.json.encode(content), "application/json")


def text_page(content: bytes, media_type: str = "text/plain; charset=utf-8") -> Response[bytes]:
    """Returns a reply with a text."""
    return Response(content, status_code=200, media_type=media_type, headers=HEADERS)


def lines_page(content: bytes | Stream) -> Response[Any]:
    """Returns a reply with JSON lines, whole or as they come."""
    if isinstance(content, bytes):
        return text_page(content, LINES)
    content.headers.update(HEADERS)
    return content


def missing_page(reason: str) -> Response[bytes]:
    """Returns the reply in place of a part that was not recorded."""
    return json_page({"missing": reason})


def file_page(content: bytes, name: str) -> Response[bytes]:
    """Returns a reply that browsers save under a name, and never show."""
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(content, status_code=200, media_type="application/octet-stream", headers=headers)
