"""The canonical form of paths: which are refused, where others are redirected, and agreement with the router."""

import random
from functools import partial
from typing import Any

import httpx
import pytest
from litestar.utils.path import normalize_path

from antiphon.app.http.endpoints.table import Lookup, MethodNotAllowed, NotFound, Redirect
from antiphon.app.http.endpoints.target import build_refusal, find_target
from antiphon.app.main.application import ENDPOINT_TABLE
from tests.app.http.socket_client import exchange_bytes
from tests.counts import FULL_COUNTS
from tests.serving import RunningServer, scripted_registry, serve

SERVER = partial(serve, lambda: scripted_registry([{"name": "x", "output": ["y"]}], names=("org/name",)))
NUM_RANDOM_PATHS = 200_000 if FULL_COUNTS else 20_000
PIECES = (
    "/",
    "/",
    "//",
    "v1",
    "models",
    "ui",
    "admin",
    ".",
    "..",
    "%2f",
    "%2F",
    "%2e",
    "%61",
    "%",
    "%00",
    ";",
    "\\",
    "é",
)


def make_scope(raw: str, method: str = "GET", kind: str = "http", **more: Any) -> dict[str, Any]:
    # The application gets the path from the server unquoted, or as a test wrote it: the bytes alone count.
    return {"type": kind, "method": method, "path": "/ignored", "raw_path": raw.encode(), **more}


def find(scope: dict[str, Any]) -> Lookup:
    return find_target(scope, ENDPOINT_TABLE)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/", "/"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/%72esponses", "/v1/responses"),
        ("/v1/models/org%2Fname", "/v1/models/org/name"),
        ("/v1/models/org/name%2fmore", "/v1/models/org/name/more"),
        ("/v1/models/a:b;c@d,e", "/v1/models/a:b;c@d,e"),
        ("/v1/files/%C3%A9", "/v1/files/é"),
        ("/v1/files/...", "/v1/files/..."),
        ("/ui", "/ui"),
        ("/ui/", "/ui/"),
        ("/ui/turns/x", "/ui/turns/x"),
    ],
)
def test_canonical_path_is_unquoted(raw: str, path: str) -> None:
    scope = make_scope(raw)
    assert find(scope).sent == ""
    assert scope["path"] == path


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("//", "/"),
        ("v1/responses", "/v1/responses"),
        ("//v1/responses", "/v1/responses"),
        ("/v1//responses", "/v1/responses"),
        ("/v1/responses//", "/v1/responses"),
        ("/./v1/responses", "/v1/responses"),
        ("/v1/responses/.", "/v1/responses"),
        ("/v1/x/%2e%2E/responses", "/v1/responses"),
        ("/../v1/responses", "/v1/responses"),
        ("/v1%2fresponses", "/v1/responses"),
        ("/%2Fv1/responses", "/v1/responses"),
        ("/v1/responses%2f", "/v1/responses"),
        ("/v1/files/a%2Fb", "/v1/files/a/b"),
        ("/v1%2fmodels/x", "/v1/models/x"),
        ("/v1/models%2fx", "/v1/models/x"),
        ("/v1/models/%2fx", "/v1/models/x"),
        ("/v1/models/a%2f%2fb", "/v1/models/a/b"),
        ("/v1/models/a%2f..%2fb", "/v1/models/b"),
        ("/v1/models/a%2f", "/v1/models/a"),
        ("http://localhost/v1/responses", "/v1/responses"),
        ("HTTP://localhost:80/v1/admin/drain", "/v1/admin/drain"),
        ("*", "/*"),
        ("/v1/files/%00", "/v1/files/\0"),
        ("/v1/files/%0a/", "/v1/files/\n"),
        ("/v1/files/a%5cb", "/v1/files/a\\b"),
        ("/v1/files/%ff", "/v1/files/\ufffd"),
        ("/evil.example/", "/evil.example"),
        ("/UI/", "/UI"),
        ("/ui//", "/ui/"),
        ("/ui/.", "/ui/"),
        ("/ui/turns/", "/ui/turns"),
        ("/ui/../v1/admin/drain", "/v1/admin/drain"),
    ],
)
def test_other_paths_are_refused_and_compared_as_what_the_router_may_read(raw: str, path: str) -> None:
    scope = make_scope(raw)
    refused = find(scope)
    assert isinstance(refused, NotFound) and refused.sent
    assert f"'{path}'" in build_refusal(refused.sent, "GET", scope["path"]).message
    assert scope["path"] == path


