"""Rules that hold at every route: `Allow`, the shape of errors, requests that pages of other origins cause, counting."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.http.headers import MAX_REQUEST_HEADERS
from antiphon.app.main.table import ROUTE_HANDLERS
from antiphon.app.options.api_keys import ApiKey, KeyLimits, key_digest
from tests.app.http.socket_client import exchange_bytes
from tests.serving import RunningServer, serve

HELLO_SCRIPT = [{"name": "hello", "output": ["Hello."]}]
SERVER = partial(serve, HELLO_SCRIPT, allowed_origins=("https://friend.example",))
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PATHS = sorted(
    {re.sub(r"\{\w+:(str|path)\}", "x1", template) for handler in ROUTE_HANDLERS for template in handler.paths}
)
ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[RunningServer]:
    key = ApiKey(digest=key_digest("sk-one"), owner="a", name="a", limits=KeyLimits(requests_per_minute=2))
    with serve(HELLO_SCRIPT, api_keys=(key,), max_body_bytes=1000) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """A client with the page's key. Without an API key, acts on the server are refused, so the walk ends nothing."""
    with httpx.Client(base_url=server.root, headers={"x-api-key": server.context.keys.page_key}) as client:
        yield client


def read_status(client: httpx.Client, method: str, path: str) -> tuple[int, str]:
    """Returns the status and the header `Allow`. The body of a reply is not read, since it may be a stream."""
    with client.stream(method, path, json={} if method == "POST" else None) as reply:
        return reply.status_code, reply.headers.get("allow", "")


def test_allow_names_exactly_the_methods_that_are_answered(client: httpx.Client) -> None:
    walked = [path for path in PATHS if not path.startswith("/v1/admin/")]
    for path in (*walked, "/v1/models/org/name"):
        replies = {method: read_status(client, method, path) for method in METHODS}
        answered = sorted(method for method, (status, _) in replies.items() if status != 405)
        for method, (status, allow) in replies.items():
            assert status != 405 or allow == ", ".join(answered), (method, path)
        assert "PUT" not in answered, path


def test_request_that_opens_no_turn_is_not_counted(keyed_server: RunningServer) -> None:
    with httpx.Client(base_url=keyed_server.root, headers={"x-api-key": "sk-one"}) as caller:
        for _ in range(3):
            reply = caller.put("/v1/responses", json={})
            assert (reply.status_code, reply.headers["allow"]) == (405, "OPTIONS, POST")
            assert "x-ratelimit-remaining-requests" not in reply.headers


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/models", "/v1/models/x", "/v1/files/x", "/api/show", "/api/tags"]
)
@pytest.mark.parametrize(
    ("status", "method", "headers", "body"),
    [
        (401, "GET", {"x-api-key": "wrong"}, b""),
        (405, "PUT", {}, b""),
        (413, "POST", {"content-type": "application/json"}, b'"' + b"x" * 1000 + b'"'),
        (415, "POST", {"content-type": "text/plain"}, b"{}"),
        (431, "GET", {f"x-{number}": "1" for number in range(MAX_REQUEST_HEADERS)}, b""),
    ],
)
def test_errors_of_a_path_have_one_shape(
    keyed_server: RunningServer, path: str, status: int, method: str, headers: dict[str, str], body: bytes
) -> None:
    sent = {"x-api-key": "sk-one", **ANTHROPIC, **headers}
    reply = httpx.request(method, keyed_server.root + path, headers=sent, content=body)
    error: dict[str, Any] = reply.json()
    assert reply.status_code == status
    if path.startswith("/api/"):
        assert set(error) == {"error"} and isinstance(error["error"], str)
    else:
        assert set(error) == {"type", "error", "request_id"} and error["request_id"] == reply.headers["x-request-id"]


