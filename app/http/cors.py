"""Cross-origin resource sharing (CORS): which web pages of other origins may use the server from a browser.

A browser sends the page's origin with each request, asks with a preflight before a request that a form could not send,
and shows a page only replies that name its origin. Programs other than browsers are not affected.
Source: the Fetch standard, section "CORS protocol". Cookies are not used, so credentials are never allowed.
"""

import contextlib
import hmac
import re
from collections.abc import Mapping

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.asgi import HeaderPairs
from antiphon.app.http.endpoints.endpoint import Endpoint

EXPOSED_HEADERS = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-should-retry",
    "openai-processing-ms",
    "www-authenticate",
    "allow",
    "x-antiphon-dropped",
    *(f"x-ratelimit-{name}-{unit}" for unit in ("requests", "tokens") for name in ("limit", "remaining", "reset")),
)
"""Response headers that pages may read: those that the server sends to clients, and `openai-processing-ms`, which
OpenAI's clients read and a gateway may add."""
PREFLIGHT_MAX_AGE_S = 86_400
"""Time for which a browser may keep the answer to a preflight. Browsers have lower limits of their own."""
ALLOWED_METHODS = b"GET, POST, DELETE"

OTHER_SITES = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` of requests that pages of other origins cause, also without CORS."""

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s/?#@:*\[\]]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?: *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


def parse_origin(value: str) -> str:
    """Returns an origin in the form in which browsers send it: in lower case, without the default port.

    `*`, which means every origin, is returned unchanged. Raises `ValueError` for other text.
    """
    if value == "*":
        return value
    match = _ORIGIN.fullmatch(value.lower())
    if match is None:
        raise ValueError(f"{value!r} is not an origin; write scheme://host or scheme://host:port, or *")
    scheme, host, port = match.groups()
    return f"{scheme}://{host}" + (f":{port}" if port and port != _DEFAULT_PORTS.get(scheme) else "")


class CorsPolicy:
    """Origins whose pages may use the server, and the headers that tell this to browsers."""

    def __init__(self, allowed_origins: tuple[str, ...]) -> None:
        self._origins = frozenset(allowed_origins)
        self._allows_all = "*" in allowed_origins
        self._expose = (b"access-control-expose-headers", ", ".join(EXPOSED_HEADERS).encode())

    def check_origin(self, origin: str) -> None:
        """Raises `ApiError` 403 if pages of this origin may not use the server."""
        if self._allows_all or origin in self._origins:
            return
        message = f"Web pages of the origin '{clip_text(origin)}' are not allowed."
        with contextlib.suppress(ValueError):
            message += f" Start the server with `--allowed-origin {clip_text(parse_origin(origin))}`."
        raise ApiError(403, "origin_not_allowed", message)

    def reply_headers(self, origin: str | None) -> HeaderPairs:
        """Returns the headers for a reply to a request with this `Origin`: none at all if no origin is allowed."""
        if not self._origins:
            return ()
        vary = (b"vary", b"Origin")  # a cache must not give one origin's reply to another
        if self._allows_all:
            return ((b"access-control-allow-origin", b"*"), self._expose, vary)
        if origin is None or origin not in self._origins:
            return (vary,)
        return ((b"access-control-allow-origin", origin.encode()), self._expose, vary)

    def preflight_headers(self, headers: Mapping[str, str]) -> HeaderPairs:
        """Returns the headers for the answer to a preflight, in addition to those of every reply. Raises `ApiError`."""
        self.check_origin(headers["origin"])
        pairs = [
            (b"access-control-allow-methods", ALLOWED_METHODS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_S),
        ]
        # The requested names are returned, because `*` would not include Authorization.
        names = headers.get("access-control-request-headers", "")
        if _HEADER_NAMES.fullmatch(names):
            pairs.append((b"access-control-allow-headers", names.encode()))
        if headers.get("access-control-request-private-network") == "true":
            pairs.append((b"access-control-allow-private-network", b"true"))
        return tuple(pairs)


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Tells whether a request is a browser's preflight. It carries no key, whatever the real request will carry."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def check_fetch_site(endpoint: Endpoint, headers: Mapping[str, str]) -> None:
    """Raises `ApiError` 403 if a page of another origin caused a request, for example as the address of a picture.

    If the endpoint is not private, a request with an `Origin` is left to CORS, and a link may be followed: its page
    sees nothing of the reply.
    """
    if headers.get("sec-fetch-site", "").lower() not in OTHER_SITES:
        return
    if endpoint.is_private or ("origin" not in headers and headers.get("sec-fetch-mode", "").lower() != "navigate"):
        raise ApiError(403, "origin_not_allowed", "Pages of other origins may not use this path.")


def check_page_key(sent: bytes, key: bytes) -> None:
    """Raises `ApiError` 401 without the page's key. Other users of this machine reach a loopback port, too."""
    if not key or not hmac.compare_digest(sent, key):
        message = "Incorrect page key." if sent else "You didn't provide the page's key."
        message += " Open the address that the server printed, or send the key of its runtime file as an API key."
        raise ApiError(401, "invalid_page_key", message, headers=(("www-authenticate", "Bearer"),))
