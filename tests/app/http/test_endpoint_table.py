"""The table of endpoints: it agrees with Litestar's, every handler is declared, and a wrong match reaches no handler."""

import asyncio
import random
import re
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import iscoroutinefunction
from typing import Any, get_args

import pytest
from litestar import Litestar
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from msgspec import structs

from antiphon.app.http.asgi import AsgiMessage
from antiphon.app.http.endpoints.endpoint import UNKNOWN_ENDPOINT, Endpoint, Form, Key, declared_endpoint
from antiphon.app.http.endpoints.table import EndpointTable, Lookup, Match, MethodNotAllowed, NotFound
from antiphon.app.http.request_state import SCOPE_KEY, RequestState
from antiphon.app.main.application import ENDPOINT_TABLE, require_same_endpoint
from antiphon.app.main.table import ENDPOINTS, ROUTE_HANDLERS
from antiphon.app.routes.error_handlers import EXCEPTION_HANDLERS
from antiphon.app.turn_types.turn_stats import Api
from tests.app.http.endpoints_page import render_page
from tests.counts import FULL_COUNTS
from tests.syntax import ROOT

NUM_RANDOM_PATHS = 100_000 if FULL_COUNTS else 10_000
METHODS = ("GET", "POST", "PUT", "DELETE")
PATHS = [path for each in ENDPOINTS for path in each.paths]
SEGMENTS = sorted({part for path in PATHS for part in path.split("/")[1:] if "{" not in part} | {"x1", "{}", "a b"})


@pytest.fixture(scope="module")
def litestar() -> Litestar:
    return Litestar(
        ROUTE_HANDLERS, guards=[require_same_endpoint], exception_handlers=EXCEPTION_HANDLERS, openapi_config=None
    )


def describe(lookup: Lookup) -> tuple[Endpoint | None, str]:
    if isinstance(lookup, Match):
        return lookup.endpoint, lookup.template
    return None, "not allowed" if isinstance(lookup, MethodNotAllowed) else "not found"


def find_in_litestar(litestar: Litestar, method: str, path: str) -> tuple[Endpoint | None, str]:
    try:
        _, handler, _, _, template = litestar.asgi_router.handle_routing(path, method)  # type: ignore[arg-type]
    except MethodNotAllowedException:
        return None, "not allowed"
    except NotFoundException:
        return None, "not found"
    return declared_endpoint(handler), template


def choose_path(chooser: random.Random) -> str:
    """Returns a random path, or the path of an endpoint with some segments exchanged, left out or added."""
    if chooser.random() < 0.3:
        return "/" + "/".join(chooser.choices(SEGMENTS, k=chooser.randint(1, 6)))
    parts = chooser.choice(PATHS).split("/")[1:]
    parts = [chooser.choice(SEGMENTS) if "{" in part or chooser.random() < 0.1 else part for part in parts]
    change = chooser.random()
    if change < 0.2:
        parts.append(chooser.choice(SEGMENTS))
    elif change < 0.4 and len(parts) > 1:
        parts.pop()
    return "/" + "/".join(parts)


def test_table_and_litestar_find_the_same_handlers(litestar: Litestar) -> None:
    chooser, found = random.Random(9), dict.fromkeys(PATHS, 0)
    table = EndpointTable(ENDPOINTS)
    for _ in range(NUM_RANDOM_PATHS):
        path, method = choose_path(chooser), chooser.choice(METHODS)
        lookup = table.find(method, path)
        assert describe(lookup) == find_in_litestar(litestar, method, path), (method, path)
        if isinstance(lookup, Match):
            declared = next(each for each in lookup.endpoint.paths if each.replace(":path}", "}") == lookup.template)
            found[declared] += 1
    assert min(found.values()) > 0, found


def test_every_handler_has_a_declaration() -> None:
    assert [declared_endpoint(handler) for handler in ROUTE_HANDLERS] == [*ENDPOINTS]
    for handler, declared in zip(ROUTE_HANDLERS, ENDPOINTS, strict=True):
        paths = {re.sub(r"{(\w+)}", r"{\1:str}", path) for path in declared.paths}
        assert (handler.http_methods, handler.paths) == ({declared.method}, paths)


def test_declarations_are_consistent() -> None:
    starting = [each for each in ENDPOINTS if each.starts]
    assert sorted(each.starts for each in starting if each.starts) == sorted(get_args(Api))
    for each in ENDPOINTS:
        assert each.method == "POST" or each.body is None, each.path
        assert (each.method == "DELETE") == (each.action == "delete"), each.path
        assert each.path.startswith("/v1/inspect") == (each.key is Key.INSPECTION), each.path
        assert each.path.startswith("/v1/admin") == (each.key is Key.OPERATOR), each.path
    assert {each.path for each in ENDPOINTS if each.key is Key.NONE} == {"/health", "/ready", "/openapi.json"}
    assert {each.path for each in ENDPOINTS if isinstance(each.body, Form)} == {
        "/v1/files",
        "/v1/uploads/{upload_id}/parts",
    }


