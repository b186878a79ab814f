"""The path of a request: one canonical form, which every reader of the path sees.

The router takes several spellings for one path: it drops empty segments and a last slash, and adds a first slash.
Checks that compare paths must not differ from it, so a request whose path is not canonical reaches no route.

A canonical path begins with one slash and has no empty segment, no segment `.` or `..`, no control character and no
backslash. An escape of any other character is that character (RFC 3986, 6.2.2.2), except for the slash, which is
escaped only in the name of a model. Sources: RFC 3986, section 6.2.2; RFC 9112, section 3.2. Unlike RFC 9112 asks, the
absolute form is refused, because its host would be a second `Host`.
"""

import posixpath
import re
from urllib.parse import quote, unquote

from msgspec import Struct

from antiphon.app.base.errors import ApiError, clip_text
from antiphon.app.http.asgi import AsgiScope

MODELS_PREFIX = "/v1/models/"
"""Below this path a name may contain slashes, which clients escape."""
UI_PREFIX = "/ui/"
"""Path of the web page, which ends in a slash. Nothing that begins like it is redirected."""
REDIRECTED_METHODS = frozenset({"GET", "HEAD"})
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
_ABSOLUTE_FORM = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
"""Beginning of the absolute form."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ufffd]")
_SAFE_IN_LOCATION = "%!$&'()*+,;=:@~"


class RefusedTarget(Struct, frozen=True):
    """The path of a request as it was sent, which is not canonical."""

    sent: str
    location: str = ""
    """Relative reference to the canonical path; empty if the request is not redirected."""

    def build_error(self, method: str, path: str) -> ApiError:
        """Returns the error for a request. `path` is the canonical path that is next to the one that was sent."""
        message = (
            f"Unknown request URL: {method} {clip_text(self.sent)}. Send '{clip_text(path)}': a path begins with one "
            "'/', has no empty segment, '.', '..', '\\' or control character, and '%2F' only in the name of a model."
        )
        return ApiError(404, "unknown_url", message)


def canonicalize_path(scope: AsgiScope) -> RefusedTarget | None:
    """Sets the path of a scope to its canonical form. Returns the path that was sent if it was another one.

    A path below which the application is mounted (`root_path`) is removed.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if root := scope.get("root_path", ""):
        raw, scope["root_path"] = raw.removeprefix(quote(root).encode()), ""
    sent = unquote(raw.decode("latin-1"))
    path = posixpath.normpath("/" + _ABSOLUTE_FORM.sub("", sent).lstrip("/"))
    is_page = sent.lower().startswith(UI_PREFIX)
    if path == UI_PREFIX[:-1] and is_page:
        path = UI_PREFIX
    scope["path"] = path
    is_plain = not _FORBIDDEN.search(sent) and _may_escape_slashes(raw, path)
    if is_plain and sent == path:
        return None
    has_last_slash = raw.endswith(b"/") and sent == f"{path}/" and path != "/" and not is_page
    is_redirected = is_plain and has_last_slash and scope["type"] == "http" and scope["method"] in REDIRECTED_METHODS
    return RefusedTarget(sent, _build_location(scope, raw) if is_redirected else "")


def _may_escape_slashes(raw: bytes, path: str) -> bool:
    """Tells whether no slash of a path is escaped that separates segments."""
    if not _ESCAPED_SLASH.search(raw):
        return True
    prefix = MODELS_PREFIX.count("/")
    return path.startswith(MODELS_PREFIX) and not _ESCAPED_SLASH.search(b"/".join(raw.split(b"/")[:prefix]))


def _build_location(scope: AsgiScope, raw: bytes) -> str:
    """Returns a reference from a path with a last slash to the one without. A proxy's prefix stays."""
    last = raw.removesuffix(b"/").rpartition(b"/")[2]
    location = "../" + quote(last, safe=_SAFE_IN_LOCATION)
    query: bytes = scope.get("query_string", b"")
    return location + ("?" + quote(query, safe=_SAFE_IN_LOCATION + "/?[]") if query else "")
