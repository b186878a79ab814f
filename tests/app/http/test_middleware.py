"""What the gate lets in and what it turns away, over a real socket."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Serve
from tests.serving import RunningServer, serve

HELLO = [{"name": "hello", "output": ["Hello."]}]
CLIENT = httpx.Client()
BODY = {"model": "scripted", "input": "hi"}


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    CLIENT.close()


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    """One server for all tests that change nothing about it."""
    with serve(HELLO, allowed_hosts=("box.lan",)) as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    """One that asks for a key."""
    with serve(HELLO, api_keys=("sk-one", "sk-two")) as running:
        yield running


def error(reply: httpx.Response) -> tuple[int, Any, Any]:
    """Status, code and param, after the shape was looked at."""
    assert reply.headers["content-type"].startswith("application/json")
    found = reply.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return reply.status_code, found["code"], found["param"]


def raw(served: RunningServer, said: bytes, wait: float = 5.0) -> bytes:
    """What the server answers to these bytes, until it closes or falls silent."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=wait) as line:
        line.sendall(said)
        got = b""
        try:
            while piece := line.recv(65536):
                got += piece
        except TimeoutError:
            pass
        return got


def post(served: RunningServer, path: str = "/responses", **kw: Any) -> httpx.Response:
    return CLIENT.post(served.url + path, **kw)


