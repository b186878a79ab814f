"""Errors of API keys: unknown, expired, not allowed."""

import time

from antiphon.app.errors import ApiError
from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.options.api_keys import NO_KEY, ApiKey


def refuse_key(message: str) -> ApiError:
    """Returns the error of a request whose key is not accepted."""
    return ApiError(401, "invalid_api_key", message, headers=(("www-authenticate", "Bearer"),))


def find_key(keys: KeyRing, sent: bytes) -> ApiKey:
    """Returns the API key that a client sent; `NO_KEY` if none is required. Raises `ApiError` 401."""
    if not keys.is_required:
        return NO_KEY
    key = keys.find(sent) if sent else None
    if key is None:
        message = "Incorrect API key provided." if sent else "You didn't provide an API key."
        raise refuse_key(f"{message} Send it as a header: 'Authorization: Bearer YOUR_KEY'.")
    return check_expiry(key)


def require_operator(key: ApiKey) -> None:
    """Raises `ApiError` 403 for the key of a client, and for no key."""
    if key.role != "operator":
        message = "This needs an API key whose role is 'operator'."
        raise ApiError(403, "insufficient_permissions", message)


def check_expiry(key: ApiKey) -> ApiKey:
    """Returns the key. Raises `ApiError` 401 if it has expired."""
    if key.is_expired(time.time()):
        raise refuse_key("This API key has expired.")
    return key


def refresh_key(keys: KeyRing, key: ApiKey) -> ApiKey:
    """Returns a key as it is now, for a connection that was opened with it. Raises `ApiError` 401."""
    current = keys.refresh(key)
    if current is None:
        raise refuse_key("This API key is not valid any more.")
    return check_expiry(current)
