"""Answers requests for the page and for the root. No reply holds anything of its request, and none has CORS headers.

The page needs no API key, because it is the same for everybody; what it shows, it fetches with a key.
"""

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.endpoints.endpoint import Endpoint, Key
from antiphon.app.http.headers import decode_headers
from antiphon.app.page.assets import StaticFile, load_page_files

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # A string can then become markup or code in no way at all.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SAFETY_HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)
"""Headers of every reply: the browser loads and runs only what this server sends, and shows it in no frame."""
LASTING = "public, max-age=31536000, immutable"
"""Caching of files whose path changes with their content."""
PAGE_ENDPOINTS = (
    *(Endpoint("GET", path, key=Key.PAGE) for path in ("/", "/ui")),
    # A page asks for many files, so these have no spans.
    *(Endpoint("GET", path, key=Key.PAGE, traced=False) for path in ("/ui/", "/ui/{view:path}")),
)
READING_METHODS = ("GET", "HEAD")
_ENCODED_SAFETY_HEADERS = [(name.encode(), value.encode()) for name, value in SAFETY_HEADERS]


class PageEndpoint:
    """Serves `/`, and the page at `/ui/` unless it is switched off."""

    def __init__(self, version: str, *, enabled: bool) -> None:
        self._files = load_page_files() if enabled else None
        page = {"page": "ui/"} if enabled else {}
        links = page | {"api": "v1", "openapi": "openapi.json", "health": "health", "ready": "ready"}
        self._root = msgspec.json.encode({"name": "antiphon", "version": version, "links": links})

    async def __call__(self, scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend) -> None:
        """Answers a request. Raises `ApiError` for paths without a file, and for methods other than GET and HEAD."""
        path, headers = scope["path"], decode_headers(scope)
        if path != "/" and self._files is None:
            raise _unknown_path()
        if scope["method"] not in READING_METHODS:
            allow = (("allow", ", ".join(READING_METHODS)), *SAFETY_HEADERS)
            raise ApiError(405, "method_not_allowed", "The page answers GET and HEAD only.", headers=allow)
        if path == "/" and (self._files is None or not accepts_html(headers.get("accept", ""))):
            await _reply(send, 200, [("vary", "Accept"), ("content-type", "application/json")], self._root)
        elif path == "/":
            await _reply(send, 307, [("vary", "Accept"), ("location", "ui/")])
        elif path == "/ui":
            await _reply(send, 307, [("location", "ui/")])
        else:
            await self._send_file(send, path, headers.get("if-none-match", ""))

    async def _send_file(self, send: AsgiSend, path: str, known_etags: str) -> None:
        assert self._files is not None
        file, lasts = self._files.find_file(path)
        if file is None:
            raise _unknown_path()
        pairs = [("cache-control", LASTING if lasts else "no-cache"), ("etag", file.etag.decode())]
        if names_etag(known_etags, file):
            await _reply(send, 304, pairs)
        else:
            await _reply(send, 200, [*pairs, ("content-type", file.media_type.decode())], file.content)


def accepts_html(accept: str) -> bool:
    """Tells whether an `Accept` header names HTML, as those of browsers do for a page."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accept.split(","))


def names_etag(header: str, file: StaticFile) -> bool:
    """Tells whether `If-None-Match` names a file's ETag. Weak ones are equal to strong ones here (RFC 9110, 13.1.2)."""
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or file.etag.decode() in tags


def _unknown_path() -> ApiError:
    return ApiError(404, "unknown_url", "There is no page at this path.", headers=SAFETY_HEADERS)


async def _reply(send: AsgiSend, status: int, pairs: list[tuple[str, str]], body: bytes = b"") -> None:
    """Sends a reply with these headers and those of every reply. HEAD's body is left out by the connection."""
    encoded = [(name.encode(), value.encode()) for name, value in pairs]
    if status != 304:
        encoded.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": [*encoded, *_ENCODED_SAFETY_HEADERS]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