def test_a_good_request_passes_and_carries_an_id(served: RunningServer) -> None:
    first, second = (post(served, json=BODY) for _ in range(2))
    assert first.status_code == 200
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    mine = post(served, json=BODY, headers={"x-request-id": "my-own.1"})
    assert mine.headers["x-request-id"] == "my-own.1"
    odd = post(served, json=BODY, headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
def test_only_json_is_a_body(served: RunningServer, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    reply = post(served, content=json.dumps(BODY).encode(), headers=headers)
    assert error(reply) == (415, "unsupported_media_type", None)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_of_its_names(served: RunningServer, kind: str) -> None:
    reply = post(served, content=json.dumps(BODY).encode(), headers={"content-type": kind})
    assert reply.status_code == 200


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip,zstd", "rot13", "aws-chunked", "zstd;q=1"])
def test_no_body_in_a_code_that_is_not_spoken(served: RunningServer, encoding: str) -> None:
    reply = post(served, json=BODY, headers={"content-encoding": encoding})
    assert error(reply) == (415, "unsupported_content_encoding", None)


def test_a_body_over_the_cap_by_its_own_account(server: Serve) -> None:
    served = server(HELLO, max_body_bytes=1000)
    said = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1001\r\n\r\n"
    began = time.monotonic()
    assert b"413" in raw(served, said).partition(b"\r\n")[0]
    assert time.monotonic() - began < 3, "the answer must not wait for the body"


def test_a_body_over_the_cap_in_chunks(server: Serve) -> None:
    served = server(HELLO, max_body_bytes=1000)

    def chunks() -> Any:
        for _ in range(50):
            yield b" " * 100

    reply = post(served, content=chunks(), headers={"content-type": "application/json"})
    assert error(reply) == (413, "request_too_large", None)
    assert post(served, json=BODY).status_code == 200


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/models", "/nowhere"])
def test_a_key_is_asked_for_where_one_is_set(locked: RunningServer, path: str) -> None:
    served = locked
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer sk-three"},
        {"authorization": "Bearer"},
        {"authorization": "sk-one"},
        {"authorization": "Basic sk-one"},
        {"authorization": "Bearer ' OR 1=1 --"},
        {"authorization": "Bearer sk-oneX"},
    ]
    for headers in wrong:
        reply = CLIENT.get(f"{served.url}{path}?api_key=sk-one", headers=headers)
        assert error(reply) == (401, "invalid_api_key", None)
        assert reply.headers["www-authenticate"] == "Bearer"
    for key in ("sk-one", "sk-two"):
        assert post(served, json=BODY, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_what_one_key_made_another_does_not_see(locked: RunningServer) -> None:
    served = locked
    mine, other = ({"authorization": f"Bearer {key}"} for key in ("sk-one", "sk-two"))
    made = post(served, json=BODY, headers=mine).json()["id"]
    assert CLIENT.get(f"{served.url}/responses/{made}", headers=mine).json()["id"] == made
    foreign = CLIENT.get(f"{served.url}/responses/{made}", headers=other)
    unknown = CLIENT.get(f"{served.url}/responses/{made[:-1]}0", headers=other)
    assert error(foreign) == error(unknown) == (404, None, None)
    item = {"type": "item_reference", "id": "msg_x"}
    assert error(post(served, json={**BODY, "input": [item]}, headers=other)) == (404, None, "input")


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
def test_names_under_which_the_server_is_reached(served: RunningServer, host: str, status: int) -> None:
    assert CLIENT.get(f"{served.url}/models", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:3000", 200), ("https://evil.example", 403), ("null", 403), ("http://127.0.0.1", 200)],
)
def test_pages_of_other_sites_are_kept_out(served: RunningServer, origin: str, status: int) -> None:
    assert CLIENT.get(f"{served.url}/models", headers={"origin": origin}).status_code == status


def test_health_is_open_to_all(locked: RunningServer) -> None:
    served = locked
    for path in ("/health", "/ready"):
        assert CLIENT.get(served.root + path).status_code == 200
        head = CLIENT.head(served.root + path)
        assert (head.status_code, head.content) == (200, b"")


def test_ready_says_why_not(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.context, "shutting_down", True)
    reply = CLIENT.get(served.root + "/ready")
    assert (reply.status_code, reply.json()["reason"]) == (503, "the server is shutting down")
    assert CLIENT.head(served.root + "/ready").status_code == 503
    assert CLIENT.get(served.root + "/health").status_code == 200


def test_paths_and_methods_that_are_not_there(served: RunningServer) -> None:
    assert error(CLIENT.get(served.root + "/")) == (404, "unknown_url", None)
    assert error(CLIENT.get(served.url + "/responses/resp_1/x")) == (404, "unknown_url", None)
    wrong = CLIENT.get(served.url + "/responses")
    assert error(wrong) == (405, "method_not_allowed", None)
    assert wrong.headers["allow"] == "OPTIONS, POST"
    assert CLIENT.put(served.url + "/models", json={}).headers["allow"] == "GET, OPTIONS"


@pytest.mark.parametrize(
    "said", ["resp_", "resp_1%2f..%2fx", "resp_%00", "r" * 10_000, "resp_é", "resp_a;b", "..", "msg_1"]
)
def test_ids_that_cannot_be_are_unknown(served: RunningServer, said: str) -> None:
    reply = CLIENT.get(f"{served.url}/responses/{said}")
    assert reply.status_code == 404
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_a_websocket_is_sent_back_to_http_where_it_is_switched_off() -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    with serve(HELLO, enable_websocket=False) as served:
        assert error(CLIENT.get(served.url + "/responses", headers=headers)) == (426, "upgrade_not_supported", None)


def test_a_fault_of_ours_tells_nothing(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.context, "models", None)
    reply = post(served, json=BODY)
    assert error(reply) == (500, "server_error", None)
    assert "NoneType" not in reply.text


GET = b"GET /health HTTP/1.1\r\n"
JSON = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "said",
    [
        GET + b"\r\n",
        GET + b"Host: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        GET + b"Host: localhost\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 100) for i in range(1000)) + b"\r\n",
        JSON + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        JSON + b"Content-Length: x\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_http_or_too_much_of_it_is_refused(served: RunningServer, said: bytes) -> None:
    head, _, body = raw(served, said, 0.5).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert CLIENT.get(served.root + "/health").status_code == 200


def test_a_length_and_chunks_at_once_never_smuggle(served: RunningServer) -> None:
    """A proxy in front may go by the one and we by the other: refused, and the connection with it."""
    body = json.dumps(BODY).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    said = (
        JSON + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + GET + b"Host: localhost\r\n\r\n"
    )
    answer = raw(served, said, 0.5)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /health HTT",
        GET + b"Host: localhost\r\nX-",
        JSON + b"Content-Length: 100\r\n\r\n{",
        JSON + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_sender_that_never_finishes_is_let_go(server: Serve, said: bytes) -> None:
    served = server(HELLO, header_timeout=0.3, body_timeout=0.3)
    began = time.monotonic()
    got = raw(served, said)
    assert time.monotonic() - began < 2
    assert got.startswith(b"HTTP/1.1 408")


def test_slow_senders_gain_nothing_by_trickling(server: Serve) -> None:
    served = server(HELLO, header_timeout=0.3)
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as line:
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe, as the system has it
            trickle(line, seconds=3)
        assert time.monotonic() - began < 2


def trickle(line: socket.socket, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line.sendall(b"x")
        time.sleep(0.05)
