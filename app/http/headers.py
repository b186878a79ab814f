"""Readers of request headers: names and values, their sizes, the API key, the request id, and the name in `Host`."""

import re
import secrets

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import AsgiScope

MAX_REQUEST_HEADER_BYTES = 64 * 1024
MAX_REQUEST_HEADERS = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def decode_headers(scope: AsgiScope) -> dict[str, str]:
    """Returns the headers by name, in lower case as ASGI has them. The last of several headers with one name wins."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def check_header_limits(scope: AsgiScope) -> None:
    """Raises `ApiError` 431 for too many or too large headers. HTTP parsers limit only heads that arrive in pieces."""
    pairs = scope["headers"]
    if (
        len(pairs) > MAX_REQUEST_HEADERS
        or sum(len(name) + len(value) for name, value in pairs) > MAX_REQUEST_HEADER_BYTES
    ):
        message = f"The headers exceed {MAX_REQUEST_HEADERS} fields or {MAX_REQUEST_HEADER_BYTES} bytes in total."
        raise ApiError(431, "headers_too_large", message)


def new_request_id() -> str:
    """Returns a new id of a request."""
    return f"req_{secrets.token_hex(12)}"


def choose_request_id(headers: dict[str, str]) -> str:
    """Returns the client's `X-Request-Id` if it is harmless, so that both sides' logs can be matched; else a new id."""
    client_id = headers.get("x-request-id", "")
    return client_id if _REQUEST_ID.fullmatch(client_id) else new_request_id()


def sent_key(headers: dict[str, str]) -> bytes:
    """Returns the API key of a request: a bearer token, or `x-api-key` as Anthropic's clients send it; else b""."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    sent = credentials if scheme.lower() == "bearer" else ""
    return (sent or headers.get("x-api-key", "")).encode("latin-1").strip()


def host_name(host: str) -> str:
    """Returns the name in `name`, `name:port`, `[v6]` or `[v6]:port`, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()
