"""The middleware over a real socket: media types, size limits, API keys, hosts, origins, and malformed HTTP."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import zstandard

from antiphon.app.errors import ApiError
from antiphon.app.http.admission import RequestHead
from antiphon.app.http.headers import MAX_REQUEST_HEADER_BYTES, MAX_REQUEST_HEADERS
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.main.application import ENDPOINT_TABLE
from antiphon.app.options.settings import DEFAULT_SETTINGS
from tests.app.http.socket_client import exchange_bytes
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

HELLO_SCRIPT = [{"name": "hello", "output": ["Hello."]}]
CLIENT = httpx.Client()
BODY = {"model": "scripted", "input": "hi"}
GET_HEAD = b"GET /health HTTP/1.1\r\n"
JSON_HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module", autouse=True)
def close_client() -> Iterator[None]:
    yield
    CLIENT.close()


SERVER = partial(serve, HELLO_SCRIPT, allowed_hosts=("box.lan",))


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[RunningServer]:
    """A server that requires an API key."""
    with serve(HELLO_SCRIPT, api_keys=("sk-one", "sk-two")) as server:
        yield server


def check_error(reply: httpx.Response) -> tuple[int, Any, Any]:
    """Returns status, code and param of an error, after a check of its shape."""
    assert reply.headers["content-type"].startswith("application/json")
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status_code, error["code"], error["param"]


def post_request(server: RunningServer, path: str = "/responses", **options: Any) -> httpx.Response:
    return CLIENT.post(server.url + path, **options)


def test_valid_request_passes_and_has_a_request_id(server: RunningServer) -> None:
    first, second = (post_request(server, json=BODY) for _ in range(2))
    assert first.status_code == 200
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    valid = post_request(server, json=BODY, headers={"x-request-id": "my-own.1"})
    assert valid.headers["x-request-id"] == "my-own.1"
    invalid = post_request(server, json=BODY, headers={"x-request-id": "a b\tc"})
    assert invalid.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"],
)
def test_other_content_types_are_rejected(server: RunningServer, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    reply = post_request(server, content=json.dumps(BODY).encode(), headers=headers)
    assert check_error(reply) == (415, "unsupported_media_type", None)


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_content_types_are_accepted(server: RunningServer, content_type: str) -> None:
    reply = post_request(server, content=json.dumps(BODY).encode(), headers={"content-type": content_type})
    assert reply.status_code == 200


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip,zstd", "rot13", "aws-chunked", "zstd;q=1"])
def test_unsupported_content_encoding_is_rejected(server: RunningServer, encoding: str) -> None:
    reply = post_request(server, json=BODY, headers={"content-encoding": encoding})
    assert check_error(reply) == (415, "unsupported_content_encoding", None)


def test_content_length_above_the_limit_is_rejected(start_server: StartServer) -> None:
    server = start_server(HELLO_SCRIPT, max_body_bytes=1000)
    reply = exchange_bytes(server, JSON_HEAD + b"Content-Length: 1001\r\n\r\n", 30.0)
    assert b"413" in reply.partition(b"\r\n")[0], "the answer must not wait for the body, which never comes"


def test_chunked_body_above_the_limit_is_rejected(start_server: StartServer) -> None:
    server = start_server(HELLO_SCRIPT, max_body_bytes=1000)

    def chunks() -> Any:
        for _ in range(50):
            yield b" " * 100

    reply = post_request(server, content=chunks(), headers={"content-type": "application/json"})
    assert check_error(reply) == (413, "request_too_large", None)
    assert post_request(server, json=BODY).status_code == 200


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/models", "/nowhere"])
def test_api_key_is_required_where_one_is_set(keyed_server: RunningServer, path: str) -> None:
    invalid_headers: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer sk-three"},
        {"authorization": "Bearer"},
        {"authorization": "sk-one"},
        {"authorization": "Basic sk-one"},
        {"authorization": "Bearer ' OR 1=1 --"},
        {"authorization": "Bearer sk-oneX"},
    ]
    for headers in invalid_headers:
        reply = CLIENT.get(f"{keyed_server.url}{path}?api_key=sk-one", headers=headers)
        assert check_error(reply) == (401, "invalid_api_key", None)
        assert reply.headers["www-authenticate"] == "Bearer"
    for key in ("sk-one", "sk-two"):
        assert post_request(keyed_server, json=BODY, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_response_of_one_key_is_not_found_with_another(keyed_server: RunningServer) -> None:
    own_key, other_key = ({"authorization": f"Bearer {key}"} for key in ("sk-one", "sk-two"))
    response_id = post_request(keyed_server, json=BODY, headers=own_key).json()["id"]
    assert CLIENT.get(f"{keyed_server.url}/responses/{response_id}", headers=own_key).json()["id"] == response_id
    foreign = CLIENT.get(f"{keyed_server.url}/responses/{response_id}", headers=other_key)
    unknown = CLIENT.get(f"{keyed_server.url}/responses/{response_id[:-1]}0", headers=other_key)
    assert check_error(foreign) == check_error(unknown) == (404, None, None)
    item = {"type": "item_reference", "id": "msg_x"}
    assert check_error(post_request(keyed_server, json={**BODY, "input": [item]}, headers=other_key)) == (
        404,
        None,
        "input",
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.", 200),
        ("127.0.0.1:99", 200),
        ("[::1]:80", 200),
        ("box.lan", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_only_allowed_hosts_are_served(server: RunningServer, host: str, status: int) -> None:
    assert CLIENT.get(f"{server.url}/models", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:3000", 200), ("https://evil.example", 403), ("null", 403), ("http://127.0.0.1", 200)],
)
def test_only_local_origins_are_allowed(server: RunningServer, origin: str, status: int) -> None:
    assert CLIENT.get(f"{server.url}/models", headers={"origin": origin}).status_code == status


def test_health_and_ready_require_no_key(keyed_server: RunningServer) -> None:
    for path in ("/health", "/ready"):
        assert CLIENT.get(keyed_server.root + path).status_code == 200
        head = CLIENT.head(keyed_server.root + path)
        assert (head.status_code, head.content) == (200, b"")


def test_ready_reports_the_reason(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.context, "draining", True)
    reply = CLIENT.get(server.root + "/ready")
    assert (reply.status_code, reply.json()["reason"]) == (503, "the server is shutting down")
    assert CLIENT.head(server.root + "/ready").status_code == 503
    assert CLIENT.get(server.root + "/health").status_code == 200


def test_unknown_paths_and_methods_are_rejected(server: RunningServer) -> None:
    assert check_error(CLIENT.get(server.root + "/v2")) == (404, "unknown_url", None)
    assert check_error(CLIENT.get(server.url + "/responses/resp_1/x")) == (404, "unknown_url", None)
    reply = CLIENT.get(server.url + "/responses")
    assert check_error(reply) == (405, "method_not_allowed", None)
    assert reply.headers["allow"] == "OPTIONS, POST"
    assert CLIENT.put(server.url + "/models", json={}).headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    "response_id", ["resp_", "resp_1%2f..%2fx", "resp_%00", "r" * 10_000, "resp_é", "resp_a;b", "..", "msg_1"]
)
def test_malformed_response_ids_are_not_found(server: RunningServer, response_id: str) -> None:
    reply = CLIENT.get(f"{server.url}/responses/{response_id}")
    assert reply.status_code == 404
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_websocket_upgrade_is_426_where_it_is_disabled() -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    with serve(HELLO_SCRIPT, enable_websocket=False) as server:
        assert check_error(CLIENT.get(server.url + "/responses", headers=headers)) == (
            426,
            "upgrade_not_supported",
            None,
        )


def test_internal_error_reveals_nothing(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.context, "models", None)
    reply = post_request(server, json=BODY)
    assert check_error(reply) == (500, "server_error", None)
    assert "NoneType" not in reply.text


@pytest.mark.parametrize(
    "data",
    [
        GET_HEAD + b"\r\n",
        GET_HEAD + b"Host: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        GET_HEAD + b"Host: localhost\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 100) for i in range(1000)) + b"\r\n",
        JSON_HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        JSON_HEAD + b"Content-Length: x\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_malformed_or_oversized_http_is_rejected(server: RunningServer, data: bytes) -> None:
    head, _, body = exchange_bytes(server, data, 0.5).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert CLIENT.get(server.root + "/health").status_code == 200


def test_reply_to_an_oversized_head_is_readable_although_bytes_remain_unread(server: RunningServer) -> None:
    head = GET_HEAD + b"Host: localhost\r\nX: " + b"x" * 20_000_000
    reply = exchange_bytes(server, head)
    assert reply.startswith(b"HTTP/1.1 400") and reply.endswith(b"}")


def check_head(*pairs: tuple[bytes, bytes]) -> int:
    """Returns the status that the guard gives to a head with these headers. 429: the head passed all checks."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), *pairs]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}
    # The application is not called.
    guard = RequestGuard(None, ENDPOINT_TABLE, DEFAULT_SETTINGS)  # type: ignore[arg-type]
    match = ENDPOINT_TABLE.list_starting()["/v1/responses"]
    return int(guard.reject_head(RequestHead(scope, match, 0), ApiError(429, None, "busy"))[0].status)


