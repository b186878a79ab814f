"""The table of all endpoints: finds the one that a method and a canonical path belong to, before any other check.

Litestar routes the requests that pass the checks, with a table of its own. A guard in `app.main.application` compares
the two, so that a request never reaches another handler than the one whose rights were checked.
"""

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.endpoints.endpoint import UNKNOWN_ENDPOINT, Endpoint, Key
from antiphon.app.turn_types.turn_stats import Api

REST_SUFFIX = ":path}"
"""Ends the parameter that takes the rest of a path."""


class Lookup(Struct, frozen=True, eq=False):
    """Result of a look into the table. Only a `Match` has a handler."""

    endpoint: Endpoint
    """The endpoint, or the rights and the shape of the errors at this path."""
    template: str = ""
    """Path of the endpoint as it is declared, without types of parameters; empty for an unknown path."""
    sent: str = ""
    """The path as it was sent, if it was not canonical."""


class Match(Lookup, frozen=True, eq=False):
    """An endpoint."""

    allow: str = ""
    """Methods that are answered at this path, as the header `Allow` has them."""


class MethodNotAllowed(Lookup, frozen=True, eq=False):
    """A path of endpoints with other methods."""

    allow: str = ""


class NotFound(Lookup, frozen=True, eq=False):
    """A path that no endpoint has."""


class Redirect(Lookup, frozen=True, eq=False):
    """A path that is canonical without its last slash."""

    location: str = ""
    """Relative reference to the canonical path."""


UNKNOWN = NotFound(UNKNOWN_ENDPOINT)


class PathEntry(Struct, frozen=True, eq=False):
    """All that is declared at one path."""

    template: str
    by_method: dict[str, Match]
    otherwise: MethodNotAllowed
    num_fixed: int
    """Number of slashes before the parameter that takes the rest of the path; 0 without one."""


class _Node:
    """Paths with parameters that have the same beginning."""

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.entry: PathEntry | None = None
        self.rest: PathEntry | None = None


class EndpointTable:
    """Compiled declarations. Raises `ValueError` if two have the same method and path, or one path has two rights."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._static: dict[str, PathEntry] = {}
        self._root = _Node()
        by_path: defaultdict[str, list[Endpoint]] = defaultdict(list)
        for each in self.endpoints:
            for path in each.paths:
                by_path[path].append(each)
        for path, declared in by_path.items():
            self._add_path(path, _build_entry(path, declared))
        self._areas = _build_areas(by_path)

    def find(self, method: str, path: str) -> Lookup:
        """Returns what the table has for a method and a canonical path. A WebSocket is the method `WEBSOCKET`."""
        entry = self.find_path(path)
        if method == "WEBSOCKET":
            return self._find_socket(path, entry)
        if entry is None:
            return self._find_area(path)
        return entry.by_method.get(method, entry.otherwise)

    def find_path(self, path: str) -> PathEntry | None:
        """Returns what is declared at a canonical path, if anything."""
        entry = self._static.get(path)
        if entry is not None:
            return entry
        node = self._root
        for segment in path[1:].split("/"):
            child = node.literals.get(segment) or node.parameter
            if child is None:
                return node.rest
            node = child
        return node.entry

    def ends_in_slash(self, path: str) -> bool:
        """Tells whether a path is declared with a slash at its end, which this one lacks."""
        return f"{path}/" in self._static

    def list_starting(self) -> dict[str, Match]:
        """Returns the endpoints of POST requests that start turns, by their paths."""
        paths = [path for each in self.endpoints if each.starts and each.method == "POST" for path in each.paths]
        return {path: self._static[path].by_method["POST"] for path in paths}

    def list_batchable(self) -> list[str]:
        """Returns the paths that lines of batches may name."""
        return [each.path for each in self.endpoints if each.batch]

    def path_of(self, api: Api) -> str:
        """Returns the path of the requests that start turns of an API."""
        return next(each.path for each in self.endpoints if each.starts == api and each.method == "POST")

    def _add_path(self, path: str, entry: PathEntry) -> None:
        if "{" not in path:
            self._static[path] = entry
            return
        node = self._root
        for segment in path[1:].split("/"):
            if segment.endswith(REST_SUFFIX):
                node.rest = entry
                return
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        node.entry = entry

    def _find_socket(self, path: str, entry: PathEntry | None) -> Lookup:
        """Returns the WebSocket of a path. Other paths have the shape of their HTTP endpoints, but not their rights."""
        if entry is not None and "WEBSOCKET" in entry.by_method:
            return entry.by_method["WEBSOCKET"]
        around = self._find_area(path) if entry is None else entry.otherwise
        return NotFound(structs.replace(UNKNOWN_ENDPOINT, shape=around.endpoint.shape))

    def _find_area(self, path: str) -> NotFound:
        """Returns the rights and the shape that all endpoints around or below an unknown path have."""
        while path:
            if (found := self._areas.get(path)) is not None:
                return found
            path = path.rpartition("/")[0]
        return UNKNOWN


def _build_entry(path: str, declared: list[Endpoint]) -> PathEntry:
    template = path.replace(REST_SUFFIX, "}")
    by_method: dict[str, Endpoint] = {each.method: each for each in declared}
    if len(by_method) < len(declared) or len({(each.key, each.shape, each.traced) for each in declared}) > 1:
        raise ValueError(f"{path}: its endpoints have one method twice, or different keys, shapes or traces")
    rights = reduce_to_rights(declared[0])
    found = {**by_method, "OPTIONS": rights}
    if "GET" in by_method and by_method["GET"].answers_head:
        found["HEAD"] = by_method["GET"]
    allow = ", ".join(sorted(found.keys() - {"WEBSOCKET"}))
    return PathEntry(
        template,
        {method: Match(each, template, allow=allow) for method, each in found.items()},
        MethodNotAllowed(rights, allow=allow),
        path.partition("{")[0].count("/") if path.endswith(REST_SUFFIX) else 0,
    )


def reduce_to_rights(declared: Endpoint) -> Endpoint:
    """Returns an endpoint with the same key, shape and traces that has no body, starts nothing and counts nothing."""
    return Endpoint("OPTIONS", declared.path, key=declared.key, shape=declared.shape, traced=declared.traced)


def _build_areas(by_path: dict[str, list[Endpoint]]) -> dict[str, NotFound]:
    """Returns the rights of unknown paths by their beginning: what all endpoints below it have in common."""
    below: defaultdict[str, list[Endpoint]] = defaultdict(list)
    for path, declared in by_path.items():
        area = path.partition("/{")[0]
        while area:
            below[area] += declared
            area = area.rpartition("/")[0]
    return {area: NotFound(_find_common_rights(declared)) for area, declared in below.items()}


def _find_common_rights(declared: list[Endpoint]) -> Endpoint:
    keys, shapes = {each.key for each in declared}, {each.shape for each in declared}
    key = keys.pop() if len(keys) == 1 and declared[0].is_private else Key.CLIENT
    return structs.replace(UNKNOWN_ENDPOINT, key=key, shape=shapes.pop() if len(shapes) == 1 else "openai")


def require_match(lookup: Lookup, method: str, path: str) -> Match:
    """Returns the match. Raises `ApiError` 404 for an unknown path, and 405 for an unknown method."""
    if isinstance(lookup, Match):
        return lookup
    target = f"{method} {clip_text(path)}"
    if isinstance(lookup, MethodNotAllowed):
        raise ApiError(405, "method_not_allowed", f"Method not allowed: {target}.", headers=(("allow", lookup.allow),))
    message = f"Unknown request URL: {target}. GET /openapi.json lists those that are served."
    raise ApiError(404, "unknown_url", message)