def test_models_keep_the_shape_of_openai_without_the_header_of_anthropic(keyed_server: RunningServer) -> None:
    assert httpx.get(f"{keyed_server.url}/models").json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{keyed_server.url}/modelsx", headers=ANTHROPIC).json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/metrics", "/load", "/v1/models", "/v1/organization/usage/completions?start_time=0"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_origin_cannot_embed_a_reply(client: httpx.Client, path: str, site: str) -> None:
    embedded = client.get(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
    assert (embedded.status_code, embedded.json()["error"]["code"]) == (403, "origin_not_allowed")
    followed = client.get(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"})
    read = client.get(path, headers={"sec-fetch-site": site, "origin": "https://friend.example"})
    own = client.get(path, headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})
    assert (followed.status_code, read.status_code, own.status_code) == (200, 200, 200)
    assert client.get("/health", headers={"sec-fetch-site": site}).status_code == 200


def test_head_has_the_route_of_its_get(server: RunningServer, client: httpx.Client) -> None:
    server.access_records.clear()
    client.head("/v1/models/scripted")
    assert server.access_records[-1].route == "/v1/models/{name}"


CHUNKED = "host: localhost\r\norigin: https://friend.example\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
FAULTY_BODIES = {413: b"fffffffff\r\n", 400: b"zz\r\n"}
"""The beginnings of bodies: a chunk that is larger than a body may be, and a size that is no number."""


def send_faulty_body(
    server: RunningServer, path: str, fault: bytes, key: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of the reply to a POST whose body is at fault, once its connection is closed."""
    head = f"POST {path} HTTP/1.1\r\n{CHUNKED}{f'x-api-key: {key}' if key else 'x: y'}\r\n\r\n"
    reply = exchange_bytes(server, head.encode() + fault)
    lines, _, body = reply.partition(b"\r\n\r\n")
    first, *pairs = lines.decode().lower().split("\r\n")
    assert reply.count(b"HTTP/1.1 ") == 1
    return int(first.split(" ")[1]), dict(pair.split(": ", 1) for pair in pairs), body


@pytest.mark.parametrize("status", FAULTY_BODIES)
def test_fault_of_a_body_is_answered_as_its_path_is(server: RunningServer, status: int) -> None:
    fault = FAULTY_BODIES[status]
    server.access_records.clear()
    for path in ("/v1/responses", "/v1/messages", "/api/show"):
        found, headers, body = send_faulty_body(server, path, fault)
        assert (found, headers["connection"]) == (status, "close")
        assert headers["access-control-allow-origin"] == "https://friend.example"
        assert (b'"request_id":"%b"' % headers["x-request-id"].encode() in body) == (path == "/v1/messages")
        assert (b'"code"' in body) == (path == "/v1/responses")
        record = server.access_records[-1]
        assert (record.path, record.status, record.request_id) == (path, status, headers["x-request-id"])
    found, headers, _ = send_faulty_body(server, "/v1/admin/reload", fault)
    assert found == 403 and not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize("status", FAULTY_BODIES)
def test_request_whose_body_is_at_fault_reaches_no_handler(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    reloads: list[object] = []
    monkeypatch.setattr(server.context.reloader, "reload", reloads.append)
    key = server.context.keys.control_key
    found, headers, _ = send_faulty_body(server, "/v1/admin/reload", FAULTY_BODIES[status], key)
    assert (found, reloads) == (status, [])
    assert not [name for name in headers if name.startswith("access-control-")]


def test_body_that_does_not_arrive_in_time_is_answered_as_its_path_is() -> None:
    with serve(HELLO_SCRIPT, body_timeout=0.2, allowed_origins=("https://friend.example",)) as server:
        found, headers, body = send_faulty_body(server, "/v1/messages", b"2\r\n{")
        assert (found, headers["connection"]) == (408, "close")
        assert b'"type":"error"' in body and b"did not arrive in time" in body
        assert [record.status for record in server.access_records] == [408]


def test_fault_before_the_path_is_known_has_an_id(server: RunningServer) -> None:
    reply = exchange_bytes(server, b"GET /v1/inspect\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400 ") and b"\r\nx-request-id: req_" in reply
    assert b"access-control-allow" not in reply