def test_number_of_headers_is_limited_exactly() -> None:
    extra = [(b"x-%d" % n, b"1") for n in range(MAX_REQUEST_HEADERS - 2)]
    assert check_head(*extra) == 429
    assert check_head(*extra, (b"x-more", b"1")) == 431


@pytest.mark.parametrize("name_bytes", [1, 30_000, MAX_REQUEST_HEADER_BYTES - 100])
def test_bytes_of_header_names_and_values_are_limited_exactly(name_bytes: int) -> None:
    used = len(b"hostlocalhostcontent-typeapplication/json")
    value_bytes = MAX_REQUEST_HEADER_BYTES - used - name_bytes
    assert check_head((b"x" * name_bytes, b"v" * value_bytes)) == 429
    assert check_head((b"x" * name_bytes, b"v" * (value_bytes + 1))) == 431
    assert check_head((b"x" * (name_bytes + 1), b"v" * value_bytes)) == 431


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_body_size_is_limited_exactly(start_server: StartServer, encoding: str, chunked: bool) -> None:
    limit = 1000
    server = start_server(HELLO_SCRIPT, max_body_bytes=limit)
    compress = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}[encoding]
    for size, status in ((limit, 200), (limit + 1, 413)):
        body = compress(json.dumps(BODY).encode().ljust(size))
        headers = {"content-type": "application/json", "content-encoding": encoding}
        assert post_request(server, content=iter([body]) if chunked else body, headers=headers).status_code == status


def test_content_length_with_chunked_encoding_is_rejected(server: RunningServer) -> None:
    """A proxy may use one of the headers and this server the other, so the connection is closed after the 400."""
    body = json.dumps(BODY).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = JSON_HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = exchange_bytes(server, head + chunked + GET_HEAD + b"Host: localhost\r\n\r\n", 0.5)
    assert reply.startswith(b"HTTP/1.1 400") and reply.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /health HTT",
        GET_HEAD + b"Host: localhost\r\nX-",
        JSON_HEAD + b"Content-Length: 100\r\n\r\n{",
        JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_unfinished_request_times_out(start_server: StartServer, data: bytes) -> None:
    server = start_server(HELLO_SCRIPT, header_timeout=0.3, body_timeout=0.3)
    reply = exchange_bytes(server, data, 30.0)
    assert reply.startswith(b"HTTP/1.1 408")


def test_slow_sender_does_not_extend_the_timeout(start_server: StartServer) -> None:
    server = start_server(HELLO_SCRIPT, header_timeout=0.3)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as client,
        pytest.raises((ConnectionResetError, BrokenPipeError)),
    ):
        send_slowly(client, seconds=30)


def send_slowly(client: socket.socket, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        client.sendall(b"x")
        time.sleep(0.05)
