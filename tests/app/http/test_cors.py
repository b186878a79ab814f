"""Cross-origin requests of browsers: preflights, headers of every reply, and WebSockets of other pages."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as connect_websocket

from antiphon.app.http.cors import EXPOSED_HEADERS, parse_origin
from antiphon.app.options.settings import Settings
from tests.app.http.socket_client import connect, read_to_end
from tests.conftest import StartServer
from tests.serving import RunningServer, scripted_registry, serve

APP = "https://app.example"
OTHER = "https://other.example"
KEY = {"authorization": "Bearer sk-one"}
SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["Stall"], "output": ["On", {"stall": True}]},
    {"name": "hello", "output": ["Hello."]},
]
BODY = {"model": "scripted", "input": "hi"}
ASK = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
SAFELISTED = {
    "cache-control",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
}
"""Response headers that a page may always read."""
CONNECTION = {"connection", "transfer-encoding", "date", "vary", "x-accel-buffering"}
"""Headers for the connection, proxies and caches, which no page reads."""


@pytest.fixture(scope="module")
def app_server() -> Iterator[RunningServer]:
    """A server with a key for the pages of one origin."""
    with serve(SCRIPT, api_keys=("sk-one",), allowed_origins=(APP, "http://localhost:5173")) as server:
        yield server


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    """A server for the pages of all origins."""
    with serve(SCRIPT, allowed_origins=("*",)) as server:
        yield server


def check_readable(reply: httpx.Response, origin: str = APP) -> None:
    """Fails unless a page of this origin may read the reply and all headers that the server sends to clients."""
    assert reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["vary"] == "Origin"
    exposed = set(reply.headers["access-control-expose-headers"].lower().split(", "))
    sent = {name for name in reply.headers if not name.startswith("access-control-")}
    assert sent - SAFELISTED - CONNECTION <= exposed
    assert {"x-request-id", "retry-after", "x-should-retry", "openai-processing-ms"} <= exposed


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/models", "/responses/resp_1", "/nothing"])
def test_preflight_needs_no_key(app_server: RunningServer, path: str) -> None:
    reply = httpx.options(app_server.url + path, headers={"origin": APP, **ASK})
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == APP
    assert set(reply.headers["access-control-allow-methods"].split(", ")) == {"GET", "POST", "DELETE"}
    assert reply.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert int(reply.headers["access-control-max-age"]) >= 600
    assert "Origin" in reply.headers["vary"]
    assert "access-control-allow-credentials" not in reply.headers


def test_preflight_of_another_origin_is_refused_with_the_remedy(app_server: RunningServer) -> None:
    reply = httpx.options(f"{app_server.url}/responses", headers={"origin": OTHER, **ASK})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert f"--allowed-origin {OTHER}" in reply.json()["error"]["message"]
    assert "access-control-allow-origin" not in reply.headers


def test_no_origin_is_allowed_by_default(start_server: StartServer) -> None:
    for settings in ({}, {"host": "0.0.0.0"}):
        server = start_server(SCRIPT, **settings)
        for origin in (APP, "http://localhost:5173"):
            preflight = httpx.options(f"{server.url}/responses", headers={"origin": origin, **ASK})
            assert (preflight.status_code, preflight.json()["error"]["code"]) == (403, "origin_not_allowed")
            reply = httpx.post(f"{server.url}/responses", json=BODY, headers={"origin": origin})
            assert not [name for name in (*preflight.headers, *reply.headers) if name.startswith("access-control-")]


def test_options_without_the_preflight_headers_is_an_ordinary_request(app_server: RunningServer) -> None:
    assert httpx.options(f"{app_server.url}/responses", headers={"origin": APP}).status_code == 401
    reply = httpx.options(f"{app_server.url}/responses", headers={"origin": APP, **KEY})
    assert (reply.status_code, reply.headers["allow"]) == (204, "OPTIONS, POST")
    check_readable(reply)


def test_preflight_checks_the_host(app_server: RunningServer) -> None:
    reply = httpx.options(f"{app_server.url}/responses", headers={"origin": APP, "host": "evil.example", **ASK})
    assert reply.status_code == 421


def test_preflight_without_requested_headers_allows_none(app_server: RunningServer) -> None:
    headers = {"origin": APP, "access-control-request-method": "GET"}
    reply = httpx.options(f"{app_server.url}/models", headers=headers)
    assert reply.status_code == 204 and "access-control-allow-headers" not in reply.headers
    headers["access-control-request-headers"] = "x: y; z"
    reply = httpx.options(f"{app_server.url}/models", headers=headers)
    assert reply.status_code == 204 and "access-control-allow-headers" not in reply.headers


def test_preflight_of_a_private_network_is_granted_if_asked(app_server: RunningServer) -> None:
    name = "access-control-allow-private-network"
    headers = {"origin": APP, "access-control-request-private-network": "true", **ASK}
    assert httpx.options(f"{app_server.url}/responses", headers=headers).headers[name] == "true"
    assert name not in httpx.options(f"{app_server.url}/responses", headers={"origin": APP, **ASK}).headers


@pytest.mark.parametrize(
    ("method", "path", "fields", "headers", "status"),
    [
        ("POST", "/responses", BODY, KEY, 200),
        ("POST", "/responses", {**BODY, "stream": True}, KEY, 200),
        ("POST", "/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}, KEY, 200),
        ("GET", "/models", None, KEY, 200),
        ("POST", "/responses", BODY, {}, 401),
        ("POST", "/responses", {"model": "scripted"}, KEY, 400),
        ("GET", "/responses/resp_1", None, KEY, 404),
        ("GET", "/responses", None, KEY, 405),
        ("POST", "/nothing", BODY, KEY, 404),
        ("POST", "/responses", BODY, {**KEY, "content-type": "text/plain"}, 415),
        ("POST", "/responses", BODY, {**KEY, "host": "evil.example"}, 421),
        ("POST", "/responses", BODY, {**KEY, **{f"x-{n}": "1" for n in range(300)}}, 431),
    ],
)  # fmt: skip
def test_every_reply_is_readable(
    app_server: RunningServer, method: str, path: str, fields: Any, headers: dict[str, str], status: int
) -> None:
    content = None if fields is None else json.dumps(fields).encode()
    sent = {"origin": APP, "content-type": "application/json", **headers}
    reply = httpx.request(method, app_server.url + path, content=content, headers=sent)
    assert reply.status_code == status, reply.text
    check_readable(reply)
    unrelated = httpx.request(method, app_server.url + path, content=content, headers={**sent, "origin": OTHER})
    assert "access-control-allow-origin" not in unrelated.headers and unrelated.headers["vary"] == "Origin"


def test_second_origin_gets_its_own_headers(app_server: RunningServer) -> None:
    origin = "http://localhost:5173"
    check_readable(httpx.get(f"{app_server.url}/models", headers={"origin": origin, **KEY}), origin)
    neighbor = httpx.get(f"{app_server.url}/models", headers={"origin": "http://localhost:5174", **KEY})
    assert neighbor.status_code == 200 and "access-control-allow-origin" not in neighbor.headers
    plain = httpx.get(f"{app_server.url}/models", headers=KEY)
    assert plain.headers["vary"] == "Origin" and "access-control-allow-origin" not in plain.headers


def test_internal_error_is_readable(app_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_server.context, "models", None)
    reply = httpx.post(f"{app_server.url}/responses", json=BODY, headers={"origin": APP, **KEY})
    assert reply.status_code == 500
    check_readable(reply)


def read_reply(server: RunningServer, data: bytes) -> httpx.Response:
    """Sends bytes and returns the reply of a server that closes the connection."""
    with connect(server) as client:
        client.sendall(data)
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return httpx.Response(int(status.split()[1]), headers=pairs, content=body)


def test_errors_of_the_connection_are_readable(start_server: StartServer) -> None:
    server = start_server(SCRIPT, allowed_origins=(APP,), body_timeout=0.2, max_body_bytes=1000)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nOrigin: {APP}\r\nContent-Type: application/json\r\n"
    chunked = head + "Transfer-Encoding: chunked\r\n\r\n"
    slow = read_reply(server, f"{head}Content-Length: 100\r\n\r\n".encode())
    large = read_reply(server, f"{chunked}fffff\r\n".encode())
    broken = read_reply(server, f"{chunked}zz\r\n".encode())
    assert (slow.status_code, large.status_code, broken.status_code) == (408, 413, 400)
    for reply in (slow, large, broken):
        check_readable(reply)


@contextmanager
def fill(server: RunningServer, slots: int) -> Iterator[None]:
    """Occupies all slots of the engine."""
    with httpx.Client() as client:
        streams = []
        try:
            for _ in range(slots):
                request = client.build_request(
                    "POST", f"{server.url}/responses", json={**BODY, "input": "Stall", "stream": True}
                )
                streams.append(client.send(request, stream=True))
            yield
        finally:
            for stream in streams:
                stream.close()


@pytest.mark.parametrize("in_pieces", [False, True])
def test_rejection_of_an_excess_request_is_readable(start_server: StartServer, in_pieces: bool) -> None:
    server = start_server(scripted_registry(SCRIPT, max_num_seqs=1, max_waiting=0), allowed_origins=(APP,))
    body = json.dumps(BODY).encode()
    with fill(server, 1):
        content: Any = iter([body]) if in_pieces else body
        headers = {"origin": APP, "content-type": "application/json"}
        reply = httpx.post(f"{server.url}/responses", content=content, headers=headers)
    assert reply.status_code == 429 and "retry-after" in reply.headers
    check_readable(reply)


def test_star_allows_every_page(open_server: RunningServer) -> None:
    for origin in (APP, OTHER, "null"):
        preflight = httpx.options(f"{open_server.url}/responses", headers={"origin": origin, **ASK})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, "*")
        reply = httpx.post(f"{open_server.url}/responses", json=BODY, headers={"origin": origin})
        assert reply.status_code == 200
        check_readable(reply, "*")


@pytest.mark.parametrize(("origin", "status"), [(APP, 101), (OTHER, 403), ("null", 403), ("http://localhost:9", 101)])
def test_websocket_of_a_page_needs_an_allowed_origin(start_server: StartServer, origin: str, status: int) -> None:
    server = start_server(SCRIPT, allowed_origins=(APP,))
    url = server.url.replace("http", "ws") + "/responses"
    try:
        with connect_websocket(url, origin=origin) as websocket:  # type: ignore[arg-type]
            websocket.send(json.dumps({"type": "response.create", **BODY}))
            assert json.loads(websocket.recv())["type"] == "response.created"
        reached = 101
    except InvalidStatus as error:
        reached = error.response.status_code
    assert reached == status


def test_star_opens_websockets_to_every_page(open_server: RunningServer) -> None:
    url = open_server.url.replace("http", "ws") + "/responses"
    with connect_websocket(url, origin=OTHER) as websocket:  # type: ignore[arg-type]
        websocket.send(json.dumps({"type": "response.create", **BODY}))
        assert json.loads(websocket.recv())["type"] == "response.created"


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        ("*", "*"),
        ("https://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[::1]:5173", "http://[::1]:5173"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
    ],
)
def test_origin_is_written_as_browsers_send_it(value: str, origin: str) -> None:
    assert parse_origin(value) == origin


@pytest.mark.parametrize(
    "value",
    ["", "null", "app.example", "https://", "https://app.example/", "https://app.example/path", "https://*.example", "https://a b", "https://u@app.example", "https://app.example:x"],
)  # fmt: skip
def test_value_that_is_not_an_origin_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"scheme://host"):
        parse_origin(value)


def test_defaults_allow_no_origin_and_the_exposed_headers_are_names() -> None:
    assert Settings().allowed_origins == ()
    assert all(re.fullmatch(r"[a-z-]+", name) for name in EXPOSED_HEADERS)