@pytest.mark.parametrize(
    ("raw", "query", "location"),
    [
        ("/health/", b"", "../health"),
        ("/v1/models/", b"limit=1&after=a%2fb", "../models?limit=1&after=a%2fb"),
        ("/v1/models/org%2Fname/", b"", "../org%2Fname"),
        ("/v1/models/a:b/", b"", "../a:b"),
    ],
)
def test_last_slash_is_redirected_relatively(raw: str, query: bytes, location: str) -> None:
    refused = find(make_scope(raw, query_string=query))
    assert isinstance(refused, Redirect) and refused.location == location
    for method, kind in (("POST", "http"), ("DELETE", "http"), ("OPTIONS", "http"), ("GET", "websocket")):
        refused = find(make_scope(raw, method, kind, query_string=query))
        assert isinstance(refused, NotFound) and refused.sent


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/models", "/v1/inspect/turns", "/v1/admin/drain", "/ui/"])
def test_request_whose_method_is_called_websocket_is_one_of_another_method(path: str) -> None:
    found = find(make_scope(path, method="WEBSOCKET"))
    expected = find(make_scope(path, method="PATCH"))
    assert isinstance(found, MethodNotAllowed) and found is expected


def test_mounted_application_reads_the_path_below_its_root() -> None:
    scope = make_scope("/a%20b/v1/responses", root_path="/a b")
    assert find(scope).sent == ""
    assert (scope["path"], scope["root_path"]) == ("/v1/responses", "")
    assert isinstance(find(make_scope("/a//v1/responses", root_path="/a")), NotFound)


def test_path_without_its_bytes_is_read_as_it_is() -> None:
    scope = {"type": "http", "method": "GET", "path": "/v1/files/%2f"}
    assert find(scope).sent == ""
    assert scope["path"] == "/v1/files/%2f"


def test_accepted_paths_are_those_that_the_router_leaves_as_they_are() -> None:
    chooser, num_accepted = random.Random(5), 0
    for _ in range(NUM_RANDOM_PATHS):
        raw = "".join(chooser.choices(PIECES, k=chooser.randint(1, 8)))
        scope = make_scope(raw.encode().decode("latin-1"))
        found = find(scope)
        if scope["path"] != "/ui/":
            assert normalize_path(scope["path"]) == scope["path"], raw
        if not found.sent:
            num_accepted += 1
            assert not {"", ".", ".."} & set(scope["path"].removesuffix("/").split("/")[1:]), raw
    assert num_accepted > NUM_RANDOM_PATHS / 200


def test_redirect_is_followed_and_keeps_a_proxy_prefix(server: RunningServer) -> None:
    reply = httpx.get(f"{server.url}/models/", follow_redirects=True)
    assert reply.status_code == 200 and reply.url.path == "/v1/models"
    reply = httpx.get(f"{server.root}/health/")
    assert (reply.status_code, reply.headers["location"], reply.content) == (308, "../health", b"")
    assert reply.headers["x-request-id"]


def test_error_has_the_shape_of_the_api_that_was_meant(server: RunningServer) -> None:
    error = httpx.post(f"{server.root}//v1/messages", json={}).json()
    assert error["type"] == "error" and "Send '/v1/messages'" in error["error"]["message"]
    error = httpx.post(f"{server.root}/v1//responses", json={}).json()["error"]
    assert error["code"] == "unknown_url" and "Send '/v1/responses'" in error["message"]


def test_escaped_slash_in_the_name_of_a_model_is_served(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/models/org%2Fname").json()["id"] == "org/name"
    assert httpx.get(f"{server.url}/models/org/name").json()["id"] == "org/name"


def test_access_log_has_the_path_that_was_sent(server: RunningServer) -> None:
    server.access_records.clear()
    exchange_bytes(server, b"GET v1//models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    record = server.access_records[-1]
    assert (record.path, record.status, record.route, record.error_code) == ("v1//models", 404, "", "unknown_url")