@pytest.mark.parametrize(
    ("path", "key", "shape"),
    [
        ("/v1/inspect/nope", Key.INSPECTION, "openai"),
        ("/v1/admin", Key.OPERATOR, "openai"),
        ("/v1/admin/nope/x", Key.OPERATOR, "openai"),
        ("/v1/messages/batches", Key.CLIENT, "anthropic"),
        ("/v1/files/x/nope", Key.CLIENT, "by_header"),
        ("/api", Key.CLIENT, "ollama"),
        ("/api/chat", Key.CLIENT, "ollama"),
        ("/health/x", Key.CLIENT, "openai"),
        ("/v1/nope", Key.CLIENT, "openai"),
        ("/nope", Key.CLIENT, "openai"),
    ],
)
def test_unknown_path_has_the_key_and_the_shape_of_what_is_around_it(path: str, key: Key, shape: str) -> None:
    lookup = ENDPOINT_TABLE.find("POST", path)
    assert isinstance(lookup, NotFound)
    assert (lookup.endpoint.key, lookup.endpoint.shape, lookup.endpoint.is_limited) == (key, shape, False)


def test_other_method_has_the_rights_of_its_path_and_no_more() -> None:
    for declared in ENDPOINTS:
        for path in declared.paths:
            lookup = ENDPOINT_TABLE.find("PATCH", path)
            assert isinstance(lookup, MethodNotAllowed)
            rights = lookup.endpoint
            assert (rights.key, rights.shape) == (declared.key, declared.shape)
            assert (rights.body, rights.starts, rights.counts, rights.action) == (None, None, False, "")


def test_path_with_two_rights_is_refused() -> None:
    for other in (
        Endpoint("GET", "/a"),
        Endpoint("POST", "/a", key=Key.OPERATOR),
        Endpoint("POST", "/a", traced=False),
    ):
        with pytest.raises(ValueError, match="/a: "):
            EndpointTable((Endpoint("GET", "/a"), other))


def test_websocket_is_found_at_its_path_alone() -> None:
    [socket] = [each for each in ENDPOINT_TABLE.endpoints if each.method == "WEBSOCKET"]
    assert ENDPOINT_TABLE.find("WEBSOCKET", "/v1/responses").endpoint is socket
    shapes = {
        "/v1/messages": "anthropic",
        "/v1/messages/x": "anthropic",
        "/v1/files/x": "by_header",
        "/api/x": "ollama",
    }
    for path in ("/", "/ui/", "/v1/responses/x", "/v1/inspect/nope", "/v1/admin/drain", "/health", *shapes):
        lookup = ENDPOINT_TABLE.find("WEBSOCKET", path)
        rights = structs.replace(UNKNOWN_ENDPOINT, shape=shapes.get(path, "openai"))
        assert isinstance(lookup, NotFound) and structs.asdict(lookup.endpoint) == structs.asdict(rights)


async def request_health(litestar: Litestar, method: str, match: Lookup) -> int:
    """Sends a request to `/health` that passed the checks of `match`. Returns the status of its response."""
    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": "/health",
        "raw_path": b"/health",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "state": {},
        "client": None,
        "server": ("localhost", 80),
        "asgi": {"version": "3.0"},
        SCOPE_KEY: RequestState(match=match),
    }
    await litestar(scope, receive, send)  # type: ignore[arg-type]
    return int(sent[0]["status"])


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_wrong_match_reaches_no_handler(litestar: Litestar, method: str) -> None:
    """If the two tables differed, the request would have passed the checks of another endpoint."""
    forged = ("/health", "/v1/models")
    statuses = {path: await request_health(litestar, method, ENDPOINT_TABLE.find("GET", path)) for path in forged}
    assert statuses == {
        "/health": {"GET": 200, "OPTIONS": 404, "DELETE": 405}[method],
        "/v1/models": 404 if method != "DELETE" else 405,
    }


class CountingExecutor(ThreadPoolExecutor):
    """An executor that counts what it is given."""

    num_submitted = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.num_submitted += 1
        return super().submit(*args, **kwargs)


async def test_request_is_routed_without_a_thread(litestar: Litestar) -> None:
    """Litestar runs each of its guards and hooks in a thread that is no coroutine function."""
    with CountingExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        assert await request_health(litestar, "GET", ENDPOINT_TABLE.find("GET", "/health")) == 200
        assert executor.num_submitted == 0
    assert all(each.prepare is None or iscoroutinefunction(each.prepare) for each in ENDPOINTS)


def test_page_of_endpoints_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/endpoints.md").read_text()
    assert render_page() == page, "run: python -m tests.app.http.endpoints_page > docs/reference/endpoints.md"
