"""The target of a request: its query, and one canonical form of its path, which every reader of the path sees.

The router takes several spellings for one path: it drops empty segments and a last slash, and adds a first slash.
Checks that compare paths must not differ from it, so a request whose path is not canonical reaches no route.

A canonical path begins with one slash and has no empty segment, no segment `.` or `..`, no control character and no
backslash. An escape of any other character is that character (RFC 3986, 6.2.2.2), except for the slash, which is
escaped only in a parameter that takes the rest of a path. Sources: RFC 3986, section 6.2.2; RFC 9112, section 3.2.
Unlike RFC 9112 asks, the absolute form is refused, because its host would be a second `Host`.
"""

import posixpath
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote

from antiphon.app.errors import ANTHROPIC_HEADER, ApiError, clip_text
from antiphon.app.http.asgi import AsgiScope
from antiphon.app.http.endpoints.endpoint import Endpoint, Key
from antiphon.app.http.endpoints.table import (
    EndpointTable,
    Lookup,
    Match,
    NotFound,
    Redirect,
    reduce_to_rights,
)
from antiphon.app.requests.query_fields import Query, decode_query

REDIRECTED_METHODS = frozenset({"GET", "HEAD"})
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
_ABSOLUTE_FORM = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
"""Beginning of the absolute form."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ufffd]")
_SAFE_IN_LOCATION = "%!$&'()*+,;=:@~"


def find_target(scope: AsgiScope, table: EndpointTable) -> Lookup:
    """Sets the path of a scope to its canonical form, and finds its endpoint.

    A path that was sent in another form is not found, whatever stands at its canonical form; a last slash is redirected
    for GET and HEAD, unless it is the page's. A path below which the application is mounted (`root_path`) is removed.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if root := scope.get("root_path", ""):
        raw, scope["root_path"] = raw.removeprefix(quote(root).encode()), ""
    sent = unquote(raw.decode("latin-1"))
    path = posixpath.normpath("/" + _ABSOLUTE_FORM.sub("", sent).lstrip("/"))
    if sent.startswith(f"{path}/") and table.ends_in_slash(path):
        path = f"{path}/"
    scope["path"] = path
    method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
    if method == "WEBSOCKET" and scope["type"] == "http":
        method = ""  # a request line may have any word: this one is no upgrade, and no method of an endpoint
    found = table.find(method, path)
    is_plain = not _FORBIDDEN.search(sent) and _may_escape_slashes(raw, path, table)
    if is_plain and sent == path:
        return found
    rights = reduce_to_rights(found.endpoint)
    has_last_slash = is_plain and raw.endswith(b"/") and sent == f"{path}/"
    is_reading = scope["type"] == "http" and scope["method"] in REDIRECTED_METHODS
    if has_last_slash and is_reading and isinstance(found, Match) and rights.key is not Key.PAGE:
        return Redirect(rights, sent=sent, location=_build_location(scope, raw))
    return NotFound(rights, sent=sent)


def build_refusal(sent: str, method: str, path: str) -> ApiError:
    """Returns the error for a path that was sent in another form than `path`, the canonical one."""
    message = (
        f"Unknown request URL: {method} {clip_text(sent)}. Send '{clip_text(path)}': a path begins with one "
        "'/', has no empty segment, '.', '..', '\\' or control character, and '%2F' only in the name of a model."
    )
    return ApiError(404, "unknown_url", message)


def read_query(endpoint: Endpoint, scope: AsgiScope, headers: Mapping[str, str]) -> Query:
    """Returns the query of a request. Raises `ApiError` 400."""
    kind = (endpoint.anthropic_query if ANTHROPIC_HEADER in headers else None) or endpoint.query
    sent: bytes = scope.get("query_string", b"")
    return decode_query(kind, parse_qsl(sent.decode("latin-1"), keep_blank_values=True))


def _may_escape_slashes(raw: bytes, path: str, table: EndpointTable) -> bool:
    """Tells whether no slash of a path is escaped that separates segments."""
    if not _ESCAPED_SLASH.search(raw):
        return True
    entry = table.find_path(path)
    num_fixed = 0 if entry is None else entry.num_fixed
    return num_fixed > 0 and not _ESCAPED_SLASH.search(b"/".join(raw.split(b"/")[:num_fixed]))


def _build_location(scope: AsgiScope, raw: bytes) -> str:
    """Returns a reference from a path with a last slash to the one without. A proxy's prefix stays."""
    last = raw.removesuffix(b"/").rpartition(b"/")[2]
    location = "../" + quote(last, safe=_SAFE_IN_LOCATION)
    query: bytes = scope.get("query_string", b"")
    return location + ("?" + quote(query, safe=_SAFE_IN_LOCATION + "/?[]") if query else "")
